"""Replica bytes: the client gets the answer that an independent parser finds in them, or can tell that it is cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import h11
from tests.support.rig import Rig

from fuzz.messages import SCRAPS, end_to_end, responses
from fuzz.target import Target, choices, pieces

if TYPE_CHECKING:
    from tests.support.witness import Fields

_REQUESTS = {
    b"POST": b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    b"GET": b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD": b"HEAD /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST 1.0": b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
    b"GET 1.0 kept": b"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
}
_REPLACED = {b"x-session-id", b"x-request-id", b"x-router-replica", b"x-router-placement", b"x-accel-buffering"}


@dataclass
class _Seen:
    """What can be read of an answer: as far as it goes, and whether it is whole or broken."""

    status: int = 0
    fields: Fields = field(default_factory=list)
    interim: list[int] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False
    broken: bool = False
    rest: bytes = b""


def check(data: bytes) -> None:
    """Ask for something, and let the replica answer with `data` and end in some way."""
    choose = choices(data)
    kind = choose.choice(list(_REQUESTS))
    method = kind.partition(b" ")[0]
    rig = Rig()
    client = rig.connect()
    client.send(_REQUESTS[kind])
    rig.turns.run()
    (replica,) = rig.upstreams
    for piece in pieces(data, choose):
        replica.send(piece)
        rig.turns.run()
    ending = choose.choice(["fin", "reset", "hang"])
    if not replica.lost:
        if ending == "fin":
            replica.end()
        elif ending == "reset":
            replica.reset()
        rig.turns.run()
    rig.pass_time(3601)  # the request's time
    rig.check()
    assert rig.replicas[0].outstanding == 0, "a lease is left"
    assert client.got, "the client has no answer"

    closed = client.ended in ("fin", "cut") or client.half_closed
    seen = _read(client.got, method, ended=closed)
    found = _read(data, method, ended=ending == "fin")
    if seen.status in (502, 504) and b'"object": "error"' in seen.body.replace(b'":"', b'": "'):
        assert seen.whole
        assert not found.whole or not _plain(data), f"a good answer was refused: {data!r}"
        return
    if seen.status in (502, 504) and method == b"HEAD":
        return
    assert seen.status == found.status, (seen, found)
    assert found.body.startswith(seen.body), f"{seen.body!r} instead of {found.body!r}"
    if seen.whole:
        assert found.whole, f"a cut answer looks whole: {data!r}"
        assert seen.body == found.body
        assert seen.rest == b"", f"something follows the answer: {seen.rest!r}"
    else:
        assert client.ended or client.half_closed, "an unfinished answer, and the connection goes on"
    if kind != b"POST 1.0" and kind != b"GET 1.0 kept":
        assert [status for status in found.interim if status != 100] == seen.interim
    _compare(found, seen)
    _next(rig, data, found)


def _next(rig: Rig, data: bytes, found: _Seen) -> None:
    """A connection is used again only if nothing but one whole answer came on it."""
    client, upstream = rig.ask(_REQUESTS[b"GET"])
    if upstream is rig.upstreams[0]:
        assert found.whole, f"used again after {data!r}"
        assert found.rest == b"", f"used again after {data!r}"
    client.reset()
    rig.check()


def _compare(found: _Seen, seen: _Seen) -> None:
    wanted = end_to_end(found.fields, _REPLACED | ({b"content-length"} if found.status == 204 else set()))
    arrived = [
        (name, value)
        for name, value in seen.fields
        if name not in {*_REPLACED, b"connection", b"keep-alive", b"transfer-encoding"}
    ]
    assert arrived == wanted, f"{arrived} instead of {wanted}"


def _plain(data: bytes) -> bool:
    """Tell whether an answer has nothing that the router may refuse and h11 does not."""
    return data.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")


def _read(data: bytes, method: bytes, *, ended: bool) -> _Seen:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    connection.send(h11.Request(method=method, target=b"/", headers=[(b"Host", b"x")]))
    connection.send(h11.EndOfMessage())
    seen = _Seen()
    if data:
        connection.receive_data(data)
    try:
        if ended:
            connection.receive_data(b"")
        while True:
            event = connection.next_event()
            if isinstance(event, h11.InformationalResponse):
                seen.interim.append(event.status_code)
            elif isinstance(event, h11.Response):
                seen.status = event.status_code
                seen.fields = [(bytes(name), bytes(value)) for name, value in event.headers]
            elif isinstance(event, h11.Data):
                seen.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                seen.whole = True
                seen.rest = bytes(connection.trailing_data[0])
                return seen
            else:
                return seen
    except h11.RemoteProtocolError:
        seen.broken = True
        return seen


TARGET = Target("replica", responses(), SCRAPS, check)
