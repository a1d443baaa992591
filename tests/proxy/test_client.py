"""The client's side: requests found wherever the bytes are cut, refusals, limits, and ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.conversation import Script, converse
from tests.support.rig import Rig, codes
from tests.support.scripts import SCRIPTS, answer, request
from tests.support.witness import read_requests, read_response

from pypto_serving_router.core.answer import document
from pypto_serving_router.core.head import MAX_HEAD
from pypto_serving_router.proxy.client import MAX_PIPELINED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypto_serving_router.core.answer import Answer
    from pypto_serving_router.proxy.client import ClientConnection

LENGTHY = request(b"X-Session-Id: s", b"Content-Length: 10")
CHUNKED = request(b"X-Session-Id: s", b"Transfer-Encoding: chunked")


# --- cuts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_every_cut_of_what_the_client_sends(script: Script) -> None:
    """spec 4.3, 4.8: however a client's bytes arrive, both sides get the same, and the connections end the same."""
    whole = converse(script)

    for place in range(1, len(script.sent)):
        assert converse(script, [place]) == whole, f"cut at {place}"
    assert converse(script, range(len(script.sent))) == whole


@given(st.sampled_from(sorted(SCRIPTS)), st.data())
def test_any_cuts_of_both_sides(name: str, data: st.DataObject) -> None:
    """spec 4.4: the same with any number of cuts on both sides at once."""
    script = SCRIPTS[name]
    cuts = st.lists(st.integers(1, max(1, len(script.sent))), max_size=6)

    assert converse(script, data.draw(cuts), data.draw(cuts)) == converse(script)


# --- pipelining -----------------------------------------------------------------------------


def test_requests_are_answered_one_after_the_other(rig: Rig) -> None:
    """spec 4.8: a pipelined request waits until the one before it is answered."""
    client, upstream = rig.ask(request(body=b"1") + request(body=b"2") + request(body=b"3"))

    for number in (b"1", b"2", b"3"):
        (seen,), _ = read_requests(upstream.take())
        assert seen.body == number
        upstream.send(answer(body=number))
        rig.turns.run()

    assert codes(client) == [200, 200, 200]
    assert len(rig.upstreams) == 1


def test_many_requests_that_are_answered_on_the_spot() -> None:
    """spec 4.8: a thousand pipelined refusals need neither a deep stack nor a second read."""
    rig = Rig(replicas=0)
    client = rig.connect()

    client.send(request() * 1000)

    assert codes(client) == [503] * 1000
    rig.check()


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        (b"", request(body=b"x")),
        (request(body=b"x"), b""),
        (LENGTHY + b"1", b"23456789!"),
        (CHUNKED + b"0\r\n\r", b"\n"),
    ],
)
@pytest.mark.parametrize("reads", [1, 2, 200])
def test_what_is_held_back_is_bounded(rig: Rig, opening: bytes, closing: bytes, reads: int) -> None:
    """spec 4.5: up to 64 KiB of following requests are held while one is answered; then the client is not read."""
    client = rig.connect()
    client.send(opening)
    more = request(b"A: " + b"a" * 900) * 72
    assert len(more) > MAX_PIPELINED
    size = -(-len(more) // reads)

    for start in range(0, len(more), size):
        client.send((closing if start == 0 else b"") + more[start : start + size])
    rig.turns.run()

    assert not client.is_reading()
    assert client.held <= len(more) - MAX_PIPELINED
    for _ in range(73):
        rig.upstreams[-1].send(answer())
        rig.turns.run()
    assert codes(client) == [200] * 73
    assert client.is_reading()


def test_a_request_after_close_is_not_served(rig: Rig) -> None:
    """spec 4.8: after `Connection: close` nothing is read as a request any more."""
    client, upstream = rig.ask(request(b"Connection: close") + request())
    upstream.send(answer())
    rig.turns.run()

    assert codes(client) == [200]
    assert len(read_requests(upstream.got)[0]) == 1
    assert client.half_closed


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\n", 400),
        (b"\n", 400),
        (b"\r\n\n", 400),
        (b" GET", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (b"\0", 400),
        (b"\x80", 400),
        (request(b"A"), 400),
        (request(b"Transfer-Encoding: gzip, chunked"), 501),
        (request(*[b"A: b"] * 128), 431),
        (b"GET /" + b"a" * MAX_HEAD, 431),
        (request(b"A: " + b"a" * MAX_HEAD), 431),
    ],
)
def test_what_is_no_request_is_refused_as_soon_as_it_shows(rig: Rig, sent: bytes, status: int) -> None:
    """spec 4.7, 4.8, 4.10: the answer comes without waiting for more, the connection ends, nothing is forwarded."""
    client = rig.connect()

    client.send(sent)
    rig.turns.run()

    seen = read_response(client.got)
    assert (seen.status, seen.values(b"connection"), seen.whole, seen.rest) == (status, [b"close"], True, b"")
    assert set(json.loads(seen.body)) == {"error", "object", "message"}
    assert client.half_closed
    assert (rig.refused, rig.attempts) == ([status], [])


