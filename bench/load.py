"""The load generator: keep-alive requests over bare asyncio protocols, in a closed or an open loop.

Closed loop: each connection sends its next request once the answer to the last one is complete. Open loop (`rate`):
requests start on a fixed timetable, spread over the connections; late ones start at once.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.client import Client
from bench.script import Script
from bench.tally import Report, Tally
from bench.wire import Session, conversation

_now = time.monotonic_ns


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
            Client(
                self,
                conversation(i, script=script, body_bytes=load.body_bytes, session=load.session),
            )
            for i in range(load.connections)
        ]

    # --- what clients report --------------------------------------------------------------------

    def answered(self, client: Client) -> None:
        if not self._load.rate and self._more():
            client.send()
        else:
            self._look_for_the_end()

    def opened(self) -> None:
        self.tally.opened += 1
        if self.tally.opened == self._load.connections:
            self._all_open.set()

    def lost(self, client: Client) -> None:
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

    async def _connect(self, client: Client) -> None:
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", self._load.port)

    async def _reconnect(self, client: Client) -> None:
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
