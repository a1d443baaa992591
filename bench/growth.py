"""How our router carries a large fleet: many replicas, many open streams, and somebody watching.

    python -m bench.growth [--replicas 1000] [--streams 10000] [--events 5000] [--seconds 20]

Each replica has a loopback address of its own in one of a few stub processes and is health-checked; the streams are
open all the while and bring so many events a second between them; `/health`, `/replicas` and `/metrics` are read once
a second. What counts is how late the router's event loop ever is.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from bench.catalogue import COMMANDS, HERE, OURS, Programs
from bench.load import Load, hold_streams
from bench.machine import cores, raise_file_limit, require_linux
from bench.processes import cpu_usage, pin, resident_memory
from bench.proxy import Address, Proxy, Setting
from bench.script import Script
from bench.tally import Tally
from bench.wire import get

_STUBS = 2
_GOAL_MS = 10.0
_SPARE_FILES = 600
_BUCKET = re.compile(r'^\S*loop_delay\S*_bucket\{.*?le="([^"]+)".*?\} (\S+)$', re.MULTILINE)


@dataclass(slots=True)
class Findings:
    """What was seen while the streams were open."""

    events_per_second: float = 0.0
    cpu_percent: float = 0.0
    resident_mib: float = 0.0
    replicas_ready: object = "not told"
    loop_delay_p99: tuple[float, float] | None = None
    """Between these two bounds of the router's own histogram, in milliseconds."""
    probe_ms: list[float] = field(default_factory=list)
    reads_ms: dict[str, list[float]] = field(default_factory=dict)
    errors: set[str] = field(default_factory=set)


def buckets(metrics: str) -> dict[float, float]:
    """Return the cumulative buckets of the loop's delay in a Prometheus text, none where it has none."""
    return {float(bound): float(count) for bound, count in _BUCKET.findall(metrics)}


def quantile_bounds(
    before: Mapping[float, float], after: Mapping[float, float], share: float
) -> tuple[float, float] | None:
    """Return the bounds, in ms, of the bucket in which a quantile of what was counted in between lies."""
    grown = [(bound, count - before.get(bound, 0.0)) for bound, count in sorted(after.items())]
    if not grown or not grown[-1][1]:
        return None
    below = 0.0
    for bound, count in grown:
        if count >= share * grown[-1][1]:
            return below * 1e3, bound * 1e3
        below = bound
    return None


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of a sample that is not empty."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def addresses(count: int) -> list[str]:
    """Return as many different loopback addresses, each with any free port."""
    return [f"127.0.{1 + i // 250}.{1 + i % 250}:0" for i in range(count)]


@contextlib.asynccontextmanager
async def stubs(count: int, cpu: int) -> AsyncIterator[list[Address]]:
    """Run that many replicas in a few processes."""
    wanted = addresses(count)
    running: list[asyncio.subprocess.Process] = []
    replicas: list[Address] = []
    try:
        for part in range(_STUBS):
            flags = [word for address in wanted[part::_STUBS] for word in ("--address", address)]
            process = await _python("-m", "bench.stub", *flags)
            running.append(process)
            pin([process.pid], cpu)
        for process in running:
            assert process.stdout is not None
            replicas += [(host, port) for host, port in json.loads(await process.stdout.readline())]
        yield replicas
    finally:
        for process in running:
            process.terminate()
            await process.wait()


async def _python(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=subprocess.PIPE, cwd=HERE.parent, limit=1 << 20
    )


