"""What a relayed event of a stream costs, how late it comes, and what an open stream holds."""

import asyncio
import time

from bench.load import Load, hold_streams, run_load
from bench.measures.context import Context, Figures, measured, wait_until
from bench.processes import cpu_usage, resident_memory
from bench.proxy import Proxy
from bench.script import Script
from bench.tally import Tally

_INTERVAL_MS = 20


async def _ticking(context: Context, proxy: Proxy, *, streams: int, together: bool) -> Figures:
    """Relay streams whose events come every 20 ms: all at once as an engine's steps do, or spread out."""
    events = max(5, int(context.seconds * 1000 / _INTERVAL_MS))
    script = Script(stream=1, events=events, interval=_INTERVAL_MS, size=200, align=int(together))
    load = Load(
        port=proxy.port,
        script=script,
        connections=streams,
        requests=streams,
        ramp=_INTERVAL_MS / 1000,
        timeout=30 + 3 * context.seconds,
    )
    result = await measured(context, proxy, load, same_core=together)
    report = result.report
    return {
        **result.microseconds(report.events),
        "events_s": report.events / report.seconds,
        "merged": report.events / max(1, report.reads),
        "gap_p99": report.gap.p99,
        "relay_p50": report.relay.p50,
        "relay_p99": report.relay.p99,
        "bad": report.bad,
    }


async def spread_out(context: Context, proxy: Proxy) -> Figures:
    return await _ticking(context, proxy, streams=200, together=False)


async def together(context: Context, proxy: Proxy) -> Figures:
    return await _ticking(context, proxy, streams=200, together=True)


async def few(context: Context, proxy: Proxy) -> Figures:
    return await _ticking(context, proxy, streams=20, together=False)


async def first_byte(context: Context, proxy: Proxy) -> Figures:
    rate = 100
    load = Load(
        port=proxy.port,
        script=Script(stream=1, events=3, interval=1, size=200),
        connections=4,
        rate=rate,
        requests=max(20, int(rate * context.seconds)),
    )
    result = await measured(context, proxy, load)
    report = result.report
    return {
        **result.microseconds(report.requests),
        "ttfb_p50": report.first_byte.p50,
        "ttfb_p99": report.first_byte.p99,
        "lat_p50": report.latency.p50,
        "bad": report.bad,
    }


async def _idle(context: Context, proxy: Proxy, streams: int) -> Figures:
    """Hold streams open that say nothing; then drop all the clients and see the replicas' side go."""
    await run_load(Load(port=proxy.port, script=Script(), connections=4, requests=200))  # warm up
    base = resident_memory(proxy.pids())
    context.stats.reset()
    figures: Figures = {}

    async def look(_: Tally) -> None:
        await asyncio.sleep(0.5)
        pids = proxy.pids()
        figures["rss_mib"] = resident_memory(pids) / 1024
        before = cpu_usage(pids)
        await asyncio.sleep(1.0)
        figures["idle_cpu_pct"] = 100 * cpu_usage(pids).since(before)

    load = Load(
        port=proxy.port,
        script=Script(stream=1, events=1, interval=1, size=200, hold=1),
        connections=streams,
        requests=streams,
        timeout=60,
    )
    report = await hold_streams(load, look)
    left = time.monotonic_ns()
    await wait_until(lambda: context.stats.aborted >= report.opened, seconds=10)
    gone = context.stats.aborted
    return {
        "rss_kib_stream": (float(figures["rss_mib"]) * 1024 - base) / max(1, report.opened),
        "streams": report.opened,
        "closed": gone,
        "closed_after_s": (context.stats.aborted_at - left) / 1e9 if gone >= report.opened else "not all in 10",
        **figures,
        "bad": report.bad,
    }


async def idle(context: Context, proxy: Proxy) -> Figures:
    return await _idle(context, proxy, context.streams)


async def idle_many(context: Context, proxy: Proxy) -> Figures:
    return await _idle(context, proxy, context.many_streams)