def test_the_longest_head(rig: Rig) -> None:
    """spec 4.10: a head of 64 KiB is read, one byte more is refused, whether it comes at once or not."""
    room = MAX_HEAD - len(request(b"A: "))
    for step in (MAX_HEAD, 1000):
        for size, expected in ((room, 0), (room + 1, 431)):
            client = rig.connect()
            head = request(b"A: " + b"a" * size)
            for start in range(0, len(head), step):
                client.send(head[start : start + step])
            rig.turns.run()
            assert codes(client) == ([expected] if expected else [])
            client.end()


def test_empty_lines_are_passed_over_in_one_go(rig: Rig) -> None:
    """spec 4.10: a flood of empty lines costs its own length, no more, and starts no request."""
    client, upstream = rig.ask(b"\r\n" * 100_000 + request())
    upstream.send(answer())

    assert codes(client) == [200]


def test_after_a_refusal_what_comes_is_thrown_away(rig: Rig) -> None:
    """spec 4.8: the client can read its answer before the connection is gone, and what it still sends is no request."""
    client = rig.connect()
    client.send(b"GET / HTTP/9\r\n\r\n" + request())
    client.send(request())
    assert (client.half_closed, client.ended, rig.refused) == (True, None, [400])

    client.end()
    rig.turns.run()

    assert client.ended == "fin"


def test_who_ignores_a_refusal_is_cut_off(rig: Rig) -> None:
    """spec 4.10: lingering ends after 5 s, or after 16 MiB."""
    slow, loud = rig.connect(), rig.connect()
    for client in (slow, loud):
        client.send(b"x\n")

    for _ in range(17):
        loud.send(b"x" * (1 << 20))
    rig.turns.run()
    assert (slow.lost, loud.lost) == (False, True)

    rig.pass_time(4.9)
    assert not slow.lost
    rig.pass_time(0.2)
    assert slow.lost


# --- Expect ---------------------------------------------------------------------------------

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("more", [b"X-Session-Id: s", b"A: b"])
def test_a_client_that_waits_is_told_to_go_on(rig: Rig, more: bytes) -> None:
    """spec 4.3: `Expect: 100-continue` is answered before the body comes, once."""
    client = rig.connect()
    client.send(request(b"Expect: 100-continue", b"Content-Length: 3", more))
    rig.turns.run()
    assert client.take() == CONTINUE

    client.send(b"ab")
    client.send(b"c")
    rig.turns.run()
    rig.upstreams[-1].send(answer())

    assert codes(client) == [200]


@pytest.mark.parametrize(
    "sent",
    [
        request(b"Expect: 100-continue", b"Content-Length: 3") + b"a",
        request(b"Expect: 100-continue", b"Content-Length: 0"),
        request(b"Expect: 100-continue"),
        request(b"Expect: 100-continue", b"Content-Length: 3", start=b"POST /v1/x HTTP/1.0"),
        request(b"Expect: 100-continue", b"Content-Length: 3") + b"abc",
        request(b"Expect: 200-ok", b"Content-Length: 3"),
    ],
)
def test_nobody_else_is(rig: Rig, sent: bytes) -> None:
    """spec 4.3: no 100 where there is no body to wait for, where it comes already, or where it can't be read."""
    client = rig.connect()

    client.send(sent)
    rig.turns.run()

    assert client.got == b""


