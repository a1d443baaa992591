"""The router under test and its replicas, some its own and some not, which die and return."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.support.client import request
from tests.support.fleet import replica, sim_host
from tests.support.ports import free_port
from tests.support.waiting import wait_until

from soak.traffic import DECODE_RATE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.harness import Harness
    from tests.support.sim import Sim

    from soak.ledger import Ledger

STATIC = 3
OWNED = 2
SETTLE = 2.5
"""Seconds after a disturbance in which a request may still feel it: until every kept connection and probe knows."""


class World:
    """Runs in the soak's loop; whatever starts or asks a process does so in a thread."""

    def __init__(self, harness: Harness, ledger: Ledger, seed: int) -> None:
        self._harness = harness
        self._ledger = ledger
        self._random = random.Random(seed)
        self._ports = [free_port() for _ in range(STATIC)]
        self._sims = [self._start_sim(index) for index in range(STATIC)]
        host = sim_host(range(OWNED), name="own", sim={"decode_rate": DECODE_RATE, "load_delay": 0.5})
        self.router = harness.start_router(
            {"replicas": [replica(sim.url, name=f"static{n}") for n, sim in enumerate(self._sims)], "hosts": [host]},
            *("--initial-replicas", str(OWNED), "--state-file", str(harness.folder / "state")),
            *("--health-interval", "1", "--replace-after", "2", "--connect-retries", "2", "--drain-timeout", "20"),
            *("--session-ttl", "120", "--access-log"),
        )
        self.router.wait_ready(STATIC + OWNED)
        self._owned_port = host["port_base"]
        self._disturbed = 0
        self._undisturbed_since = 0.0
        self._kill_owned_after = time.monotonic() + 60

    def _start_sim(self, index: int) -> Sim:
        return self._harness.start_sim("--port", str(self._ports[index]), decode_rate=DECODE_RATE)

    # --- whether a failure is to be expected ---

    def disturbed_since(self, began: float) -> bool:
        """Tell whether a replica was in trouble at any time since then."""
        return self._disturbed > 0 or began < self._undisturbed_since

    @asynccontextmanager
    async def disturbance(self, what: str) -> AsyncIterator[None]:
        """Count a fault; requests under way until shortly after it may fail."""
        self._ledger.faults[what] += 1
        self._disturbed += 1
        try:
            yield
        finally:
            self._disturbed -= 1
            self._undisturbed_since = time.monotonic() + SETTLE

    # --- disturbing ---

    async def disturb(self) -> None:
        """Do one thing to one replica, and undo it."""
        kind = self._random.choice(["kill", "kill", "stop", "unready", "hang", "freeze", "retire", "lose"])
        index = self._random.randrange(STATIC)
        sim = self._sims[index]
        if kind in ("kill", "stop"):
            async with self.disturbance(f"static replica: {'SIGKILL' if kind == 'kill' else 'SIGTERM'}"):
                await asyncio.to_thread(sim.kill if kind == "kill" else sim.stop)
                await asyncio.sleep(self._random.uniform(0.0, 4.0))
                self._sims[index] = await asyncio.to_thread(self._start_sim, index)
        elif kind in ("unready", "hang"):
            async with self.disturbance(f"static replica: /health {kind}"):
                await asyncio.to_thread(sim.fault, health=kind)
                await asyncio.sleep(self._random.uniform(0.5, 8.0))
                await asyncio.to_thread(sim.heal)
        elif kind == "freeze":
            async with self.disturbance("static replica: SIGSTOP, SIGCONT"):
                sim.signal(signal.SIGSTOP)
                await asyncio.sleep(self._random.uniform(0.5, 4.0))
                sim.signal(signal.SIGCONT)
        elif kind == "retire":
            await self._retire()
        elif time.monotonic() > self._kill_owned_after:
            await self._lose()

    async def _retire(self) -> None:
        """Take an owned replica away in order and launch another: no request may feel it."""
        self._ledger.faults["owned replica: DELETE, POST"] += 1
        name = f"own-d{self._random.randrange(OWNED)}"
        answer = await asyncio.to_thread(self.router.request, "DELETE", f"/replicas/{name}", timeout=90)
        if answer.status != 200:
            self._ledger.finding(f"DELETE {name}: {answer.status} {answer.body!r}")
        answer = await asyncio.to_thread(self.router.request, "POST", "/replicas", timeout=30)
        if answer.status != 202:
            self._ledger.finding(f"POST /replicas: {answer.status} {answer.body!r}")

    async def _lose(self) -> None:
        """Kill an owned replica; the router replaces it. Rarely, so that no slot loses three in a row."""
        self._kill_owned_after = time.monotonic() + 330
        index = self._random.randrange(OWNED)
        url = f"http://127.0.0.1:{self._owned_port + index}"
        async with self.disturbance("owned replica: SIGKILL"):
            state = await asyncio.to_thread(request, f"{url}/sim/state")
            os.kill(state.json()["pid"], signal.SIGKILL)
            await asyncio.to_thread(
                wait_until, lambda: self._outcast(f"own-d{index}"), timeout=10, what="a dead replica out of rotation"
            )
        await asyncio.to_thread(self.router.wait_ready, STATIC + OWNED, timeout=60)

    def _outcast(self, name: str) -> bool:
        return not any(row["name"] == name and row["ready"] for row in self.router.health()["replicas"])

    # --- looking ---

    def census(self) -> list[str]:
        """With no request under way and no replica in trouble: return what is not as it was before the first one."""
        try:
            wait_until(lambda: self._at_rest() == [], timeout=15, what="rest")
        except AssertionError:
            return self._at_rest()
        return []

    def loop_delay(self) -> str:
        """Return how late the router's event loop was: shares of its own samples below some bounds."""
        name = "pypto_router_loop_delay_seconds_bucket"
        lines = self.router.request("GET", "/metrics").body.decode().splitlines()
        counts = [line.removeprefix(name).split() for line in lines if line.startswith(name)]
        below = {bound.split('"')[1]: int(count) for bound, count in counts}
        total = below["+Inf"]
        return ", ".join(f"{100 * count / total:.3g} % within {bound} s" for bound, count in below.items())

    def _at_rest(self) -> list[str]:
        document = self.router.health()
        wrong = []
        if document["replicas_ready"] != STATIC + OWNED:
            wrong.append(f"{document['replicas_ready']} replicas are ready")
        for row in document["replicas"]:
            if row["outstanding"]:
                wrong.append(f"{row['name']} has {row['outstanding']} outstanding")
            if row["ready"]:
                state: dict[str, Any] = request(f"{row['url']}/sim/state").json()
                if state["waiting"] or state["running"]:
                    wrong.append(f"{row['name']} still generates for {state['waiting'] + state['running']} clients")
        return wrong
