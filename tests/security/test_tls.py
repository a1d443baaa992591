"""https replicas whose certificates prove nothing: no byte of a request reaches one."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import trustme
from tests.support.client import chat
from tests.support.fleet import replica
from tests.support.talk import CHAT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.router import Router
    from tests.support.upstream import RawUpstream


def test_certificates_that_prove_nothing(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router], tmp_path: Path
) -> None:
    """Wrong host, expired, self-signed or from an authority we don't trust: out, and told why (spec 4.9, 2.2)."""
    trusted, stranger = trustme.CA(), trustme.CA()
    trusted.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificates = {
        "wrong-host": trusted.issue_cert("elsewhere.example"),
        "expired": trusted.issue_cert("127.0.0.1", not_after=datetime.now(UTC) - timedelta(days=1)),
        "stranger": stranger.issue_cert("127.0.0.1"),
    }
    upstreams = {name: start_upstream(tls=_context(certificate)) for name, certificate in certificates.items()}
    upstreams["self-signed"] = start_upstream(tls=_self_signed(tmp_path))
    fleet = [replica(one.url, name=name, ca_file=str(tmp_path / "ca.pem")) for name, one in upstreams.items()]
    router = start_router(fleet, "--health-interval", "0.2")

    router.wait_ready(0)
    assert router.request("POST", CHAT, body=chat("a secret")).status == 503

    errors = {row["name"]: row["last_error"] for row in router.replicas()["replicas"]}
    assert "mismatch" in errors["wrong-host"]
    assert "expired" in errors["expired"]
    assert "unable to get local issuer" in errors["stranger"]
    assert "self-signed" in errors["self-signed"]
    for upstream in upstreams.values():
        assert upstream.requests == []
        assert upstream.probes == 0


def _context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(made)
    return made


def _self_signed(folder: Path) -> ssl.SSLContext:
    """An authority's own certificate is signed by itself."""
    own = trustme.CA()
    own.cert_pem.write_to_path(folder / "own.pem")
    own.private_key_pem.write_to_path(folder / "own.key")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder / "own.pem", folder / "own.key")
    return made