def test_a_body_that_is_too_large_is_not_asked_for(make_rig: Callable[..., Rig]) -> None:
    """spec 4.3, 4.7: 413 comes instead of 100."""
    rig = make_rig(max_body_size=10)
    client = rig.connect()

    client.send(request(b"Expect: 100-continue", b"Content-Length: 11"))

    assert codes(client) == [413]


# --- deadlines ------------------------------------------------------------------------------


def test_a_client_that_never_speaks(rig: Rig) -> None:
    """spec 4.10: 15 s for the first head to begin; then the connection is closed without a word."""
    client = rig.connect()

    rig.pass_time(14.9)
    assert not client.lost
    rig.pass_time(0.2)

    assert (client.lost, client.got) == (True, b"")


def test_a_head_that_comes_too_slowly(rig: Rig) -> None:
    """spec 4.7, 4.10: the whole head has 15 s from its first byte, however steadily it drips; then 408."""
    client = rig.connect()
    rig.pass_time(10)
    for byte in range(14):
        client.send(request()[byte : byte + 1])
        rig.pass_time(1)
        assert client.got == b""

    rig.pass_time(1.1)

    assert codes(client) == [408]
    assert (client.half_closed, rig.refused) == (True, [408])
    assert b"the request's head was not whole after 15 s" in client.got


def test_the_head_of_a_later_request_is_held_to_the_same(rig: Rig) -> None:
    """spec 4.10: a later head has 15 s too, also if its start was held back during an answer."""
    client, upstream = rig.ask(request() + b"GET")
    rig.pass_time(20)
    upstream.send(answer())
    client.take()

    rig.pass_time(14.9)
    assert client.got == b""
    rig.pass_time(0.2)

    assert codes(client) == [408]


def test_a_head_that_came_in_pieces_is_over_once_it_is_whole(rig: Rig) -> None:
    """spec 4.10: what ends an idle connection after it is no 408, and the next head has 15 s again."""
    idle, slow = rig.connect(), rig.connect()
    for client in (idle, slow):
        client.send(request()[:10])
        _, upstream = rig.ask(request()[10:], client)
        upstream.send(answer())
        client.take()
    rig.pass_time(20)
    slow.send(b"GET")

    rig.pass_time(15.1)
    assert (codes(slow), idle.got) == ([408], b"")
    rig.pass_time(40)

    assert (idle.lost, idle.got) == (True, b"")


def test_an_idle_connection_is_closed(rig: Rig) -> None:
    """spec 4.10: 75 s after an answer, without a word."""
    client, upstream = rig.ask(request())
    upstream.send(answer())
    client.take()

    rig.pass_time(74.9)
    assert not client.lost
    rig.pass_time(0.2)

    assert (client.lost, client.got) == (True, b"")


def test_an_idle_client_that_is_still_reading_its_answer_is_not(rig: Rig) -> None:
    """spec 4.10: as long as a slow client takes bytes, its connection lives; once it stops for 75 s, it ends."""
    client, upstream = rig.ask(request())
    client.stalled = True
    upstream.send(answer(body=b"x" * 1000))
    for _ in range(3):
        client.trickle(100)
        rig.pass_time(75)
        assert not client.lost

    rig.pass_time(75.1)

    assert client.lost


@pytest.mark.parametrize("start", [LENGTHY, CHUNKED, request(b"Content-Length: 10")])
def test_a_body_that_stops_coming(rig: Rig, start: bytes) -> None:
    """spec 4.7, 4.10: 30 s between bytes of a body, each byte starts them anew; then 408, and the replica is let go."""
    client = rig.connect()
    client.send(start)
    for piece in (b"5", b"\r"):
        rig.pass_time(29)
        client.send(piece)
    rig.pass_time(29.9)
    assert client.got == b""
    rig.pass_time(0.2)

    assert codes(client) == [408]
    assert rig.outcomes == [("refused", 408)]
    assert b"nothing of the request's body came for 30 s" in client.got
    assert read_response(client.got).values(b"x-session-id")
    assert all(wire.lost for wire in rig.upstreams)


def test_a_client_that_is_not_read_is_not_blamed(rig: Rig) -> None:
    """spec 4.10: the time in which the replica takes nothing is not the client's."""
    rig.stalling = True
    client, upstream = rig.ask(request(b"X-Session-Id: s", b"Content-Length: 300000"))
    client.send(b"x" * 100_000)
    assert not client.is_reading()

    rig.pass_time(100)
    assert client.got == b""
    upstream.drain()
    rig.turns.run()
    assert client.is_reading()
    rig.pass_time(30.1)

    assert codes(client) == [408]


