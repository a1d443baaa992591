"""Active health checks: each replica's `GET /health`, again and again.

One task a replica, so that no probe waits for another: it probes when it is added, then once an interval, and at once
when triggered; one that is loading every second, since its first success is what its clients wait for. The monitor
judges nothing; each result goes to `on_probe`.
"""

from __future__ import annotations

import asyncio
import errno
import math
import re
import ssl
from typing import TYPE_CHECKING, Final, cast

from pypto_serving_router.telemetry.tls import tls_trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypto_serving_router.core.balancer import Replica

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")

_LONGEST_HEAD: Final = 16 * 1024
"""Bytes: an answer to a health check whose head is longer is not taken for one."""

_GOLDEN: Final = 0.6180339887498949
"""Multiples of it, modulo one, fall evenly between those before: probes are spread whatever the number of replicas."""

_LOADING: Final = 1.0
"""Seconds between two probes of a replica that is loading; a refused connection costs next to nothing."""

_SAME: Final = 1e-6
"""Intervals by which two points in time may differ and be the same: sums of floats are not exact."""

_CALM: Final = 0.1
"""Intervals from one triggered probe to the next: failing requests must not turn into a storm of probes."""

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What a connect fails with for want of something on the router's side."""


class Monitor:
    """Probes replicas while `run` runs."""

    def __init__(
        self,
        *,
        interval: float,
        timeout: float,
        on_probe: Callable[[Replica, bool, int | None, float, str | None], None],
        on_fault: Callable[[Replica, Exception], None],
        is_loading: Callable[[Replica], bool] = lambda _: False,
    ) -> None:
        """Probe every `interval` seconds, allowing `timeout` seconds for connecting and answering together.

        `on_probe` is told of each probe: the replica, whether it is healthy (only a status of 200 is), the status
        if there was one, the seconds it took, and what was wrong. `on_fault` is told why a probe had no result: the
        router is short of descriptors or memory, or at fault itself, which says nothing about the replica.
        `is_loading` tells whether a replica has just been launched.
        """
        self._interval = interval
        self._timeout = timeout
        self._on_probe = on_probe
        self._on_fault = on_fault
        self._is_loading = is_loading
        self._watches: dict[Replica, _Watch] = {}
        self._added = 0
        self._tasks: asyncio.TaskGroup | None = None
        self._began = 0.0

    def __repr__(self) -> str:
        return f"<Monitor of {len(self._watches)} replicas>"

    def add(self, replica: Replica, tls: ssl.SSLContext | None = None) -> None:
        """Probe the replica from now on, over TLS if a context is given; its certificate must be for its host."""
        if replica in self._watches:
            return
        self._added += 1
        watch = self._watches[replica] = _Watch(replica, tls, self._added * _GOLDEN % 1.0)
        if self._tasks is not None:
            watch.task = self._tasks.create_task(self._watch(watch))

    def remove(self, replica: Replica) -> None:
        """Probe the replica no more; the result of a probe under way is dropped."""
        watch = self._watches.pop(replica, None)
        if watch is not None and watch.task is not None:
            watch.task.cancel()

    def trigger(self, replica: Replica) -> None:
        """Probe the replica at once; after a probe that is under way, since that may have missed what happened."""
        watch = self._watches.get(replica)
        if watch is not None:
            watch.triggered = True
            watch.woken.set()

    async def run(self) -> None:
        """Probe until cancelled."""
        self._began = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for watch in self._watches.values():
                    watch.task = self._tasks.create_task(self._watch(watch))
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None

    async def _watch(self, watch: _Watch) -> None:
        loop = asyncio.get_running_loop()
        due = self._next(watch, loop.time())
        calm = 0.0
        while True:
            try:
                await self._probe(watch, loop)
            except Exception as fault:  # noqa: BLE001 - the loop must outlive it, and it is told
                self._on_fault(watch.replica, fault)
            timer = loop.call_at(due, watch.woken.set)
            await watch.woken.wait()
            timer.cancel()
            if watch.triggered:
                await asyncio.sleep(calm - loop.time())
                calm = loop.time() + self._interval * _CALM
                watch.triggered = False
                due = self._next(watch, loop.time())
            else:
                due = self._next(watch, max(due, loop.time()))  # a timer may fire a little early
            watch.woken.clear()

    def _next(self, watch: _Watch, after: float) -> float:
        interval = min(self._interval, _LOADING) if self._is_loading(watch.replica) else self._interval
        turns = math.floor((after - self._began) / interval - watch.offset + _SAME) + 1
        return self._began + (turns + watch.offset) * interval

    async def _probe(self, watch: _Watch, loop: asyncio.AbstractEventLoop) -> None:
        replica = watch.replica
        began = loop.time()
        status, error = await ask(replica.host, replica.port, timeout=self._timeout, tls=watch.tls)
        self._on_probe(replica, error is None, status, loop.time() - began, error)


async def ask(
    host: str,
    port: int,
    *,
    timeout: float,  # noqa: ASYNC109 - connect and answer together
    tls: ssl.SSLContext | None = None,
) -> tuple[int | None, str | None]:
    """Ask for `/health` once; return the status, if any was answered, and what is wrong, if it was not 200.

    Raises:
        OSError: this process has no descriptor left; that says nothing about whom it asked.
    """
    shown = f"[{host}]" if ":" in host else host
    request = f"GET /health HTTP/1.1\r\nHost: {shown}:{port}\r\nAccept: */*\r\nConnection: close\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    answer = _Answer(request, loop.create_future())
    try:
        async with asyncio.timeout(timeout):
            await loop.create_connection(lambda: answer, host, port, ssl=tls, server_hostname=host if tls else None)
            return await answer.outcome
    except TimeoutError:
        return None, f"no answer within {timeout:g} s"
    except (OSError, UnicodeError) as failure:
        if isinstance(failure, OSError) and failure.errno in _OURS:
            raise
        return None, _describe(failure)
    finally:
        answer.close()


class _Watch:
    """One replica under watch."""

    __slots__ = ("offset", "replica", "task", "tls", "triggered", "woken")

    def __init__(self, replica: Replica, tls: ssl.SSLContext | None, offset: float) -> None:
        self.replica = replica
        self.tls = tls
        self.offset = offset  # of its probes, in intervals
        self.triggered = False
        self.woken = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class _Answer(asyncio.Protocol):
    """The connection of one probe; `outcome` is the status and what is wrong with it. The body is not waited for."""

    def __init__(self, request: bytes, outcome: asyncio.Future[tuple[int | None, str | None]]) -> None:
        self.outcome = outcome
        self._request = request
        self._head = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._head += data[:_LONGEST_HEAD]
        line = _STATUS_LINE.match(self._head)
        if b"\r\n\r\n" in self._head:
            if line is None:
                self._settle(None, "not an HTTP answer")
            else:
                status = int(line[1])
                self._settle(status, None if status == 200 else f"answered {status}")
        elif len(self._head) >= _LONGEST_HEAD:
            self._settle(None, "a head without an end" if line else "not an HTTP answer")

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(None, "closed before it answered" if exc is None else _describe(exc))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _settle(self, status: int | None, error: str | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result((status, error))
        self.close()  # nothing more is read, however much there is


def _describe(failure: Exception) -> str:
    if isinstance(failure, ConnectionRefusedError):
        return "connection refused"
    if isinstance(failure, ssl.SSLError):
        return tls_trouble(failure)
    return str(failure) or type(failure).__name__
