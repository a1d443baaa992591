"""Client bytes: what arrives at a replica is what an independent parser finds in them, in order, or nothing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, cast

import h11
from hypothesis import strategies as st
from tests.support.rig import Rig
from tests.support.witness import SeenRequest, read_requests, read_response

from fuzz.messages import SCRAPS, end_to_end, requests
from fuzz.target import Target, choices, pieces

if TYPE_CHECKING:
    import random

    from tests.support.rig import Wire

    from pypto_serving_router.proxy.upstream import UpstreamConnection

_ADDED = {b"host", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-request-id", b"expect"}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ERRORS = {400, 408, 413, 431, 501, 502, 504}


class _Replica:
    """Plays every replica: keeps what each exchange brought, and answers what has arrived whole."""

    def __init__(self, rig: Rig, choose: random.Random) -> None:
        self._rig = rig
        self._choose = choose
        self._at_hand: dict[int, int] = {}  # by connection: which of the exchanges it serves
        self.got: list[bytes] = []

    def step(self, *, early: bool) -> bool:
        """Take what has come, and answer; tell whether there was anything to answer."""
        self._rig.turns.run()
        answered = False
        for wire in list(self._rig.upstreams):
            data = wire.take()
            key = id(wire)
            if data and key not in self._at_hand:
                self._at_hand[key] = len(self.got)
                self.got.append(b"")
            if key not in self._at_hand:
                continue
            number = self._at_hand[key]
            self.got[number] += data
            exchange = cast("UpstreamConnection", wire.protocol).exchange
            if exchange is None or wire.lost:
                continue
            found, _ = read_requests(self.got[number])
            if found and (found[0].whole or early):
                del self._at_hand[key]
                wire.send(self._answer(found[0].method, number))
                answered = True
        self._rig.turns.run()
        return answered

    def _answer(self, method: bytes, number: int) -> bytes:
        body = b"answer %d" % number
        if self._choose.random() < 0.5:
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
            return head if method == b"HEAD" else head + body
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        return head if method == b"HEAD" else head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def check(data: bytes) -> None:
    """Let a client send `data` and leave, while a replica answers what it can read."""
    choose = choices(data)
    rig = Rig(replicas=2)
    replica = _Replica(rig, choose)
    client = rig.connect()
    for piece in pieces(data, choose):
        client.send(piece)
        if choose.random() < 0.8:
            replica.step(early=choose.random() < 0.05)
    while replica.step(early=False):
        pass
    answers, closed = client.got, client.ended is not None or client.half_closed
    _leave(rig, client, choose)
    rig.check()
    if client.lost:
        assert [one.outstanding for one in rig.replicas] == [0, 0], "a lease is left"
    sent, _ = read_requests(data)
    for number, got in enumerate(replica.got):
        found, readable = read_requests(got)
        assert readable, f"what the replica got is not HTTP: {got!r}"
        assert len(found) <= 1, f"one request has become several: {got!r}"
        assert number < len(sent), f"the replica got what the client has not sent: {got!r}"
        if found:
            _compare(sent[number], found[0])
    _read_answers(answers, sent, len(replica.got), closed=closed)


def _leave(rig: Rig, client: Wire, choose: random.Random) -> None:
    way = choose.choice(["fin", "reset", "stays"])
    if way == "stays":
        for seconds in (16, 31, 3700, 80, 10):
            rig.pass_time(seconds)
        assert client.lost, "a silent client is kept for ever"
    elif not client.lost:
        if way == "fin":
            client.end()
        else:
            client.reset()
        rig.turns.run()
        rig.pass_time(100)


def _compare(sent: SeenRequest, got: SeenRequest) -> None:
    assert got.method == sent.method
    assert got.target == _origin_form(sent.target), (sent.target, got.target)
    assert len(got.values(b"host")) == 1
    if got.whole:
        assert sent.whole, "a cut request became a whole one"
        assert got.body == sent.body
    else:
        assert sent.body.startswith(got.body)
    wanted = end_to_end(sent.fields, _ADDED)
    arrived = [(name, value) for name, value in got.fields if name not in {*_ADDED, b"transfer-encoding"}]
    assert arrived == wanted, f"{arrived} instead of {wanted}"


def _origin_form(target: bytes) -> bytes:
    if not re.match(rb"https?://", target, re.IGNORECASE):
        return target
    rest = re.sub(rb"^[^:]+://[^/?]*", b"", target)
    return rest if rest.startswith(b"/") else b"/" + rest


def _read_answers(data: bytes, sent: list[SeenRequest], routed: int, *, closed: bool) -> None:
    """The n-th answer is to the n-th request, or is an error of the router's."""
    number = 0
    while data and data != _CONTINUE:
        method = sent[number].method if number < len(sent) else b"GET"
        try:
            seen = read_response(data, method=method, ended=closed)
        except h11.RemoteProtocolError as error:
            raise AssertionError(f"the client got what is no answer: {data!r}") from error
        if seen.status == 200:
            assert number < routed
            assert method == b"HEAD" or seen.body == b"answer %d" % number, f"answer {seen.body!r} to request {number}"
        else:
            assert seen.status in _ERRORS, seen.status
            assert method == b"HEAD" or "error" in json.loads(seen.body)
        assert seen.whole
        data = seen.rest
        number += 1
        if seen.status != 200 and b"close" in seen.values(b"connection"):
            return


TARGET = Target("client", st.lists(requests(), min_size=1, max_size=3).map(b"".join), SCRAPS, check)
