"""Requests the router answers itself: read whole, bounded, carried out even if the client leaves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.rig import Gate, Rig, Wire
from tests.support.scripts import request
from tests.support.witness import read_response

from pypto_serving_router.core.answer import Answer, document
from pypto_serving_router.proxy.local import MAX_BODY, LocalCall

if TYPE_CHECKING:
    from pypto_serving_router.core.head import RequestHead
    from pypto_serving_router.proxy.client import ClientConnection

ASKED = request(start=b"GET /health HTTP/1.1")
CHUNKED = request(b"Transfer-Encoding: chunked")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Desk:
    """A rig whose requests are all answered by the router; `gate` holds the answers back until it is opened."""

    def __init__(self, *, held: bool = False) -> None:
        self.rig = Rig(open=self._open)
        self.gate = Gate(self.rig.turns)
        self.served: list[tuple[bytes, bytes]] = []
        self.error: Exception | None = None
        if not held:
            self.gate.open()

    def ask(self, *pieces: bytes) -> Wire:
        """Send pieces on a new connection."""
        client = self.rig.connect()
        for piece in pieces:
            client.send(piece)
            self.rig.turns.run()
        return client

    def _open(self, client: ClientConnection, head: RequestHead) -> LocalCall:
        return LocalCall(client, head, serve=self._serve, spawn=self.rig.turns.spawn)

    async def _serve(self, head: RequestHead, body: bytes) -> Answer:
        await self.gate
        self.served.append((head.target, body))
        if self.error is not None:
            raise self.error
        return document({"number": len(self.served)})


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (ASKED, b""),
        (request(start=b"POST /replicas HTTP/1.1", body=b'{"slot": "a"}'), b'{"slot": "a"}'),
        (
            request(b"Transfer-Encoding: chunked") + b'5\r\n{"slo\r\n8\r\nt": "a"}\r\n0\r\nA: b\r\n\r\n',
            b'{"slot": "a"}',
        ),
    ],
)
def test_the_body_is_read_whole(sent: bytes, body: bytes) -> None:
    """spec 6.3: wherever the bytes are cut, the call gets the target and the content."""
    target = sent.split(b" ")[1]
    for place in range(1, len(sent)):
        desk = Desk()
        client = desk.ask(sent[:place], sent[place:])
        assert desk.served == [(target, body)]
        assert json.loads(read_response(client.got).body) == {"number": 1}
        desk.rig.check()


def test_calls_are_answered_in_order() -> None:
    """spec 4.8: pipelined calls are served one after the other."""
    desk = Desk()
    client = desk.ask(ASKED * 3)

    rest = client.got
    for number in (1, 2, 3):
        seen = read_response(rest)
        assert json.loads(seen.body) == {"number": number}
        rest = seen.rest
    assert rest == b""


@pytest.mark.parametrize(
    "pieces",
    [
        [request(b"Content-Length: %d" % (MAX_BODY + 1))],
        [request(body=b"x" * (MAX_BODY + 1))],
        [request(b"Expect: 100-continue", b"Content-Length: %d" % (MAX_BODY + 1))],
        [request(b"Transfer-Encoding: chunked"), b"fffff\r\n" + b"x" * MAX_BODY, b"x"],
    ],
)
def test_a_body_that_is_too_large(pieces: list[bytes]) -> None:
    """spec 4.7: what the router's own endpoints take is short; 413 for more, and nothing is carried out."""
    desk = Desk()
    client = desk.ask(*pieces)

    assert read_response(client.got).status == 413
    assert read_response(client.got).interim == []
    assert desk.served == []


def test_the_largest_body() -> None:
    """spec 4.7: 64 KiB pass."""
    desk = Desk()

    client = desk.ask(request(body=b"x" * MAX_BODY))

    assert read_response(client.got).status == 200


def test_a_client_that_waits_is_told_to_go_on() -> None:
    """spec 4.3: `Expect: 100-continue` is answered here, too."""
    desk = Desk()
    client = desk.ask(request(b"Expect: 100-continue", b"Content-Length: 2"))
    assert client.take() == CONTINUE

    client.send(b"{}")
    desk.rig.turns.run()

    assert (read_response(client.got).status, desk.served[0][1]) == (200, b"{}")


def test_a_body_that_stops_coming() -> None:
    """spec 4.10: 408 after 30 s without a byte, and nothing is carried out."""
    desk = Desk()
    client = desk.ask(request(b"Content-Length: 2"), b"{")

    desk.rig.pass_time(30.1)

    assert (read_response(client.got).status, desk.served) == (408, [])


def test_a_malformed_body() -> None:
    """spec 4.8: what is no chunk is refused, in the first read and later."""
    for pieces in (
        [request(b"Transfer-Encoding: chunked") + b"x\r\n"],
        [request(b"Transfer-Encoding: chunked"), b"x\r\n"],
    ):
        desk = Desk()
        client = desk.ask(*pieces)
        assert (read_response(client.got).status, desk.served) == (400, [])


@pytest.mark.parametrize("how", [Wire.end, Wire.reset])
def test_a_call_outlives_its_client(how: object) -> None:
    """spec 6.4: what was asked for is carried out although nobody waits for the answer any more."""
    desk = Desk(held=True)
    client = desk.ask(ASKED)

    how(client)  # type: ignore[operator] # one of Wire's two
    desk.rig.turns.run()
    assert (client.lost, desk.served) == (True, [])
    desk.gate.open()
    desk.rig.turns.run()

    assert desk.served == [(b"/health", b"")]


def test_a_call_takes_as_long_as_it_takes() -> None:
    """spec 6.4: a drain may be awaited for longer than any other deadline."""
    desk = Desk(held=True)
    client = desk.ask(ASKED)

    desk.rig.pass_time(100_000)
    desk.gate.open()
    desk.rig.turns.run()

    assert read_response(client.got).status == 200


def test_a_fault_of_the_routers_own() -> None:
    """spec 4.7: a call that fails answers 500, and its error is not hidden."""
    desk = Desk(held=True)
    desk.error = ZeroDivisionError()
    client = desk.ask(ASKED)

    desk.gate.open()
    with pytest.raises(ZeroDivisionError):
        desk.rig.turns.run()

    assert read_response(client.got).status == 500


def test_a_slow_reader_of_a_long_answer() -> None:
    """spec 4.4: an answer that does not fit is taken when the client takes it; nothing else is held back."""
    desk = Desk(held=True)
    client = desk.ask(ASKED)
    client.stalled = True
    desk.gate.open()
    desk.rig.turns.run()
    client.protocol.pause_writing()
    client.protocol.resume_writing()

    client.drain()

    assert read_response(client.got).status == 200
