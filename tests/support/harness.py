"""What one test started, and its orderly end."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tests.support.fleet import replica
from tests.support.processes import TEST_MARK, end_marked, environment, installed, marked
from tests.support.router import Router
from tests.support.sim import INSTANT, Sim, flags
from tests.support.upstream import OK, RawUpstream
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import ssl

    from tests.support.upstream import Script

Fleet = Mapping[str, Any] | Sequence[Sim | RawUpstream | str | Mapping[str, Any]] | Path | None
"""A fleet file's document, its static replicas, its path, or none at all (`--demo`)."""

QUICK = ("--drain-timeout", "2", "--health-interval", "0.5")
"""A test that wants other values gives them; the last one counts."""


class Harness:
    """Starts simulated replicas, routers and raw upstreams for one test, and ends them.

    At the end a router gets `patience` seconds after a first SIGTERM, and as many after a second one.
    """

    def __init__(self, folder: Path, *, patience: float = 5.0) -> None:
        self.folder = folder
        self._patience = patience
        self._mark = uuid4().hex
        self._sims: list[Sim] = []
        self._routers: list[Router] = []
        self._upstreams: list[RawUpstream] = []

    def start_sim(
        self, *args: str, wait: bool = True, env: Mapping[str, str | None] | None = None, **options: object
    ) -> Sim:
        """Start a simulated replica on a port of its own, without any waits unless the options ask for some.

        `options` are its `--sim-*` options: `load_delay=1`, `break_with="rst"`. With `wait=False` it may still be
        loading, or fail to load.
        """
        defaults = ["--model", "/models/Qwen3-14B", "--served-model-name", "qwen", "--host", "127.0.0.1"]
        sim = Sim(
            [*defaults, "--port", "0", *INSTANT, *flags(options), *args],
            env=environment({TEST_MARK: f"{self._mark}/sim", **(env or {})}),
            folder=self.folder,
            name=f"sim{len(self._sims)}",
        )
        self._sims.append(sim)
        if wait:
            sim.wait_listening()
        return sim

    def start_upstream(self, *scripts: Script, health: Script = OK, tls: ssl.SSLContext | None = None) -> RawUpstream:
        """Start a byte-exact upstream; see `RawUpstream`."""
        upstream = RawUpstream(*scripts, health=health, tls=tls)
        self._upstreams.append(upstream)
        return upstream

    def start_router(
        self,
        fleet: Fleet,
        *args: str,
        wait: bool = True,
        env: Mapping[str, str | None] | None = None,
        executable: str | None = None,
    ) -> Router:
        """Start the installed router on a port of its own; with `wait=False` it may not listen yet, or ever."""
        number = len(self._routers)
        where = [] if fleet is None else ["--replicas", str(self._fleet_file(fleet, number))]
        router = Router(
            [
                executable or installed("pypto-serving-router"),
                *where,
                *("--host", "127.0.0.1", "--port", "0", "--log-format", "json"),
                *QUICK,
                *args,
            ],
            env=environment({TEST_MARK: f"{self._mark}/router", **(env or {})}),
            folder=self.folder,
            name=f"router{number}",
        )
        self._routers.append(router)
        if wait:
            router.wait_listening()
        return router

    def launched(self) -> dict[int, str]:
        """Return the living processes that descend from this test's routers, the routers themselves left out.

        Commands that a router runs on its own host are among them: they come and go.
        """
        found = marked(TEST_MARK, f"{self._mark}/router")
        return {pid: what for pid, what in found.items() if pid not in {router.pid for router in self._routers}}

    def end(self) -> list[str]:
        """End everything this test started; return what was wrong with it."""
        wrong = self._end_routers()
        for sim in self._sims:
            sim.kill()
        for process in [*self._routers, *self._sims]:
            wrong += [f"{trouble!r} in the output:\n{process.stderr}" for trouble in process.troubles()]
        for upstream in self._upstreams:
            try:
                upstream.close()
            except Exception as error:  # noqa: BLE001 - reported with the rest
                wrong.append(f"in a script of {upstream.url}: {error!r}")
        wrong += self._end_leftovers()
        return wrong

    def _end_routers(self) -> list[str]:
        """End routers in order; a second signal cuts short those that still drain."""
        for _ in range(2):
            running = [router for router in self._routers if router.status is None]
            for router in running:
                router.signal(signal.SIGTERM)
            deadline = time.monotonic() + self._patience
            for router in running:
                with contextlib.suppress(AssertionError):
                    router.wait(max(0.01, deadline - time.monotonic()))
        stuck = [router for router in self._routers if router.status is None]
        for router in stuck:
            router.kill()
        return [f"the router ignored two SIGTERMs:\n{router.stderr}" for router in stuck]

    def _end_leftovers(self) -> list[str]:
        """Kill what routers and simulated replicas left; only after an orderly end is that a fault."""
        last = self._routers[-1] if self._routers else None
        if last is not None and last.status == 0 and not last.may_leave_processes:
            with contextlib.suppress(AssertionError):
                wait_until(
                    lambda: not self.launched(),
                    timeout=min(2.0, self._patience),
                    what="the end of what the router launched",
                )
            left = end_marked(TEST_MARK, f"{self._mark}/router")
            wrong = [f"the router left process {pid}: {what}\n{last.stderr}" for pid, what in left.items()]
        else:
            end_marked(TEST_MARK, f"{self._mark}/router")
            wrong = []
        end_marked(TEST_MARK, f"{self._mark}/sim")
        return wrong

    def _fleet_file(self, fleet: Mapping[str, Any] | Sequence[Any] | Path, number: int) -> Path:
        if isinstance(fleet, Path):
            return fleet
        if not isinstance(fleet, Mapping):
            entries = [entry if isinstance(entry, Mapping) else replica(_url(entry)) for entry in fleet]
            fleet = {"replicas": entries}
        # By default all routers of a user keep a slot's files in one place; tests that run at once must not meet there.
        hosts = [{"log_dir": str(self.folder / "logs"), **host} for host in fleet.get("hosts", ())]
        fleet = {**fleet, **({"hosts": hosts} if hosts else {})}
        path = self.folder / f"fleet{number}.json"
        path.write_text(json.dumps(fleet))
        return path


def _url(entry: Sim | RawUpstream | str) -> str:
    return entry if isinstance(entry, str) else entry.url
