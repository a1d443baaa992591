"""Probes of real sockets that answer as replicas do, and as they should not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest
import trustme
import uvloop
from tests.support.ports import refusing_port, swallowing_port

from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.probe import monitor as monitors
from pypto_serving_router.probe.monitor import Monitor

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
NEVER = 1000.0
Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]
Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test on either event loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def runner(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(asyncio.wait_for(test, 20))

    return runner


@dataclass
class Server:
    """A listening socket and what it has seen."""

    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    sent: int = 0
    open: int = 0


@contextlib.asynccontextmanager
async def serving(
    answer: bytes | Handler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Serve every connection with these bytes, or with this handler."""
    server = Server()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.open += 1
        server.arrivals.append(time.monotonic())
        # uvloop tells a write after the end by RuntimeError.
        with contextlib.suppress(OSError, RuntimeError, asyncio.IncompleteReadError, asyncio.CancelledError):
            server.requests.append(await reader.readuntil(b"\r\n\r\n"))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(reader, writer)
        server.open -= 1
        writer.close()

    listener = await asyncio.start_server(connected, host, 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await until(lambda: server.open == 0)


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say nothing until the other side goes."""
    await reader.read()


async def until(condition: Callable[[], bool], within: float = 10.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.005)


@dataclass
class Result:
    """One call of `on_probe`."""

    replica: Replica
    healthy: bool
    status: int | None
    seconds: float
    error: str | None


class Watching:
    """A monitor that keeps what it is told."""

    def __init__(
        self, *, interval: float = NEVER, timeout: float = 5.0, loading: Callable[[Replica], bool] = lambda _: False
    ) -> None:
        self.results: list[Result] = []
        self.faults: list[tuple[Replica, Exception]] = []
        self.monitor = Monitor(
            interval=interval,
            timeout=timeout,
            on_probe=lambda *told: self.results.append(Result(*told)),
            on_fault=lambda *told: self.faults.append(told),
            is_loading=loading,
        )

    async def first(self, replica: Replica, tls: ssl.SSLContext | None = None) -> Result:
        """Return the result of the first probe of this replica."""
        self.monitor.add(replica, tls)
        async with self.running():
            await until(lambda: bool(self.results))
        return self.results[0]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the monitor."""
        task = asyncio.ensure_future(self.monitor.run())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def at(port: int, *, host: str = "127.0.0.1", name: str = "r") -> Replica:
    return Replica(ReplicaId(name), host, port, ready=True)


@pytest.mark.parametrize("status", [100, 200, 204, 302, 404, 500, 503])
def test_only_200_is_a_success(run: Run, status: int) -> None:
    """spec 5.1 (S: F2): whatever else a replica answers is a failure, and the status is told."""

    async def test() -> None:
        async with serving(b"HTTP/1.1 %d Whatever\r\n\r\n" % status) as server:
            result = await Watching().first(replica := at(server.port))

        assert result.replica is replica
        assert (result.healthy, result.status) == (status == 200, status)
        assert result.error == (None if status == 200 else f"answered {status}")
        assert 0 <= result.seconds < 5

    run(test())


def test_the_request(run: Run) -> None:
    """spec 5.1: a probe is one `GET /health` to the replica's own Host."""

    async def test() -> None:
        async with serving(OK) as server:
            await Watching().first(at(server.port))
            assert server.requests == [
                b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\nConnection: close\r\n\r\n" % server.port
            ]

    run(test())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "closed before it answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "closed before it answered"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "not an HTTP answer"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "not an HTTP answer"),
        (b"HTTP/2 200\r\n\r\n", "not an HTTP answer"),
        (b"x" * 100_000, "not an HTTP answer"),
    ],
)
def test_what_is_no_answer(run: Run, answer: bytes, error: str) -> None:
    """spec 5.1: a connection that carries no HTTP answer is a failure, whatever it carries."""

    async def test() -> None:
        async with serving(answer) as server:
            result = await Watching().first(at(server.port))
        assert (result.healthy, result.status, result.error) == (False, None, error)

    run(test())