async def watch(proxy: Proxy, tally: Tally, findings: Findings, seconds: float) -> None:
    """Read the router's pages once a second while a prober asks it every 10 ms."""
    await asyncio.sleep(2)  # the streams' beginning is not what is measured
    prober = await _python("-m", "bench.prober", str(proxy.port), "/no-such-page", str(seconds))
    pids = proxy.pids()
    first = buckets((await get(proxy.port, "/metrics")).body.decode())
    cpu, reads, begun = cpu_usage(pids), tally.reads, time.monotonic()
    for _ in range(round(seconds)):
        for path in ("/health", "/replicas", "/metrics"):
            asked = time.monotonic()
            answer = await get(proxy.port, path)
            findings.reads_ms.setdefault(path, []).append((time.monotonic() - asked) * 1e3)
            if answer.status != 200:
                findings.errors.add(f"GET {path} was answered with {answer.status}")
        await asyncio.sleep(max(0.0, 1 - (time.monotonic() - begun) % 1))
    took = time.monotonic() - begun
    findings.events_per_second = (tally.reads - reads) / took
    findings.cpu_percent = 100 * cpu_usage(pids).since(cpu) / took
    findings.resident_mib = resident_memory(pids) / 1024
    last = buckets((await get(proxy.port, "/metrics")).body.decode())
    findings.loop_delay_p99 = quantile_bounds(first, last, 0.99)
    findings.replicas_ready = json.loads((await get(proxy.port, "/health")).body).get("replicas_ready", "not told")
    findings.probe_ms = json.loads((await prober.communicate())[0])


async def grow(args: argparse.Namespace) -> int:
    """Run it and print what was found; return 1 if the goal was missed."""
    files = raise_file_limit()
    # Two descriptors for each stream, and one for a probe of each replica.
    streams = min(args.streams, (files - _SPARE_FILES - args.replicas) // 2)
    if streams < args.streams:
        print(f"The hard limit of open files ({files}) allows {streams} streams rather than {args.streams}.")
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)  # leaves no process behind
    generator_cpu, proxy_cpu = cores()
    os.sched_setaffinity(0, {generator_cpu})
    findings = Findings()
    interval = max(1, round(1000 * streams / args.events))
    with tempfile.TemporaryDirectory() as folder:
        async with stubs(args.replicas, generator_cpu) as replicas:
            setting = Setting(dict(COMMANDS), Programs({}), Path(folder), proxy_cpu, files)
            proxy = Proxy(OURS, setting, replicas, "growth")
            try:
                await proxy.start()
                report = await hold_streams(
                    Load(
                        port=proxy.port,
                        script=Script(stream=1, events=1 << 30, interval=interval, size=200, hold=1),
                        connections=streams,
                        timeout=60 + interval / 1000,
                    ),
                    lambda tally: watch(proxy, tally, findings, args.seconds),
                )
            finally:
                proxy.stop()
    if report.bad:
        findings.errors.add(f"{report.bad} streams went wrong: {', '.join(report.errors)}")
    return _print(args, findings, report.opened)


def _print(args: argparse.Namespace, findings: Findings, opened: int) -> int:
    probes = findings.probe_ms
    bounds = findings.loop_delay_p99
    rows = {
        "replicas, health-checked": f"{args.replicas}, {findings.replicas_ready} ready",
        "streams open": str(opened),
        "events relayed": f"{findings.events_per_second:.0f} a second",
        "CPU of the router": f"{findings.cpu_percent:.0f} % of a core",
        "memory of the router": f"{findings.resident_mib:.0f} MiB",
        "loop delay p99, by its own count": f"{bounds[0]:g} to {bounds[1]:g} ms" if bounds else "not told",
        "small request p50, p99, worst": " ".join(f"{percentile(probes, q):.2f}" for q in (0.5, 0.99, 1)) + " ms",
        **{
            f"GET {path} p50, worst": f"{percentile(times, 0.5):.1f} {max(times):.1f} ms"
            for path, times in findings.reads_ms.items()
        },
    }
    print("| what | found |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")
    for error in sorted(findings.errors):
        print(f"\nwrong: {error}")
    delay = bounds[1] if bounds else percentile(probes, 0.99)
    by = "the router's own count" if bounds else "a small request's time, as the router tells no loop delay"
    met = delay <= _GOAL_MS and not findings.errors
    print(f"\nLoop delay p99 within {_GOAL_MS:g} ms, by {by}: {'PASS' if met else 'MISS'}")
    return 0 if met else 1


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--events", type=float, default=5000, help="events per second, of all streams together")
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    require_linux()
    return uvloop.run(grow(args))


if __name__ == "__main__":
    sys.exit(main())
