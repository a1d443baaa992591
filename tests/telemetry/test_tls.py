"""Words for what is wrong with a TLS connection."""

from __future__ import annotations

import ssl

import pytest

from pypto_serving_router.telemetry.tls import tls_trouble


@pytest.mark.parametrize(
    ("heard", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it does not speak https"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak https"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "no TLS with it: tlsv1 alert protocol version"),
    ],
)
def test_what_is_wrong_with_tls(heard: bytes, told: str) -> None:
    """A server that is none of https, or not of ours, is told without OpenSSL's names (spec 1.5)."""
    server = ssl.MemoryBIO()
    server.write(heard)
    with pytest.raises(ssl.SSLError) as caught:
        ssl.create_default_context().wrap_bio(server, ssl.MemoryBIO(), server_hostname="router").do_handshake()

    assert tls_trouble(caught.value) == told