def test_an_answer_in_pieces(run: Run) -> None:
    """spec 5.1: an answer counts however the network cuts it."""

    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for n in range(len(OK)):
            writer.write(OK[n : n + 1])
            await writer.drain()
            await asyncio.sleep(0)

    async def test() -> None:
        async with serving(dribble) as server:
            assert (await Watching().first(at(server.port))).healthy

    run(test())


def test_a_refused_connection(run: Run) -> None:
    """spec 5.1: nobody listens: a failure, at once."""

    async def test() -> None:
        with refusing_port() as port:
            result = await Watching().first(at(port))
        assert (result.healthy, result.status, result.error) == (False, None, "connection refused")

    run(test())


def test_a_connection_that_is_not_accepted(run: Run) -> None:
    """spec 5.1: a connect that is neither accepted nor refused ends with the connect timeout."""

    async def test() -> None:
        with swallowing_port() as port:
            result = await Watching(timeout=0.2).first(at(port))
        assert (result.healthy, result.status, result.error) == (False, None, "no answer within 0.2 s")

    run(test())


@pytest.mark.parametrize("host", ["host.invalid", "a..b", "x" * 80])
def test_a_name_that_leads_nowhere(run: Run, host: str) -> None:
    """spec 5.1: a host that cannot be resolved, or is no name at all, is a failure and ends nothing."""

    async def test() -> None:
        watching = Watching()
        result = await watching.first(at(80, host=host))
        assert not result.healthy
        assert result.error
        assert watching.faults == []

    run(test())


