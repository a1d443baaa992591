"""What every measure needs, and a load with the proxy's CPU time beside it."""

import asyncio
import gc
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.catalogue import Programs
from bench.load import Load, run_load
from bench.processes import cpu_usage, machine_busy, pin, taking_turns
from bench.proxy import Proxy
from bench.stub import Stats
from bench.tally import Report

Figures = dict[str, float | str]
"""The figures of one run of a measure, by name; behaviour is told in words."""


@dataclass(frozen=True, slots=True)
class Context:
    """The machine and the options of a comparison."""

    seconds: float
    """How long one run of a measure takes, about."""
    streams: int
    """Open streams of `idle`."""
    many_streams: int
    """Open streams of `idle10k`."""
    turns: bool
    """Whether generator and proxy, where they share a core, leave each other alone until they have to wait."""
    generator_cpu: int
    proxy_cpu: int
    programs: Programs
    folder: Path
    stats: Stats
    """Of the stub replicas, which live in this process."""


class Measured(NamedTuple):
    """A load's report, and the CPU time for it."""

    report: Report
    cpu: float
    """Of the proxy, seconds."""
    user_share: float
    own_cpu: float
    """Of the generator and the stub replicas, seconds."""
    others_pct: float
    """What everything else on the machine took meanwhile, in percent of one core: much of it voids latencies."""

    def microseconds(self, units: int) -> Figures:
        """Return the CPU time of one unit, the part of it outside the kernel, and how quiet the machine was.

        The generator's own time for a unit should be about the same beside every proxy; where it is higher, the
        machine was slower just then.
        """
        each = 1e6 / max(1, units)
        return {
            "cpu_us": self.cpu * each,
            "user_us": self.cpu * each * self.user_share,
            "generator_us": self.own_cpu * each,
            "others_pct": self.others_pct,
        }


async def wait_until(true: Callable[[], bool], *, seconds: float) -> bool:
    """Wait for a condition, looking every millisecond; return whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.001)
    return True


async def measured(context: Context, proxy: Proxy, load: Load, *, same_core: bool = False) -> Measured:
    """Run a load and read the CPU time that the proxy used for it.

    On the generator's core the two take turns, each with a full batch of work, so that the cost of a unit does not
    depend on how much faster than the generator a proxy is. On a core of its own a fast proxy wakes for each message
    and spends on waking all the time it has.
    """
    pids = proxy.pids()
    pin(pids, context.generator_cpu if same_core else context.proxy_cpu)
    gc.collect()
    await asyncio.sleep(0.15)
    with taking_turns(pids) if same_core and context.turns else nullcontext():
        begun, busy, own = time.monotonic(), machine_busy(), time.process_time()
        before = cpu_usage(pids)
        report = await run_load(load)
        own_cpu = time.process_time() - own
        await asyncio.sleep(0.15)
        after = cpu_usage(pids)
        cpu = after.since(before)
        others = machine_busy() - busy - own_cpu - cpu
        took = time.monotonic() - begun
    pin(pids, context.proxy_cpu)
    return Measured(report, cpu, after.user_share(before), own_cpu, max(0.0, 100 * others / took))
