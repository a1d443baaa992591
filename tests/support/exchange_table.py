"""Byte-exact exchanges: how one is written down, how it is run, and how what happened is made comparable.

What differs from run to run is replaced: the replica's address by `replica:1`, ids the router made by `<1>`, `<2>`, in
the order in which they appear (first in what the replica got, then in what the client got), the length and the body of
the router's own errors by `<n>` and the error's code in angle brackets.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tests.support.rig import Rig
from tests.support.upstream import OK, then_close, then_reset
from tests.support.waiting import wait_until
from tests.support.wire import Ended, Wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support import rig as rigs
    from tests.support.router import Router
    from tests.support.upstream import RawUpstream, Script

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_LONG: Final = 72  # characters of a piece that are worth reading


@dataclass(frozen=True, slots=True)
class Await:
    """A step of a client: wait until it has got these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What a replica answers to one request, and what it does then."""

    data: bytes
    then: Literal["stay", "fin", "rst"] = "stay"


@dataclass(frozen=True, slots=True)
class Case:
    """One exchange, or several on one connection.

    `name` says what is special; `cites` is the section of RFC 9110 or 9112 it comes from, or its class of smuggling.
    `client` is what the client does; `replies` are the replica's, one for each request that reaches it. Then what must
    come of it: the bytes that reach the replica and the client, whether the client's connection is `open`, ended with
    `fin` or `rst`, and whether the connection to the replica is `kept`, `closed`, or was never used.
    """

    name: str
    cites: str
    client: bytes | Sequence[bytes | Await]
    replies: bytes | Sequence[bytes | Reply] = ()
    forwarded: bytes = b""
    answered: bytes = b""
    ending: Literal["open", "fin", "rst"] = "open"
    replica: Literal["kept", "closed", "unused"] = "unused"

    @property
    def steps(self) -> Sequence[bytes | Await]:
        """What the client does, step by step."""
        return [self.client] if isinstance(self.client, bytes) else self.client

    @property
    def script(self) -> list[Reply]:
        """What the replica does, request by request."""
        replies = [self.replies] if isinstance(self.replies, bytes) else self.replies
        return [reply if isinstance(reply, Reply) else Reply(reply) for reply in replies]

    @property
    def expected(self) -> Observed:
        """What must come of it."""
        return Observed(self.forwarded, self.answered, self.ending, self.replica)


@dataclass
class Observed:
    """What came of an exchange, made comparable."""

    forwarded: bytes
    answered: bytes
    ending: str
    replica: str


def quoted(wire: bytes) -> str:
    """Write a piece of what is on the wire into a name, as Markdown marks it."""
    text = wire.decode("latin-1").encode("unicode_escape").decode()
    text = text.replace("`", r"\x60").replace("|", r"\x7c")  # which mean something to Markdown, in a table
    return f"`{text}`" if len(text) <= _LONG else f"`{text[:_LONG]}…`"


def to_replica(
    start: bytes, *lines: bytes, body: bytes = b"", request: bytes | None = b"<1>", host: bytes = b"router"
) -> bytes:
    """Write what a replica gets: `lines` are those of the client's that cross, then come the router's own.

    `request` is the request's id if the router made it, `host` what the client asked for.
    """
    return b"\r\n".join(
        [
            start,
            b"Host: replica:1",
            *lines,
            b"X-Forwarded-For: 127.0.0.1",
            b"X-Forwarded-Proto: http",
            *([b"X-Forwarded-Host: " + host] if host else []),
            *([b"X-Request-Id: " + request] if request else []),
            b"",
            body,
        ]
    )


def to_client(
    start: bytes, *lines: bytes, body: bytes = b"", session: bytes | None = b"<2>", request: bytes | None = b"<1>",
    last: Sequence[bytes] = (), placement: bytes = b"new",
) -> bytes:  # fmt: skip
    """Write what a client gets: `lines` are those of the replica's that cross, then come the router's, `last` last."""
    return b"\r\n".join(
        [
            start,
            *lines,
            *_added(session, request, placement),
            *last,
            b"",
            body,
        ]
    )


def error(
    status: bytes, code: bytes, *, session: bytes | None = None, request: bytes | None = None,
    placement: bytes | None = None, close: bool = True, head: bool = False, extra: Sequence[bytes] = (),
) -> bytes:  # fmt: skip
    """Write an error of the router's own: no `request` where none could be read, `placement` if one was placed."""
    return b"\r\n".join(
        [
            b"HTTP/1.1 " + status,
            b"Content-Length: <n>",
            b"Content-Type: application/json",
            *extra,
            *([b"Connection: close"] if close else []),
            *_added(session, request, placement),
            b"",
            b"" if head else b"<" + code + b">",
        ]
    )


def _added(session: bytes | None, request: bytes | None, placement: bytes | None) -> list[bytes]:
    """Write the lines that are the router's own in every answer."""
    return [
        *([b"X-Session-Id: " + session] if session else []),
        *([b"X-Request-Id: " + request] if request else []),
        *([b"X-Router-Replica: r1", b"X-Router-Placement: " + placement] if placement else []),
    ]


# --- running --------------------------------------------------------------------------------