def test_connecting_and_answering_are_bounded_together(run: Run) -> None:
    """spec 5.1: an answer that trickles in for longer than the timeout is none."""

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while not reader.at_eof():
            writer.write(b"X-More: 1\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def test() -> None:
        async with serving(trickle) as server:
            result = await Watching(timeout=0.2).first(at(server.port))
            await until(lambda: server.open == 0)
        assert (result.healthy, result.status, result.error) == (False, None, "no answer within 0.2 s")
        assert 0.15 < result.seconds < 2

    run(test())


@pytest.mark.parametrize(("start", "healthy"), [(b"HTTP/1.1 200 OK\r\nX: ", False), (OK, True)])
def test_an_endless_answer_is_not_read(run: Run, start: bytes, healthy: bool) -> None:
    """spec 5.1: of a head without an end little is read, and of an endless body nothing: the connection is closed."""

    async def test() -> None:
        async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(start)
            while server.sent < 1 << 30:
                writer.write(b"x" * 65536)
                await writer.drain()
                server.sent += 65536

        async with serving(flood) as server:
            result = await Watching().first(at(server.port))
            await until(lambda: server.open == 0)
            assert server.sent < 32 << 20  # what the kernel's buffers take
        assert result.healthy is healthy
        assert result.error == (None if healthy else "a head without an end")

    run(test())


def test_a_silent_replica_delays_no_other(run: Run) -> None:
    """spec 5.1: while one probe hangs, others go on at their own pace."""

    async def test() -> None:
        async with serving(silence) as silent, serving(OK) as lively:
            watching = Watching(interval=0.05, timeout=5)
            quick = at(lively.port)
            watching.monitor.add(at(silent.port, name="silent"))
            watching.monitor.add(quick)
            async with watching.running():
                await until(lambda: len(watching.results) >= 4)
            assert {result.replica for result in watching.results} == {quick}
            assert len(silent.arrivals) == 1

    run(test())


def test_probes_keep_their_interval(run: Run) -> None:
    """spec 5.1: after the first, probes come an interval apart, none left out and none doubled."""

    async def test() -> None:
        async with serving(OK) as server:
            watching = Watching(interval=0.05)
            watching.monitor.add(at(server.port))
            async with watching.running():
                await until(lambda: len(server.arrivals) >= 12)
            elapsed = server.arrivals[11] - server.arrivals[1]
            assert 0.45 < elapsed < 3

    run(test())


def test_a_replica_that_is_loading_is_probed_more_often(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """spec 5.3: its first success is waited for; from then on it is probed once an interval, like the others."""
    monkeypatch.setattr(monitors, "_LOADING", 0.05)

    async def test() -> None:
        async with serving(OK) as server:
            loading = True
            watching = Watching(loading=lambda replica: loading and replica is new)
            new, old = at(server.port, name="new"), at(server.port, name="old")
            watching.monitor.add(new)
            watching.monitor.add(old)
            async with watching.running():
                await until(lambda: len(watching.results) >= 12)
                loading = False
                await asyncio.sleep(0.3)
            told = [result.replica for result in watching.results]
            assert told.count(old) == 1
            assert told.count(new) <= 13

    run(test())


def test_a_short_interval_is_kept_while_loading() -> None:
    """spec 5.1: loading makes probes no rarer, nor more frequent than asked for."""
    slow, quick = Watching(interval=5.0, loading=lambda _: True), Watching(interval=0.25, loading=lambda _: True)
    watches: list[Any] = []
    for watching in (slow, quick):
        watching.monitor.add(at(1))
        watches += watching.monitor._watches.values()
    due = [0.0, 0.0]
    for _ in range(1000):
        due = [one.monitor._next(watch, at) for one, watch, at in zip((slow, quick), watches, due, strict=True)]
    assert due == pytest.approx([999 + watches[0].offset, (999 + watches[1].offset) * 0.25])


def test_probes_are_spread_over_the_interval() -> None:
    """spec 5.1: whatever the number of replicas, no stretch of the interval is crowded and none is empty."""
    watching = Watching()
    for count in range(1, 200):
        watching.monitor.add(at(count, name=f"r{count}"))
        offsets = sorted(watch.offset for watch in watching.monitor._watches.values())
        gaps = [b - a for a, b in zip(offsets, [*offsets[1:], offsets[0] + 1], strict=True)]
        assert max(gaps) < 2 / count
        assert min(gaps) > 0.3 / count


def test_a_trigger_probes_at_once(run: Run) -> None:
    """spec 5.4: a triggered probe does not wait for its turn."""

    async def test() -> None:
        async with serving(OK) as server:
            watching = Watching()
            replica = at(server.port)
            watching.monitor.add(replica)
            async with watching.running():
                await until(lambda: len(watching.results) == 1)
                watching.monitor.trigger(replica)
                await until(lambda: len(watching.results) == 2)

    run(test())


def test_triggers_during_a_probe_are_one_more_probe(run: Run) -> None:
    """spec 5.4: what happened while a probe was under way it may have missed: it is followed by one other."""

    async def test() -> None:
        release = asyncio.Event()

        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await release.wait()
            writer.write(OK)

        async with serving(wait) as server:
            watching = Watching()
            replica = at(server.port)
            watching.monitor.add(replica)
            async with watching.running():
                await until(lambda: len(server.requests) == 1)
                for _ in range(50):
                    watching.monitor.trigger(replica)
                release.set()
                await until(lambda: len(watching.results) == 2)
                await asyncio.sleep(0.05)
            assert len(server.arrivals) == 2

    run(test())


def test_a_storm_of_triggers_is_calmed(run: Run) -> None:
    """spec 5.4 (S: F5): a replica that fails every request is not probed without a pause."""

    async def test() -> None:
        async with serving(OK) as server:
            watching = Watching(interval=1.0)
            replica = at(server.port)
            watching.monitor.add(replica)
            async with watching.running():
                await until(lambda: len(watching.results) == 1)
                deadline = time.monotonic() + 0.55
                while time.monotonic() < deadline:
                    watching.monitor.trigger(replica)
                    await asyncio.sleep(0.001)
            assert 2 <= len(watching.results) <= 9

    run(test())


def test_a_probe_of_a_removed_replica_is_dropped(run: Run) -> None:
    """spec 7.10: what a probe finds out about a removed replica is not told, and its connection is closed."""

    async def test() -> None:
        async with serving(silence) as server:
            watching = Watching()
            old, new = at(server.port), at(server.port)
            watching.monitor.add(old)
            async with watching.running():
                await until(lambda: len(server.requests) == 1)
                watching.monitor.remove(old)
                watching.monitor.remove(old)
                await until(lambda: server.open == 0)
                watching.monitor.add(new)
                watching.monitor.trigger(old)
                await until(lambda: len(server.requests) == 2)
            assert watching.results == []
            assert repr(watching.monitor) == "<Monitor of 1 replicas>"

    run(test())


def test_a_replica_may_be_removed_by_what_its_probe_tells(run: Run) -> None:
    """spec 7.9: whoever is told of a probe may remove the replica there and then."""

    async def test() -> None:
        told: list[Replica] = []
        faults: list[Exception] = []

        def on_probe(replica: Replica, *result: object) -> None:
            told.append(replica)
            monitor.remove(replica)

        monitor = Monitor(interval=0.01, timeout=5, on_probe=on_probe, on_fault=lambda _, fault: faults.append(fault))
        replica = at(1)
        monitor.add(replica)
        task = asyncio.ensure_future(monitor.run())
        await until(lambda: bool(told))
        await asyncio.sleep(0.1)
        assert (told, faults) == ([replica], [])
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(test())


def test_a_replica_is_watched_once(run: Run) -> None:
    """spec 5.1: adding a replica again does not double its probes."""

    async def test() -> None:
        async with serving(OK) as server:
            watching = Watching()
            replica = at(server.port)
            watching.monitor.add(replica)
            async with watching.running():
                watching.monitor.add(replica)
                await until(lambda: len(watching.results) == 1)
                await asyncio.sleep(0.05)
            assert len(server.arrivals) == 1

    run(test())


def test_the_end_of_the_monitor_closes_its_connections(run: Run) -> None:
    """spec 7.11: when the router ends no probe is left open."""

    async def test() -> None:
        async with serving(silence) as server:
            watching = Watching()
            watching.monitor.add(at(server.port))
            async with watching.running():
                await until(lambda: server.open == 1)
            await until(lambda: server.open == 0)
            assert watching.results == []

    run(test())


def test_a_fault_of_ours_is_told_and_survived(run: Run) -> None:
    """spec 5.1 (S: F12): an error in who is told of a probe is not silent, and ends no health check."""

    async def test() -> None:
        faults: list[tuple[Replica, Exception]] = []

        def on_probe(*result: object) -> None:
            raise KeyError("a bug")

        monitor = Monitor(interval=0.01, timeout=5, on_probe=on_probe, on_fault=lambda *told: faults.append(told))
        replica = at(1)
        monitor.add(replica)
        task = asyncio.ensure_future(monitor.run())
        await until(lambda: len(faults) >= 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert faults[0][0] is replica
        assert isinstance(faults[0][1], KeyError)

    run(test())


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Let the process open no file and no socket."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, before[1]))  # noqa: PTH208 - names are wanted
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)


def test_the_want_of_descriptors_is_no_failure_of_the_replica(run: Run) -> None:
    """spec 4.10, 5.1: a router that has run out of file descriptors does not take its whole fleet for dead."""

    async def test() -> None:
        watching = Watching()
        watching.monitor.add(at(1))
        with no_descriptors():
            async with watching.running():
                await until(lambda: bool(watching.faults))
        assert watching.results == []
        assert isinstance(watching.faults[0][1], OSError)

    run(test())


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A certificate authority."""
    return trustme.CA()


def tls_server(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def test_probes_over_tls(run: Run, authority: trustme.CA) -> None:
    """spec 4.9, 5.1: a probe of an https replica verifies its certificate and its name."""
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def test() -> None:
        async with serving(OK, tls=tls_server(authority, "127.0.0.1")) as right:
            assert (await Watching().first(at(right.port), trusting)).healthy
            stranger = await Watching().first(at(right.port), ssl.create_default_context())
        async with serving(OK, tls=tls_server(authority, "elsewhere.example")) as wrong:
            misnamed = await Watching().first(at(wrong.port), trusting)
        async with serving(OK) as plain:
            mistaken = await Watching(timeout=0.3).first(at(plain.port), trusting)

        assert not stranger.healthy
        assert (stranger.error or "").startswith("its certificate is not good: ")
        assert not misnamed.healthy
        assert (misnamed.error or "").startswith("its certificate is not good: ")
        assert not mistaken.healthy
        assert mistaken.error

    run(test())


def test_probes_over_ipv6(run: Run) -> None:
    """spec 4.8 (S: M4): an IPv6 literal is connected to as it is, and bracketed in the Host header."""

    async def test() -> None:
        async with serving(OK, host="::1") as server:
            assert (await Watching().first(at(server.port, host="::1"))).healthy
            assert b"\r\nHost: [::1]:%d\r\n" % server.port in server.requests[0]

    run(test())
