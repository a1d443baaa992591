"""How long a fleet is short of a replica that died, and how long a router that was killed takes to have its fleet back.

python -m bench.recovery [--rounds 3] [--replicas 50]

Everything runs with the default settings, on simulated replicas. The first table follows one replica's death under a
steady ten requests a second; the second a router killed while it owns a large fleet.
"""

import argparse
import http.client
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.machine import require_linux
from tests.support.client import chat, request
from tests.support.fleet import sim_host
from tests.support.harness import Harness
from tests.support.router import Router
from tests.support.waiting import wait_until

# What the harness makes quicker for tests is put back.
_DEFAULTS = ("--health-interval", "5", "--drain-timeout", "300")
_PATIENCE = 600.0
_LOAD = 2.0
"""Seconds that the simulated replicas take to load."""
_RATE = 10.0
"""Requests a second."""


class Death(NamedTuple):
    """What followed a replica's death: seconds since it, and requests."""

    out_of_rotation: float
    taken_for_dead: float
    slot_free: float
    launched_again: float
    full_strength: float
    """The model's load time taken off."""
    failed: int
    """Requests that got no whole answer of 200."""
    requests: int


class Comeback(NamedTuple):
    """What it took the next router, from its start: seconds."""

    listening: float
    all_routable: float
    adopted: int
    """Routable when it first answered."""


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _when(router: Router, event: str, **fields: object) -> float:
    return _seconds(router.wait_log(event, timeout=_PATIENCE, **fields)["timestamp"])


def _ready(router: Router) -> list[dict[str, Any]]:
    return router.log_events("slot changed", slot="node-d0", to="ready")


class _Traffic:
    """Asks for short streams at a steady rate, whatever becomes of the earlier ones."""

    def __init__(self, router: Router) -> None:
        self.whole: list[bool] = []
        self._router = router
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(64)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self._pool.submit(self._ask)
            due += 1 / _RATE
            time.sleep(max(0.0, due - time.monotonic()))

    def _ask(self) -> None:
        body = chat("Tell me more", stream=True, max_tokens=20)
        try:
            answer = request(f"{self._router.url}/v1/chat/completions", "POST", body=body, timeout=60)
            self.whole.append(answer.status == 200)
        except (OSError, http.client.HTTPException):
            self.whole.append(False)

    def end(self) -> list[bool]:
        self._stop.set()
        self._thread.join()
        self._pool.shutdown()
        return self.whole


def follow_a_death(folder: Path) -> Death:
    """Kill one of two replicas under traffic, and wait until it has been replaced."""
    harness = Harness(folder, patience=60)
    traffic: _Traffic | None = None
    try:
        host = sim_host([0, 1], sim={"load_delay": _LOAD, "decode_rate": 40})
        router = harness.start_router({"hosts": [host]}, *_DEFAULTS, "--initial-replicas", "2")
        launched = _when(router, "slot changed", slot="node-d0", to="launching")
        load = _when(router, "slot changed", slot="node-d0", to="ready") - launched
        router.wait_ready(2, timeout=_PATIENCE)
        traffic = _Traffic(router)
        time.sleep(5.0)
        victim = router.log_events("slot changed", slot="node-d0", to="starting")[0]["pid"]
        os.kill(victim, signal.SIGKILL)
        died = time.time()
        out = _when(router, "replica is not routable", replica="node-d0")
        dead = _when(router, "slot changed", slot="node-d0", to="draining")
        free = _when(router, "slot changed", slot="node-d0", to="free")
        again = _when(router, "slot changed", slot="node-d0", to="launching", cause="replacement")
        wait_until(lambda: len(_ready(router)) == 2, timeout=_PATIENCE, what="the replacement")
        full = _seconds(_ready(router)[1]["timestamp"])
        time.sleep(2.0)
        whole = traffic.end()
        return Death(
            out_of_rotation=out - died,
            taken_for_dead=dead - died,
            slot_free=free - died,
            launched_again=again - died,
            full_strength=full - load - died,
            failed=whole.count(False),
            requests=len(whole),
        )
    finally:
        if traffic is not None:
            traffic.end()
        _end(harness)


def come_back(folder: Path, replicas: int) -> Comeback:
    """Kill a router that owns many replicas, and wait until the next one routes to all of them."""
    harness = Harness(folder, patience=120)
    try:
        fleet = {"hosts": [sim_host(range(replicas))]}
        options = (*_DEFAULTS, "--state-file", str(folder / "state"), "--initial-replicas", str(replicas))
        first = harness.start_router(fleet, *options)
        first.wait_ready(replicas, timeout=_PATIENCE)
        first.kill()
        begun = time.monotonic()
        second = harness.start_router(fleet, *options)
        listening = time.monotonic() - begun
        adopted = second.health()["replicas_ready"]
        wait_until(lambda: second.health()["replicas_ready"] == replicas, timeout=_PATIENCE, what="the whole fleet")
        return Comeback(listening, time.monotonic() - begun, adopted)
    finally:
        _end(harness)


def _end(harness: Harness) -> None:
    for trouble in harness.end():
        print(trouble, file=sys.stderr)


def _repeat(measure: Callable[[Path], Sequence[float]], rounds: int) -> list[Sequence[float]]:
    results = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="bench-recovery-") as folder:
            results.append(measure(Path(folder)))
    return results


def _table(title: str, results: list[Sequence[float]], rows: Sequence[tuple[str, str]]) -> str:
    lines = [f"{title} ({len(results)} rounds)", "", "| | least | median | most |", "|---|---:|---:|---:|"]
    for (label, form), column in zip(rows, zip(*results, strict=True), strict=True):
        shown = (min(column), statistics.median(column), max(column))
        lines.append(f"| {label} | {' | '.join(format(value, form) for value in shown)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure both, and print the tables."""
    require_linux()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=50, help="that the killed router owns")
    options = parser.parse_args()
    deaths = _repeat(follow_a_death, options.rounds)
    moments = (
        "out of rotation",
        "taken for dead",
        "its stop confirmed",
        "launched again",
        "full strength, less the load",
    )
    rows = [*((f"{moment}, s after the death", ".1f") for moment in moments), ("requests failed", ".0f"), ("of", ".0f")]
    print(_table(f"A replica killed under {_RATE:.0f} requests a second, one of two", deaths, rows))
    comebacks = _repeat(lambda folder: come_back(folder, options.replicas), options.rounds)
    rows = [
        ("listening, s after its start", ".2f"),
        ("all routable, s after its start", ".2f"),
        ("adopted by then", ".0f"),
    ]
    print(_table(f"A router killed and started again, with {options.replicas} replicas", comebacks, rows))


if __name__ == "__main__":
    main()
