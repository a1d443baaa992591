"""The load generator: keep-alive requests over bare asyncio protocols, in a closed or an open loop.

Closed loop: each connection sends its next request once the answer to the last one is complete. Open loop (`rate`):
requests start on a fixed timetable, spread over the connections; late ones start at once.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import cast

from bench.script import Script
from bench.wire import Session, conversation

_now = time.monotonic_ns
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Spread:
    """A sample of durations, in milliseconds."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float


def spread(nanoseconds: Sequence[int]) -> Spread:
    """Return the percentiles of a sample; of an empty one, zeros."""
    ordered = sorted(nanoseconds)
    if not ordered:
        return Spread(0, 0.0, 0.0, 0.0, 0.0)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6

    return Spread(len(ordered), at(0.5), at(0.9), at(0.99), ordered[-1] / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send. It ends after `seconds`, or where that is 0 after `requests`."""

    port: int
    script: Script
    connections: int = 32
    requests: int = 10_000
    seconds: float = 0.0
    rate: float = 0.0
    """Requests per second of an open loop; 0: closed loop."""
    ramp: float = 0.0
    """Spread the first requests of a closed loop over this many seconds."""
    timeout: float = 60.0
    body_bytes: int = 2048
    session: Session = "header"


@dataclass(frozen=True, slots=True)
class Report:
    """What came back."""

    seconds: float
    requests: int
    opened: int
    """Streams held open (only of `hold_streams`)."""
    events: int
    reads: int
    """Reads that carried events; fewer than events means that events came merged."""
    latency: Spread
    first_byte: Spread
    gap: Spread
    relay: Spread
    short: int
    """Streams that ended without their number of events."""
    broken: int
    """Connections that were lost during an answer."""
    refused: int
    """Answers other than 200."""
    anonymous: int
    """Answers without a session id."""
    errors: tuple[str, ...]

    @property
    def bad(self) -> int:
        """Answers that were not what they should be; any voids the figures."""
        return self.short + self.broken + self.refused + len(self.errors)

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Tally:
    """What the clients of one run note down."""

    started: int = 0
    answered: int = 0
    opened: int = 0
    events: int = 0
    reads: int = 0
    short: int = 0
    broken: int = 0
    lost: int = 0
    refused: int = 0
    anonymous: int = 0
    latency: list[int] = field(default_factory=list)
    first_byte: list[int] = field(default_factory=list)
    gap: list[int] = field(default_factory=list)
    relay: list[int] = field(default_factory=list)
    errors: set[str] = field(default_factory=set)

    def report(self, seconds: float) -> Report:
        return Report(
            seconds=seconds,
            requests=self.answered,
            opened=self.opened,
            events=self.events,
            reads=self.reads,
            latency=spread(self.latency),
            first_byte=spread(self.first_byte),
            gap=spread(self.gap),
            relay=spread(self.relay),
            short=self.short,
            broken=self.broken,
            refused=self.refused,
            anonymous=self.anonymous,
            errors=tuple(sorted(self.errors)[:5]),
        )


class _Reading(IntEnum):
    """Where a client is in an answer."""

    HEAD = 0
    LENGTH = 1
    CHUNKS = 2
    TO_THE_END = 3


class _Client(asyncio.Protocol):
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

    def __init__(self, run: "_Run", request: bytes) -> None:
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


class _Run:
    """One run of a load."""

    def __init__(self, load: Load) -> None:
        self.tally = Tally()
        self.closing = False
        script = load.script
        whole = script.stream and script.die < 0 and not script.hold
        self.expected = script.events + 1 if whole else 0
        self._load = load
        self._stop_at = 0
        self._finished = asyncio.Event()
        self._all_open = asyncio.Event()
        self._reconnecting: set[asyncio.Task[None]] = set()
        self._clients = [
            _Client(
                self,
                conversation(i, script=script, body_bytes=load.body_bytes, session=load.session),
            )
            for i in range(load.connections)
        ]

    # --- what clients report --------------------------------------------------------------------

    def answered(self, client: _Client) -> None:
        if not self._load.rate and self._more():
            client.send()
        else:
            self._look_for_the_end()

    def opened(self) -> None:
        self.tally.opened += 1
        if self.tally.opened == self._load.connections:
            self._all_open.set()

    def lost(self, client: _Client) -> None:
        # A proxy that drops every connection must not keep us reconnecting for ever.
        if not self._load.rate and not self._load.script.hold and self._more() and self.tally.lost < 5000:
            task = asyncio.ensure_future(self._reconnect(client))
            self._reconnecting.add(task)
            task.add_done_callback(self._reconnecting.discard)
        else:
            self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        if self.tally.answered >= self.tally.started and not self._more():
            self._finished.set()

    def _more(self) -> bool:
        if self._stop_at:
            return _now() < self._stop_at
        return self.tally.started < self._load.requests

    # --- the run --------------------------------------------------------------------------------

    async def _connect(self, client: _Client) -> None:
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", self._load.port)

    async def _reconnect(self, client: _Client) -> None:
        try:
            await self._connect(client)
        except OSError as exc:
            self.tally.errors.add(repr(exc))
            return
        if self._more():
            client.send()

    async def connect(self) -> None:
        for start in range(0, len(self._clients), 100):
            await asyncio.gather(*map(self._connect, self._clients[start : start + 100]))

    async def go(self) -> Report:
        begun = _now()
        if self._load.seconds:
            self._stop_at = begun + int(self._load.seconds * 1e9)
        if self._load.rate:
            await self._open_loop(begun)
        else:
            for client in self._clients:
                if self._more():
                    client.send()
                if self._load.ramp:
                    await asyncio.sleep(self._load.ramp / len(self._clients))
        await self._wait(self._finished)
        took = (_now() - begun) / 1e9
        self.leave()
        return self.tally.report(took)

    async def _open_loop(self, begun: int) -> None:
        sent = 0
        while self._more():
            due = begun + int(sent * 1e9 / self._load.rate)
            if (early := due - _now()) > 0:
                await asyncio.sleep(early / 1e9)
            turn = sent % len(self._clients)
            candidates = self._clients[turn:] + self._clients[:turn]
            free = next((c for c in candidates if not c.busy and not c.transport.is_closing()), None)
            if free is None:
                await asyncio.sleep(0.001)
                continue
            free.send()
            sent += 1
        self._look_for_the_end()

    async def hold(self, while_open: Callable[[Tally], Awaitable[None]]) -> Report:
        """Open every stream, wait for the first event of each, and leave all at once after `while_open`."""
        for number, client in enumerate(self._clients, 1):
            client.send()
            if number % 50 == 0:
                await asyncio.sleep(0.02)
        if not self.tally.lost:
            await self._wait(self._all_open)
        await while_open(self.tally)
        self.tally.broken = max(self.tally.broken, self._load.connections - self.tally.opened)
        self.leave()
        return self.tally.report(0.0)

    async def _wait(self, event: asyncio.Event) -> None:
        try:
            await asyncio.wait_for(event.wait(), self._load.timeout)
        except TimeoutError:
            self.tally.errors.add(f"not done after {self._load.timeout:.0f} s")

    def leave(self) -> None:
        self.closing = True
        for client in self._clients:
            with contextlib.suppress(AttributeError):  # one that never got connected
                client.transport.abort()


async def run_load(load: Load) -> Report:
    """Run the load and report it."""
    run = _Run(load)
    await run.connect()
    return await run.go()


async def hold_streams(load: Load, while_open: Callable[[Tally], Awaitable[None]]) -> Report:
    """Hold one stream open on every connection while `while_open` runs, which may look at the live counts."""
    run = _Run(load)
    await run.connect()
    return await run.hold(while_open)