# --- ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"\r\n"])
def test_a_client_that_goes_between_requests(rig: Rig, sent: bytes) -> None:
    """spec 4.5: its end is answered with ours, without a word."""
    client = rig.connect()
    client.send(sent)

    client.end()
    rig.turns.run()

    assert (client.ended, client.got, rig.refused) == ("fin", b"", [])


def test_a_client_that_goes_after_its_answer_gets_it_whole(rig: Rig) -> None:
    """spec 4.8: an end that comes after the answer was written does not cost the client any of it."""
    client, upstream = rig.ask(request())
    client.stalled = True
    upstream.send(answer(body=b"fine"))
    client.end()
    rig.turns.run()

    client.drain()
    rig.turns.run()

    assert codes(client) == [200]
    assert client.ended == "fin"


def test_a_client_that_goes_while_it_is_not_read_is_noticed(rig: Rig) -> None:
    """spec 4.5: a paused connection does not show the client's end; the sweep asks the kernel for it."""
    client, upstream = rig.ask(request())
    client.send(request(b"A: " + b"a" * 60_000) * 2)
    assert not client.is_reading()

    client.end()
    rig.turns.run()
    assert not upstream.lost
    rig.pass_time(0.5)

    assert (client.lost, upstream.lost, rig.outcomes) == (True, True, [("client_left", 0)])


# --- answers of the router's own ------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "start", "connection", "ends"),
    [
        ([], b"GET /v1/x HTTP/1.1", [], False),
        ([b"Connection: close"], b"GET /v1/x HTTP/1.1", [b"close"], True),
        ([], b"GET /v1/x HTTP/1.0", [b"close"], True),
        ([b"Connection: keep-alive"], b"GET /v1/x HTTP/1.0", [b"keep-alive"], False),
        ([b"Content-Length: 5"], b"POST /v1/x HTTP/1.1", [b"close"], True),
    ],
)
def test_whether_the_connection_goes_on_after_an_answer_of_ours(
    lines: list[bytes], start: bytes, connection: list[bytes], ends: bool
) -> None:
    """spec 4.8: our own answers keep the connection where the request has arrived whole and the client can tell."""
    rig = Rig(open=lambda client, head: _Answering(client))
    client = rig.connect()

    client.send(request(*lines, start=start))

    assert read_response(client.got).values(b"connection") == connection
    assert client.half_closed is ends


def test_head_gets_no_body() -> None:
    """spec 4.8, H12: an answer to HEAD has the fields of the one to GET, and no body."""
    rig = Rig(open=lambda client, head: _Answering(client))
    client = rig.connect()

    client.send(request(start=b"GET /v1/x HTTP/1.1") + request(start=b"HEAD /v1/x HTTP/1.1"))

    first = read_response(client.got)
    second = read_response(first.rest, method=b"HEAD")
    assert (second.fields, second.body, second.rest) == (first.fields, b"", b"")


@pytest.mark.parametrize(
    ("peer", "expected"), [(("2001:db8::1", 1), b"2001:db8::1"), (("192.0.2.7", 1), b"192.0.2.7"), (None, b"unknown")]
)
def test_the_clients_address(rig: Rig, peer: tuple[str, int] | None, expected: bytes) -> None:
    """spec 4.2: X-Forwarded-For holds the address the client's connection comes from."""
    _, upstream = rig.ask(request(), rig.connect(peer=peer))

    (seen,), _ = read_requests(upstream.got)
    assert seen.values(b"x-forwarded-for") == [expected]


class _Answering:
    """A handler that answers at once."""

    due = float("inf")

    def __init__(self, client: ClientConnection) -> None:
        self._client = client

    def begin(self, piece: bytes | memoryview, *, complete: bool) -> None:
        self._client.answer(document({"status": "ok"}))

    def body(self, piece: bytes | memoryview, *, complete: bool) -> None:
        raise AssertionError

    def body_failed(self, answer: Answer) -> None:
        raise AssertionError

    def client_full(self, *, full: bool) -> None:
        raise AssertionError

    def client_left(self) -> None:
        raise AssertionError

    expire = client_left
