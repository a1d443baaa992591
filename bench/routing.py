"""What routing costs: a placement, a pin, the longest stall, a look for the session id, a probe.

Run `python -m bench.routing`; `--json` prints the figures as one object, `--quick` takes a hundredth of the sizes and
proves nothing but that the program works. Each section runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import random
import resource
import time
import tracemalloc
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import uvloop

from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.decisions import KEPT
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.core.routing import Routing
from pypto_serving_router.core.session_id import from_body
from pypto_serving_router.probe.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pypto_serving_router.core.lease import Lease

Figures: TypeAlias = dict[str, float]

TTL = 600.0
SIZE = 2000
"""Bytes of a request."""
SWEEP = 500
"""The budget of one sweep, in pins, as the router uses it."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    pins: int = 100_000
    requests: int = 50_000
    replicas: tuple[int, ...] = (1, 10, 100, 1000)
    body: int = 20_000_000
    probed: int = 1000
    probe_interval: float = 5.0
    probe_seconds: float = 20.0


QUICK = Sizes(
    pins=2_000, requests=1_000, replicas=(10, 1000), body=200_000, probed=20, probe_interval=0.1, probe_seconds=0.3
)


def fleet(count: int, capacity: int, remembered: int = KEPT) -> Routing:
    routing = Routing(slack=8, ttl=TTL, capacity=capacity, remembered=remembered)
    for n in range(count):
        routing.balancer.add(Replica(ReplicaId(f"r{n}"), "127.0.0.1", 8001, ready=True))
    return routing


def ids(count: int) -> list[str]:
    return [os.urandom(16).hex() for _ in range(count)]


def fill(routing: Routing, count: int, now: float) -> list[str]:
    sessions = ids(count)
    for session in sessions:
        routing.finish(routing.place(session, now, SIZE), now)
    return sessions


