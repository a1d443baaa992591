"""Replicas behind https: verified, checked against their host, and kept connected."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import trustme
from tests.support.client import chat
from tests.support.fleet import replica
from tests.support.talk import CHAT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.router import Router
    from tests.support.sim import Sim
    from tests.support.upstream import RawUpstream


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Make a certificate authority."""
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    """Write down the authority's own certificate."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return str(tmp_path / "ca.pem")


def context(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(made)
    return made


def test_a_verified_replica_is_routed_to_on_one_connection(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router], authority: trustme.CA, ca_file: str
) -> None:
    """Requests and probes go over verified TLS, and later requests over the same connection (spec 4.9, 5.1)."""
    secure = context(authority, "127.0.0.1")
    upstream = start_upstream(tls=secure)
    router = start_router([replica(upstream.url, ca_file=ca_file)], "--health-interval", "600")
    router.wait_ready(1)
    for _ in range(3):
        assert router.request("POST", CHAT, body=chat("Hello")).status == 200

    requests = [wire for wire in upstream.connections if b"POST /v1" in wire.received]
    assert len(upstream.requests) == 3
    assert len(requests) == 1
    assert upstream.probes >= 1
    assert router.log_events("replica is not routable") == []


@pytest.mark.parametrize(
    ("names", "trusted", "complaint"),
    [
        (["elsewhere.example"], True, "IP address mismatch"),
        (["127.0.0.1"], False, "unable to get local issuer"),
    ],
    ids=["wrong host", "unknown authority"],
)
def test_a_replica_that_cannot_be_verified_gets_nothing(
    start_upstream: Callable[..., RawUpstream],
    start_router: Callable[..., Router],
    authority: trustme.CA,
    ca_file: str,
    names: list[str],
    trusted: bool,
    complaint: str,
) -> None:
    """A certificate for another host, or by nobody we trust, takes the replica out and lets no byte pass (spec 4.9)."""
    upstream = start_upstream(tls=context(authority, *names))
    entry = replica(upstream.url, **({"ca_file": ca_file} if trusted else {}))
    router = start_router([entry], "--health-interval", "0.2")

    router.wait_ready(0)
    answer = router.request("POST", CHAT, body=chat("Hello"))

    assert answer.status == 503
    assert complaint in router.replicas()["replicas"][0]["last_error"]
    assert upstream.requests == []
    assert upstream.probes == 0


def test_plain_text_is_no_https(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], ca_file: str
) -> None:
    """A replica that speaks http where https was declared is a 502, at once (spec 4.9, 4.7)."""
    sim = start_sim()
    entry = replica(sim.url.replace("http:", "https:"), ca_file=ca_file)
    router = start_router([entry], "--health-interval", "600")

    answer = router.request("POST", CHAT, body=chat("Hello"))

    assert answer.status == 502
    assert answer.json()["error"]["code"] == "upstream_unreachable"
    assert sim.state()["requests"] == 0


def test_a_ca_file_that_is_none_is_refused(start_router: Callable[..., Router], tmp_path: Path) -> None:
    """A bundle that is missing or holds no certificate ends the start with one line that names it (spec 1.5, 2.2)."""
    for path, content in ((tmp_path / "missing.pem", None), (tmp_path / "empty.pem", "nothing\n")):
        if content is not None:
            path.write_text(content)
        router = start_router([replica("https://127.0.0.1:1", ca_file=str(path))], wait=False)

        assert router.wait() == 1
        assert "ca_file" in router.stderr
        assert str(path) in router.stderr
