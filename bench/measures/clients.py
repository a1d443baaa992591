"""Clients that behave badly: that read slowly, and that leave."""

import asyncio
import statistics
import time

from bench.measures.context import Context, Figures, wait_until
from bench.processes import resident_memory
from bench.proxy import Proxy
from bench.script import Script
from bench.wire import chat, post, read_head

_SLOW_READERS = 8
_OFFERED = Script(stream=1, events=40_000, interval=0, size=4000)
_PHASES = {
    "midway": Script(stream=1, events=2000, interval=5, size=200),
    "quiet": Script(stream=1, events=1, interval=1, size=200, hold=1),
    "before_head": Script(delay=8000),
}
_GIVE_UP = 3.0


async def slow_readers(context: Context, proxy: Proxy) -> Figures:
    """Offer 160 MB on each of a few streams whose clients read nothing after the head; see the memory grow."""
    base = resident_memory(proxy.pids())
    peak = base
    writers = []
    bad = 0
    try:
        for number in range(_SLOW_READERS):
            # A small limit, so that this side stops reading at once, too.
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=4096)
            writers.append(writer)
            writer.write(post(chat(_OFFERED), [f"X-Session-Id: slow-{number}"]))
            status, _ = await asyncio.wait_for(read_head(reader), 10)
            bad += status != 200
        deadline = time.monotonic() + max(1.0, context.seconds)
        while time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            peak = max(peak, resident_memory(proxy.pids()))
    finally:
        for writer in writers:
            writer.transport.abort()
    return {"grown_mib_stream": (peak - base) / 1024 / _SLOW_READERS, "readers": _SLOW_READERS, "bad": bad}


async def _leave(context: Context, proxy: Proxy, script: Script) -> float | None:
    """Leave one answer in the middle; return the ms until the replica's connection was closed, None if never."""
    stats = context.stats
    stats.reset()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        writer.write(post(chat(script), ["X-Session-Id: leaving"]))
        if script.stream:
            await asyncio.wait_for(read_head(reader), 5)
            await asyncio.wait_for(reader.readuntil(b"\n\n"), 5)
        else:
            await wait_until(lambda: stats.requests > 0, seconds=5)
        await asyncio.sleep(0.02)
    finally:
        left = time.monotonic_ns()
        writer.close()
    if not await wait_until(lambda: stats.aborted > 0, seconds=_GIVE_UP):
        return None
    return (stats.aborted_at - left) / 1e6


async def leaving(context: Context, proxy: Proxy) -> Figures:
    """Leave midway, on a quiet stream and before the head; report the worst of a few times, and the median."""
    times = max(3, int(5 * context.seconds))
    figures: Figures = {}
    for phase, script in _PHASES.items():
        took: list[float] = []
        for _ in range(times):
            ms = await _leave(context, proxy, script)
            if ms is None:
                break  # once is enough to know
            took.append(ms)
        if len(took) == times:
            figures[f"{phase}_p50"] = statistics.median(took)
            figures[f"{phase}_max"] = max(took)
        else:
            figures[f"{phase}_p50"] = figures[f"{phase}_max"] = f"not in {_GIVE_UP:.0f} s"
    return {**figures, "bad": 0}