def microseconds(work: Callable[[Sequence[str]], None], sessions: list[str], chunk: int = 200) -> float:
    """The typical CPU time of one request: the median of the better half."""
    times = []
    for start in range(0, len(sessions), chunk):
        part = sessions[start : start + chunk]
        before = time.thread_time()
        work(part)
        times.append((time.thread_time() - before) / len(part))
    return sorted(times)[len(times) // 4] * 1e6


def longest(calls: Iterable[Callable[[], object]]) -> float:
    """The longest of the calls in milliseconds of this thread's CPU: preemption by others is not a stall of ours."""
    worst = 0.0
    for call in calls:
        before = time.thread_time()
        call()
        worst = max(worst, time.thread_time() - before)
    return worst * 1e3


def placement(sizes: Sizes) -> Figures:
    """µs of look-up, choice, pin and release, in a full table."""
    figures = {}
    for count in sizes.replicas:
        routing = fleet(count, sizes.pins)
        known = fill(routing, sizes.pins, 1.0)
        held: deque[Lease] = deque()

        def at_once(part: Sequence[str], routing: Routing = routing) -> None:
            for session in part:
                routing.finish(routing.place(session, 2.0, SIZE), 2.0)

        def with_others(part: Sequence[str], routing: Routing = routing, held: deque[Lease] = held) -> None:
            for session in part:
                held.append(routing.place(session, 3.0, SIZE))
                if len(held) > 64:
                    routing.finish(held.popleft(), 3.0)

        # A request's id is a string of its own, whose hash is not yet known.
        hits = ["".join(random.choice(known)) for _ in range(sizes.requests)]
        figures[f"{count} replicas, known session"] = microseconds(at_once, hits)
        figures[f"{count} replicas, known session, 64 in flight"] = microseconds(with_others, hits)
        figures[f"{count} replicas, new session for an evicted one"] = microseconds(at_once, ids(sizes.requests))
        figures[f"{count} replicas, the same, 64 in flight"] = microseconds(with_others, ids(sizes.requests))
        room = fleet(count, sizes.pins)
        figures[f"{count} replicas, new session where there is room"] = microseconds(
            lambda part, room=room: at_once(part, room),  # type: ignore[misc]
            ids(sizes.pins // 2),
        )

        def larger(part: Sequence[str], routing: Routing = room) -> None:
            for session in part:
                routing.finish(routing.place(session, 2.0, 9 * SIZE), 2.0)

        figures[f"{count} replicas, the same, larger than most"] = microseconds(larger, ids(sizes.pins // 20))
    return figures


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def memory(sizes: Sizes) -> Figures:
    """Bytes a pin, its session's id included: of a table that has just been filled, and of one in long use.

    And bytes a remembered choice, with the id and the pin that it alone keeps.
    """
    figures = {}
    for traced in (False, True):
        routing = fleet(10, sizes.pins, remembered=1)
        fill(routing, 10, 1.0)
        gc.collect()
        if traced:
            tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0] if traced else resident()
        for state, rounds in (("just filled", 1), ("in long use", 4)):
            for _ in range(rounds):
                fill(routing, sizes.pins, 2.0)
            after = tracemalloc.get_traced_memory()[0] if traced else resident()
            figures[f"{'tracemalloc' if traced else 'resident'}, {state}"] = (after - before) / sizes.pins
    for count in (1, 8, 1000):
        routing = fleet(count, 1, remembered=KEPT)
        before = tracemalloc.get_traced_memory()[0]
        fill(routing, KEPT, 1.0)
        after = tracemalloc.get_traced_memory()[0]
        figures[f"tracemalloc, a remembered choice among {count} replicas"] = (after - before) / KEPT
    tracemalloc.stop()
    return figures


def stalls(sizes: Sizes) -> Figures:
    """The longest single call, ms of CPU."""
    figures = {}
    now = 1.0

    routing = fleet(2, sizes.pins)
    fill(routing, sizes.pins, now)
    gone = next(iter(routing.balancer.replicas.values()))
    pins = gone.pins
    figures[f"drop of a replica with {pins} pins"] = longest([partial(routing.drain, gone, now)])

    def until_swept(routing: Routing, at: float) -> Iterator[Callable[[], object]]:
        more = True

        def sweep() -> None:
            nonlocal more
            more = routing.sessions.sweep(at, SWEEP)

        while more:
            yield sweep

    figures[f"each sweep of {SWEEP} afterwards"] = longest(until_swept(routing, now))

    fill(routing, sizes.pins, now)
    figures[f"each sweep of {SWEEP} while {sizes.pins} pins expire"] = longest(until_swept(routing, now + TTL))

    def request(routing: Routing, session: str) -> None:
        routing.finish(routing.place(session, now), now)

    fill(routing, sizes.pins // 2, now)
    figures[f"each of {5 * sizes.pins} requests that are new sessions"] = longest(
        partial(request, routing, session) for session in ids(5 * sizes.pins)
    )

    routing = fleet(1000, sizes.pins)
    known = fill(routing, sizes.pins, now)
    leases = [routing.place(session, now) for session in known]  # affinity hits: no choice has seen the loads yet
    figures["first choice among 1000 replicas whose loads all went up"] = longest([partial(routing.peek, None, now)])
    figures[f"each of {len(leases)} releases"] = longest(partial(routing.finish, lease, now) for lease in leases)

    def collection() -> float:
        gc.collect()
        return min(longest([gc.collect]) for _ in range(9))

    del routing, known, leases
    empty = fleet(10, sizes.pins)
    figures["a full garbage collection, no pins"] = collection()
    fill(empty, sizes.pins, now)
    figures[f"a full garbage collection, {len(empty.sessions)} pins"] = collection()
    return figures


def session_id(sizes: Sizes) -> Figures:
    """Finding the session id in a body: µs for everyday ones, ms for one of 20 MB, during which the loop waits."""

    def body(content: bytes, size: int) -> bytes:
        repeated = content * (size // len(content))
        return b'{"model":"q","messages":[{"role":"user","content":"%b"}],"session_id":"9f2c1b7e4a3d5061"}' % repeated

    def best(content: bytes, repeat: int) -> float:
        times = []
        for _ in range(repeat):
            before = time.perf_counter()
            found = from_body(content)
            times.append(time.perf_counter() - before)
            assert found == "9f2c1b7e4a3d5061"
        return min(times)

    english, chinese = b"How do I keep a conversation on its replica? ", "如何让对话留在同一个副本上".encode()
    huge = sizes.body
    dense = b'{"session_id":"9f2c1b7e4a3d5061","input":[%b[]]}' % (b"[]," * (huge // 3))
    figures = {
        "µs, 2 KB": best(body(english, 2_000), 2_000) * 1e6,
        "µs, 50 KB": best(body(english, 50_000), 200) * 1e6,
        "µs, 50 KB of Chinese": best(body(chinese, 50_000), 200) * 1e6,
        f"ms, {huge / 1e6:g} MB of text": best(body(english, huge), 5) * 1e3,
        f"ms, {huge / 1e6:g} MB of base64": best(body(b"iVBORw0KGgoAAAANSUhEUgAA", huge), 5) * 1e3,
        f"ms, {huge / 1e6:g} MB of escapes": best(body(rb"\u4f60\n", huge), 5) * 1e3,
        f"ms, {huge / 1e6:g} MB of empty lists": best(dense, 5) * 1e3,
    }
    half = body(rb"\ud83d", 250_000)
    figures["ms, 250 KB of halved surrogate pairs"] = best(half, 5) * 1e3
    return figures


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    writer.close()


def be_replica(port: multiprocessing.queues.Queue[int]) -> None:
    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=2048)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


def probes(sizes: Sizes) -> Figures:
    """The router's CPU for health checks, on uvloop, all replicas answering."""
    spawn = multiprocessing.get_context("spawn")
    ports = spawn.Queue()
    server = spawn.Process(target=be_replica, args=(ports,), daemon=True)
    server.start()
    port = ports.get(timeout=30)

    async def watch() -> Figures:
        results: list[bool] = []
        all_once = asyncio.Event()

        def on_probe(_: Replica, healthy: bool, *__: object) -> None:  # noqa: FBT001 - as the monitor calls it
            results.append(healthy)
            if len(results) == sizes.probed:
                all_once.set()

        monitor = Monitor(interval=sizes.probe_interval, timeout=5, on_probe=on_probe, on_fault=print)
        for n in range(sizes.probed):
            monitor.add(Replica(ReplicaId(f"r{n}"), "127.0.0.1", port, ready=True))
        running = asyncio.ensure_future(monitor.run())
        await all_once.wait()  # the first of each come together
        cpu, seen, began = time.process_time(), len(results), time.perf_counter()
        await asyncio.sleep(sizes.probe_seconds)
        cpu, seen, seconds = time.process_time() - cpu, len(results) - seen, time.perf_counter() - began
        running.cancel()
        await asyncio.wait([running])
        assert all(results)
        return {
            "µs of CPU a probe": cpu / seen * 1e6,
            "probes a second": seen / seconds,
            "percent of one CPU": cpu / seconds * 100,
        }

    try:
        return uvloop.run(watch())
    finally:
        server.terminate()
        server.join()


SECTIONS = {
    "placement, µs": placement,
    "memory, bytes a pin": memory,
    "stalls, ms": stalls,
    "session id in a body": session_id,
    "health checks": probes,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=[title.split(",")[0] for title in SECTIONS])
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes()
    results = {}
    for title, section in SECTIONS.items():
        if options.only not in {None, title.split(",")[0]}:
            continue
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
            figures = results[title] = alone.submit(section, sizes).result()
        if not options.json:
            print(f"\n{title}")
            for name, value in figures.items():
                print(f"  {name:<66}{value:>10.2f}")
    if options.json:
        print(json.dumps(results, ensure_ascii=False, indent=2))


if __name__ == "__main__":
    main()
