"""One connection of the load generator: sends its request, reads the answer, notes what it saw."""

import asyncio
import time
from enum import IntEnum
from typing import Protocol, cast

from bench.tally import Tally

_now = time.monotonic_ns
_LAST_CHUNK = b"0\r\n\r\n"


class Run(Protocol):
    """The run that a client belongs to."""

    tally: Tally
    expected: int
    """Events of a whole stream, its end included; 0: any number is right."""
    closing: bool
    """The run is over, and lost connections are no loss."""

    def opened(self) -> None:
        """Hear of a stream's first event."""

    def answered(self, client: "Client") -> None:
        """Hear of an answer's end."""

    def lost(self, client: "Client") -> None:
        """Hear of a connection's end."""


class _Reading(IntEnum):
    """Where a client is in an answer."""

    HEAD = 0
    LENGTH = 1
    CHUNKS = 2
    TO_THE_END = 3


class Client(asyncio.Protocol):
    """One connection, and the request it repeats."""

    __slots__ = (
        "_begun",
        "_buffer",
        "_events",
        "_last_event",
        "_left",
        "_reading",
        "_run",
        "_seen",
        "_tail",
        "busy",
        "request",
        "transport",
    )
    transport: asyncio.Transport

    def __init__(self, run: Run, request: bytes) -> None:
        self._run = run
        self.request = request
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        if self.transport.is_closing():
            return  # closed before its first request; `lost` has dealt with it
        self._run.tally.started += 1
        self._buffer = b""
        self._tail = b""
        self._reading = _Reading.HEAD
        self._left = -1
        self._events = 0
        self._last_event = 0
        self._seen = False
        self.busy = True
        self._begun = _now()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = _now()
        if self._reading is _Reading.HEAD:
            rest = self._head(data)
            if not rest and self._left != 0:
                return
            data = rest
        if data and not self._seen:
            self._seen = True
            self._run.tally.first_byte.append(now - self._begun)
        if self._reading is _Reading.LENGTH:
            self._left -= len(data)
            if self._left <= 0:
                self._done(now)
        else:
            self._stream(data, now)

    def _head(self, data: bytes) -> bytes:
        """Take the answer's head from the data; return what follows it."""
        tally = self._run.tally
        buffer = self._buffer + data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            self._buffer = buffer
            return b""
        self._buffer = b""
        head = buffer[:end].lower()
        if not head.startswith(b"http/1.1 200"):
            tally.refused += 1
            tally.errors.add(buffer[:200].decode("latin1"))
        if b"\r\nx-session-id:" not in head:
            tally.anonymous += 1
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            stop = head.find(b"\r\n", at + 2)
            self._left = int(head[at + 17 : stop if stop >= 0 else len(head)])
            self._reading = _Reading.LENGTH
        elif b"\r\ntransfer-encoding:" in head:
            self._reading = _Reading.CHUNKS
        else:
            self._reading = _Reading.TO_THE_END
        return buffer[end + 4 :]

    def _stream(self, data: bytes, now: int) -> None:
        """Count the events in a piece of a stream, and find its end."""
        run = self._run
        joined = self._tail + data
        new = joined.count(b"\n\n") - self._tail.count(b"\n\n")
        if new:
            tally = run.tally
            at = data.find(b'"t":')
            if at >= 0 and (stamp := data[at + 4 : at + 23]).isdigit():
                tally.relay.append(now - int(stamp))
            if self._last_event:
                tally.gap.append(now - self._last_event)
            self._last_event = now
            tally.reads += 1
            if not self._events:
                run.opened()
            self._events += new
        if joined.endswith(_LAST_CHUNK) and self._reading is _Reading.CHUNKS:
            self._done(now)
        else:
            self._tail = joined[-4:]

    def _done(self, now: int) -> None:
        tally = self._run.tally
        self.busy = False
        tally.answered += 1
        tally.latency.append(now - self._begun)
        tally.events += self._events
        if self._run.expected and self._events != self._run.expected:
            tally.short += 1
        self._run.answered(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._run.closing:
            return
        tally = self._run.tally
        if self.busy:
            self.busy = False
            tally.broken += 1
            tally.answered += 1
            tally.events += self._events
            tally.errors.add(repr(exc))
        tally.lost += 1
        self._run.lost(self)