def run_on_rig(case: Case) -> Observed:
    """Run an exchange on recording transports."""
    rig = Rig()
    client = rig.connect(peer=("127.0.0.1", 50000))
    replies = case.script
    served: dict[rigs.Wire, int] = {}
    for step in case.steps:
        if isinstance(step, Await):
            assert step.data in client.got, client.got
            continue
        client.send(step)
        rig.turns.run()
        while replies and (wire := _next_request(rig, served)) is not None:
            reply = replies.pop(0)
            wire.send(reply.data)
            rig.turns.run()
            if reply.then == "fin":
                wire.end()
            elif reply.then == "rst":
                wire.reset()
            rig.turns.run()
    rig.check()
    used = [wire for wire in rig.upstreams if wire.got]
    replica = "unused" if not used else "closed" if used[-1].lost else "kept"
    ending = client.ended or ("fin" if client.half_closed else "open")
    return _comparable(b"".join(wire.got for wire in used), client.got, ending, replica, b"127.0.0.1:8001")


def _next_request(rig: Rig, served: dict[rigs.Wire, int]) -> rigs.Wire | None:
    for wire in rig.upstreams:
        if not wire.lost and _count_requests(wire.got) > served.get(wire, 0):
            served[wire] = served.get(wire, 0) + 1
            return wire
    return None


def _count_requests(data: bytes) -> int:
    """Count the whole requests in what a replica got."""
    count = 0
    while (end := data.find(b"\r\n\r\n")) >= 0:
        head, data = data[: end + 4], data[end + 4 :]
        if re.search(rb"(?i)\r\ntransfer-encoding:", head):
            last = re.match(rb"(?s)(?:([0-9A-Fa-f]+)(?:;[^\r]*)?\r\n.*?\r\n)*?0+(?:;[^\r]*)?\r\n\r\n", data)
            if last is None:
                return count
            data = data[last.end() :]
        else:
            length = re.search(rb"(?i)\r\ncontent-length:[ \t]*([0-9]+)", head)
            size = int(length[1]) if length else 0
            if len(data) < size:
                return count
            data = data[size:]
        count += 1
    return count


class Bench:
    """A real router before a byte-exact replica, both used for one exchange after another."""

    def __init__(self, router: Router, upstream: RawUpstream) -> None:
        self._router = router
        self._upstream = upstream

    def run(self, case: Case) -> Observed:
        """Run an exchange over sockets."""
        self._router.wait_ready(1)  # the exchange before may have been the replica's fault
        upstream = self._upstream
        upstream.requests.clear()
        upstream.scripts = [*map(_script, case.script), OK]
        before = {id(wire): len(wire.received) for wire in upstream.connections}
        with Wire.connect(self._router.url, timeout=5.0) as client:
            for step in case.steps:
                if isinstance(step, Await):
                    client.read_until(step.data)
                else:
                    client.send(step)
            answered = self._read(client, case)
        used = [
            wire
            for wire in list(upstream.connections)
            if len(wire.received) > before.get(id(wire), 0) and not wire.received.startswith(b"GET /health ")
        ]
        forwarded = b"".join(bytes(wire.received[before.get(id(wire), 0) :]) for wire in used)
        replica = "unused" if not used else "kept" if self._is_kept(used[-1]) else "closed"
        return _comparable(forwarded, answered, client.ending or "open", replica, f"127.0.0.1:{upstream.port}".encode())

    def _read(self, client: Wire, case: Case) -> bytes:
        """Read all that the router says; where its connection stays open, by asking for one thing more behind it."""
        if case.ending != "open":
            client.read_to_end()
            return bytes(client.received)
        client.send(b"GET /no-such-path HTTP/1.1\r\nHost: router\r\n\r\n")
        with suppress(Ended):
            client.read_until(b'"not_found"')
            client.read_until(b"}\n")
            return bytes(client.received).rpartition(b"HTTP/1.1 404 ")[0]
        return bytes(client.received)

    def _is_kept(self, wire: Wire) -> bool:
        """Tell whether the next request goes out on the same connection."""
        length = len(wire.received)
        with Wire.connect(self._router.url) as client:
            client.send(b"GET /v1/next HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n")
            client.read_to_end()
        kept = bytes(wire.received[length:]).startswith(b"GET /v1/next")
        if not kept:
            wait_until(lambda: wire.closed or wire.ending, what="the end of the replica's connection")
        return kept


def _script(reply: Reply) -> Script:
    if reply.then == "fin":
        return then_close(reply.data)
    return then_reset(reply.data) if reply.then == "rst" else reply.data


# --- comparing ------------------------------------------------------------------------------

_ID = re.compile(rb"\b[0-9a-f]{32}\b")
_ERROR = re.compile(rb'(Content-Length: )([0-9]+)((?:\r\n[^\r\n]+)*\r\n\r\n)(\{"error":.*?\}\n)?', re.DOTALL)


def _comparable(forwarded: bytes, answered: bytes, ending: str, replica: str, authority: bytes) -> Observed:
    ids: dict[bytes, bytes] = {}
    for found in _ID.findall(forwarded + answered):
        ids.setdefault(found, b"<%d>" % (len(ids) + 1))
    forwarded, answered = (_ID.sub(lambda match: ids[match[0]], data) for data in (forwarded, answered))
    return Observed(forwarded.replace(authority, b"replica:1"), _ERROR.sub(_shorten, answered), ending, replica)


def _shorten(found: re.Match[bytes]) -> bytes:
    """Replace an error's text by its code; its length must be right, and its document as every client knows it."""
    name, length, rest, body = found.groups()
    if body is None:
        return b"".join([name, length, rest])
    assert len(body) == int(length), found[0]
    document = json.loads(body)
    assert set(document) == {"error", "object", "message"}
    assert document["object"] == "error"
    assert document["error"].keys() == {"message", "type", "param", "code"}
    assert document["error"]["message"] == document["message"]
    return b"".join([name, b"<n>", rest, b"<%b>" % document["error"]["code"].encode()])
