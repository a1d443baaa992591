"""The byte-exact upstream, and the wire at both of its ends."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import h11
import pytest
import trustme
from tests.support.upstream import OK, RawUpstream, then_close, then_reset, then_silence
from tests.support.waiting import wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n"
LENGTH = b"POST /c HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"


def test_records_and_answers_byte_for_byte(start_upstream: Callable[..., RawUpstream]) -> None:
    """Each request is recorded as it came and gets its script, the last one serving the rest (spec 10)."""
    second = b"HTTP/1.1 204 No Content\r\n\r\n"
    upstream = start_upstream(OK, second)
    with Wire.connect(upstream.url) as wire:
        for request in (GET, CHUNKED, LENGTH):
            wire.trickle(request, 0.0, step=5)
            wire.read_until(b"\r\n\r\n" if request != GET else b"ok")

        assert upstream.requests == [GET, CHUNKED, LENGTH]
        assert wire.received == OK + second + second
        assert upstream.connections[0].received == GET + CHUNKED + LENGTH


def test_probes_are_apart(start_upstream: Callable[..., RawUpstream]) -> None:
    """Health probes have a script of their own and aren't among the requests (spec 10)."""
    upstream = start_upstream(health=b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
    with Wire.connect(upstream.port) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")

        assert wire.read_answer().status == 503
        assert (upstream.probes, upstream.requests) == (1, [])


def test_a_request_that_ends_halfway_is_no_request(start_upstream: Callable[..., RawUpstream]) -> None:
    """A client that leaves in the middle of its request fails nothing, and its bytes are kept (spec 10)."""
    upstream = start_upstream()
    with Wire.connect(upstream.url) as wire:
        wire.send(LENGTH[:-1])
        wire.shut_writing()
        assert wire.read_ending() == "fin"

    assert upstream.requests == []
    assert upstream.connections[0].received == LENGTH[:-1]


def test_ends_are_told_apart(start_upstream: Callable[..., RawUpstream]) -> None:
    """A test can end a connection with a FIN or a reset, or keep it silent, and tell which it was (spec 10)."""
    upstream = start_upstream(then_close(OK), then_reset(OK[:20]), then_silence(OK[:20]))
    seen = []
    for _ in range(2):
        with Wire.connect(upstream.url) as wire:
            wire.send(GET)
            seen.append((wire.read_to_end(), wire.ending))
    with Wire.connect(upstream.url) as wire:
        wire.send(GET)
        wire.read_exactly(20)
        assert wire.is_silent(0.05)
        wire.shut_writing()
        assert wire.read_ending() == "fin"

    assert seen[0] == (OK, "fin")
    assert seen[1][1] == "rst"
    assert upstream.connections[2].ending == "fin"


def test_a_reset_by_the_client_is_seen(start_upstream: Callable[..., RawUpstream]) -> None:
    """The upstream records how its client ended (spec 10)."""
    upstream = start_upstream(then_silence())
    with Wire.connect(upstream.url) as wire:
        wire.send(GET)
        upstream.wait_requests(1)
        wire.reset()
    (connection,) = upstream.connections

    assert wait_until(lambda: connection.ending, what="the end as the upstream sees it") == "rst"


def test_answers_are_read_strictly(start_upstream: Callable[..., RawUpstream]) -> None:
    """A cut, reset or malformed answer is not taken for a whole one (spec 10)."""
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"
    upstream = start_upstream(then_close(half), then_reset(half), b"no HTTP at all\r\n\r\n")
    for error in (h11.RemoteProtocolError, ConnectionResetError, h11.RemoteProtocolError):
        with Wire.connect(upstream.url) as wire:
            wire.send(GET)
            with pytest.raises(error):
                wire.read_answer()


def test_answers_come_with_their_interim_ones(start_upstream: Callable[..., RawUpstream]) -> None:
    """Interim answers are told, and what follows an answer is left for the next (spec 10)."""
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    upstream = start_upstream(early + OK + OK)
    with Wire.connect(upstream.url) as wire:
        wire.send(GET)

        first, second = wire.read_answer(), wire.read_answer()

    assert (first.interim, first.status, first.body, first.header("Content-Length")) == ([103], 200, b"ok", "2")
    assert (second.interim, second.body) == ([], b"ok")


def test_waits_have_deadlines(start_upstream: Callable[..., RawUpstream]) -> None:
    """A wire that brings nothing fails the test with what was awaited (spec 10)."""
    upstream = start_upstream(then_silence(b"abc"))
    with Wire.connect(upstream.url, timeout=0.1) as wire:
        wire.send(GET)
        with pytest.raises(AssertionError, match=r"did not bring b'xyz' within 0\.1 s; unread: b'abc'"):
            wire.read_until(b"xyz")


def test_can_refuse_and_accept_again(start_upstream: Callable[..., RawUpstream]) -> None:
    """An upstream can refuse connections for a while, and stays reachable on those it has (spec 10)."""
    upstream = start_upstream()
    with Wire.connect(upstream.url) as before:
        before.send(GET)
        assert before.read_answer().status == 200
        upstream.refuse()
        with pytest.raises(ConnectionRefusedError):
            Wire.connect(upstream.url)
        before.send(GET)
        assert before.read_answer().status == 200
        upstream.listen()
        with Wire.connect(upstream.url) as after:
            after.send(GET)
            assert after.read_answer().status == 200


def test_speaks_tls(start_upstream: Callable[..., RawUpstream]) -> None:
    """An upstream can stand for an https replica (spec 10)."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    upstream = start_upstream(tls=server)
    with Wire.connect(upstream.url, tls=client) as wire:
        wire.send(GET)

        assert wire.read_answer().status == 200
        assert upstream.url.startswith("https://")


def test_an_error_in_a_script_fails_the_test() -> None:
    """What goes wrong in a script is raised when the upstream is closed (spec 10)."""

    def script(_wire: Wire, request: bytes) -> None:
        assert request == b"something else"

    upstream = RawUpstream(script)
    with Wire.connect(upstream.url) as wire:
        wire.send(GET)
        assert wire.read_ending() == "fin"

    with pytest.raises(AssertionError, match="something else"):
        upstream.close()
