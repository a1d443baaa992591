"""One soak: traffic, disturbances, samples and counts at rest, and the report."""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from soak.ledger import Ledger
from soak.traffic import PROTOCOL_ERRORS, Traffic
from soak.wire import Cut
from soak.world import World

if TYPE_CHECKING:
    from tests.support.harness import Harness

    from soak.ledger import Latencies

_REST_EVERY = 120.0  # seconds of traffic between two counts at rest
_SAMPLE_EVERY = 2.0
_MOST = 300  # requests under way at once; more would measure the soak's own client
_WARM_UP = 0.1  # of the samples, left out of the slope: caches and tables fill
_PATIENCE = 60.0
_LOOK_EVERY = 0.1
_STALL = 0.5  # seconds; a kept connection is stale for one second only (spec 4.6)


@dataclass(frozen=True, slots=True)
class Sample:
    """The router at one moment: seconds since the start, bytes, and counts."""

    at: float
    resident: int
    descriptors: int
    cpu: float
    in_flight: int
    requests: int
    findings: int


class Soak:
    """Everything of one run."""

    def __init__(self, harness: Harness, *, rate: float, calm: float, seed: int) -> None:
        self._folder = harness.folder
        self.ledger = Ledger(self._folder / "findings.txt")
        self.samples: list[Sample] = []
        self.rests = 0
        self._random = random.Random(seed)
        self._rate = rate
        self._calm = calm
        self._world = World(harness, self.ledger, seed + 1)
        self._traffic = Traffic(self._world.router.port, self.ledger, seed + 2, self._world.disturbed_since)
        self._tasks: set[asyncio.Task[None]] = set()
        self._calm_down = asyncio.Lock()  # held by a disturbance, and by a count at rest
        self._began = time.monotonic()
        self._descriptors_at_rest: list[int] = []
        self._loop_delay = ""

    async def run(self, seconds: float) -> None:
        """Run for that long, and come to rest."""
        self._began = time.monotonic()
        end = self._began + seconds
        sampler = asyncio.create_task(self._sample())
        disturber = asyncio.create_task(self._disturb(end))
        watcher = asyncio.create_task(self._watch_for_stalls())
        while (now := time.monotonic()) < end:
            await self._load(min(end, now + _REST_EVERY))
            await self._rest()
        await disturber
        await self._rest()
        self._loop_delay = await asyncio.to_thread(self._world.loop_delay)
        sampler.cancel()
        watcher.cancel()

    async def _load(self, until: float) -> None:
        """Begin requests at random moments."""
        due = time.monotonic()
        while (now := time.monotonic()) < until:
            if due > now:
                await asyncio.sleep(due - now)
            due = max(due + self._random.expovariate(self._rate), now - 1.0)
            if len(self._tasks) < _MOST:
                task = asyncio.create_task(self._one(self._traffic.pick()))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _one(self, kind: str) -> None:
        """Send one request of a kind and judge how it ended."""
        began = time.monotonic()
        failure = ""
        try:
            async with asyncio.timeout(_PATIENCE):
                outcome = await self._traffic.kinds[kind][1]()
        except Cut as error:
            outcome, failure = "cut", str(error)
        except TimeoutError:
            outcome, failure = "timeout", f"nothing for {_PATIENCE:g} s"
        except OSError as error:
            outcome, failure = "refused", str(error)
        except PROTOCOL_ERRORS as error:
            outcome = "WRONG"
            self.ledger.finding(f"{self._at():.1f} {kind}: {error!r}")
        if outcome in ("502", "503", "504"):
            failure = f"status {outcome}"
        if failure:
            expected = kind == "broken replica" or self._world.disturbed_since(began)
            if outcome in ("timeout", "refused") or not expected:
                self.ledger.finding(f"{self._at():.1f} {kind}: {outcome} without a cause: {failure}")
                outcome = "LOST"
            elif kind != "broken replica":
                outcome += " by a fault"
        self.ledger.count(kind, outcome)

    async def _disturb(self, end: float) -> None:
        """Do something to a replica now and then."""
        while True:
            pause = self._random.expovariate(1 / self._calm)
            if time.monotonic() + pause + 15 > end:
                return
            await asyncio.sleep(pause)
            async with self._calm_down:
                try:
                    await self._world.disturb()
                except (AssertionError, OSError) as error:
                    self.ledger.finding(f"{self._at():.1f} disturbance: {error!r}")

    async def _watch_for_stalls(self) -> None:
        """Take it for a disturbance when the machine gives this process no time: nor has the router any then."""
        while True:
            due = time.monotonic() + _LOOK_EVERY
            await asyncio.sleep(_LOOK_EVERY)
            if time.monotonic() - due > _STALL:
                async with self._world.disturbance(f"no CPU for over {_STALL:g} s"):
                    pass

    async def _rest(self) -> None:
        """Let everything end, disturbances too, and look whether anything is left."""
        async with self._calm_down:
            while self._tasks:
                await asyncio.wait(set(self._tasks))
            self._traffic.close()
            for what in await asyncio.to_thread(self._world.census):
                self.ledger.finding(f"{self._at():.1f} at rest: {what}")
        self.rests += 1
        self._descriptors_at_rest.append(self._descriptors())

    # --- looking ---

    def _at(self) -> float:
        return time.monotonic() - self._began

    def _descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self._world.router.pid}/fd").iterdir())

    async def _sample(self) -> None:
        with (self._folder / "samples.csv").open("w", buffering=1) as out:
            out.write("seconds,resident,descriptors,cpu,in_flight,requests,findings\n")
            while True:
                sample = self._look()
                self.samples.append(sample)
                out.write(
                    f"{sample.at:.1f},{sample.resident},{sample.descriptors},{sample.cpu:.2f},{sample.in_flight},"
                    f"{sample.requests},{sample.findings}\n"
                )
                await asyncio.sleep(_SAMPLE_EVERY)

    def _look(self) -> Sample:
        process = Path(f"/proc/{self._world.router.pid}")
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return Sample(
            at=self._at(),
            resident=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
            descriptors=self._descriptors(),
            cpu=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
            in_flight=len(self._tasks),
            requests=self.ledger.requests,
            findings=self.ledger.findings,
        )

    def growth(self) -> float:
        """Return the slope of the resident memory after the warm-up, by least squares, in bytes an hour."""
        kept = self.samples[int(len(self.samples) * _WARM_UP) :]
        count = len(kept)
        mean_at = sum(sample.at for sample in kept) / count
        mean = sum(sample.resident for sample in kept) / count
        spread = sum((sample.at - mean_at) ** 2 for sample in kept)
        if not spread:
            return 0.0
        return 3600 * sum((sample.at - mean_at) * (sample.resident - mean) for sample in kept) / spread

    def report(self) -> str:
        """Return what was seen, in Markdown."""
        ledger, first, last = self.ledger, self.samples[0], self.samples[-1]
        warm = self.samples[int(len(self.samples) * _WARM_UP)]
        lines = [
            f"| Ran for | {last.at:.0f} s |",
            "|---|---|",
            f"| Requests | {ledger.requests:,} |",
            f"| Findings | {ledger.findings} |",
            f"| Disturbances | {ledger.faults.total()} |",
            f"| Counts at rest | {self.rests}: nothing outstanding, no replica still generating |",
            f"| Resident memory | {_mib(first.resident)} at the start, {_mib(warm.resident)} warm, "
            f"{_mib(last.resident)} at the end, {_mib(max(s.resident for s in self.samples))} at most |",
            f"| Growth | {self.growth() / 2**20:+.2f} MiB an hour after the warm-up |",
            f"| Descriptors | {self._descriptors_at_rest[0]} at the first rest, {self._descriptors_at_rest[-1]} "
            f"at the last, {max(s.descriptors for s in self.samples)} at most |",
            f"| CPU of the router | {last.cpu - first.cpu:.1f} s, "
            f"{100 * (last.cpu - first.cpu) / max(1.0, last.at):.1f} % of a core |",
            f"| Short requests, beyond the replica's own time | {_tail(ledger.calm)} |",
            f"| Those during a disturbance | {_tail(ledger.troubled)} |",
            f"| How late the router's event loop was, by its own samples | {self._loop_delay} |",
            "",
            "| Kind | " + " | ".join(columns := sorted({outcome for _, outcome in ledger.outcomes})) + " |",
            "|---|" + "---:|" * len(columns),
        ]
        for kind in self._traffic.kinds:
            counts = (ledger.outcomes[kind, outcome] for outcome in columns)
            lines.append(f"| {kind} | " + " | ".join(f"{count:,}" if count else "" for count in counts) + " |")
        lines += ["", "| Disturbance | Times |", "|---|---:|"]
        lines += [f"| {what} | {count} |" for what, count in sorted(ledger.faults.items())]
        placements = ", ".join(f"{name or 'none'} {count:,}" for name, count in sorted(ledger.placements.items()))
        lines += ["", f"Placements: {placements}."]
        return "\n".join(lines) + "\n"


_QUANTILES = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))


def _tail(latencies: Latencies) -> str:
    shown = [f"{name} {1000 * latencies.quantile(share):.1f} ms" for name, share in _QUANTILES]
    return ", ".join([f"{latencies.count:,}", *shown, f"worst {1000 * latencies.worst:.0f} ms"])


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
