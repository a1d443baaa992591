"""One comparison: the proxies side by side, the same work for each, round after round in rotated order."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from bench.catalogue import DIRECT, NotFound, version
from bench.load import Load, run_load
from bench.measures.context import Context, Figures
from bench.measures.registry import MEASURES
from bench.measures.saturation import cheap_replicas, tools
from bench.proxy import Address, Proxy, ProxyFailed, Setting
from bench.script import Script
from bench.tables import show

_LONGEST = 180.0
"""Seconds after which a measure that hangs is given up."""


class Comparison:
    """Runs measures on proxies and collects the figures."""

    def __init__(
        self,
        context: Context,
        setting: Setting,
        *,
        peers: Sequence[str],
        measures: Sequence[str],
        rounds: int,
        replicas: Sequence[Address],
        keep: Callable[[], None],
    ) -> None:
        self.results: dict[str, dict[str, list[Figures]]] = {name: {} for name in measures}
        self.order = [*peers]
        self.not_run: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.commands: dict[str, list[str]] = {}
        self._context = context
        self._setting = setting
        self._peers = [*peers]
        self._rounds = rounds
        self._replicas = replicas
        self._keep = keep
        """Called after each figure, so that a comparison that is cut short keeps what it has."""

    async def run(self) -> None:
        """Run every measure on every proxy that can be had."""
        self._find_out_versions()
        shared = [name for name in self.results if not MEASURES[name].fresh]
        if shared:
            async with self._started() as proxies:
                for name in shared:
                    await self._rounds_of(name, proxies)
        for name in self.results:
            if MEASURES[name].fresh:
                await self._fresh(name)

    def _find_out_versions(self) -> None:
        """Note the version of each peer; drop those whose programs are missing."""
        for name in list(self._peers):
            if name == DIRECT:
                continue
            try:
                argv = Proxy(name, self._setting, self._replicas, "look").argv
                self.versions[name] = version(argv[0])
                self.commands[name] = argv
            except (NotFound, OSError) as exc:
                self._give_up(name, str(exc))

    def _give_up(self, name: str, why: str) -> None:
        print(f"! {name}: {why}", file=sys.stderr, flush=True)
        self.not_run[name] = why
        self._peers.remove(name)

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[list[Proxy]]:
        """Start all proxies, warm them up and put them to sleep."""
        proxies: list[Proxy] = []
        try:
            for name in list(self._peers):
                proxy = Proxy(name, self._setting, self._replicas, "shared")
                try:
                    await proxy.start()
                except ProxyFailed as exc:
                    proxy.stop()
                    self._give_up(name, str(exc))
                    continue
                proxies.append(proxy)
                await self._warm_up(proxy)
                proxy.sleep()
            yield proxies
        finally:
            for proxy in proxies:
                proxy.stop()

    async def _warm_up(self, proxy: Proxy) -> None:
        """Fill caches and the pool of connections to the replicas."""
        short = min(0.5, self._context.seconds)
        await run_load(Load(port=proxy.port, script=Script(), connections=32, seconds=short))
        script = Script(stream=1, events=5, interval=5)
        await run_load(Load(port=proxy.port, script=script, connections=50, requests=50, timeout=10))

    async def _rounds_of(self, measure: str, proxies: Sequence[Proxy]) -> None:
        wanted = [p for p in proxies if MEASURES[measure].direct or p.name != DIRECT]
        for turn in range(self._rounds if MEASURES[measure].repeated else 1):
            at = turn % max(1, len(wanted))
            for proxy in [*wanted[at:], *wanted[:at]]:
                try:
                    await proxy.wake()
                except ProxyFailed as exc:
                    self._note(measure, proxy.name, {"failed": str(exc)})
                else:
                    await self._one(measure, proxy)
                proxy.sleep()

    async def _fresh(self, measure: str) -> None:
        """Run a measure on proxies that are started for it and have the machine to themselves."""
        wanted = [n for n in self._peers if MEASURES[measure].direct or n != DIRECT]
        if measure == "sat":
            if tools(self._context) is None:
                self.not_run["sat by wrk"] = (
                    "wrk and nginx are needed; our own generator was used, which may be the limit: see busy_pct"
                )
            replicas: AbstractAsyncContextManager[Sequence[Address]] = cheap_replicas(self._context, self._replicas)
        else:
            replicas = nullcontext(self._replicas)
        async with replicas as upstream:
            for turn in range(self._rounds if MEASURES[measure].repeated else 1):
                at = turn % max(1, len(wanted))
                for name in [*wanted[at:], *wanted[:at]]:
                    proxy = Proxy(name, self._setting, upstream, measure)
                    try:
                        await proxy.start()
                        await self._one(measure, proxy)
                    except ProxyFailed as exc:
                        self._note(measure, name, {"failed": str(exc)})
                    finally:
                        proxy.stop()

    async def _one(self, measure: str, proxy: Proxy) -> None:
        try:
            figures = await asyncio.wait_for(MEASURES[measure].run(self._context, proxy), _LONGEST)
        except Exception as exc:  # noqa: BLE001 - a peer that breaks must not end the comparison; the row says so
            figures = {"failed": repr(exc)}
        self._note(measure, proxy.name, figures)

    def _note(self, measure: str, peer: str, figures: Figures) -> None:
        self.results[measure].setdefault(peer, []).append(figures)
        if "failed" in figures:
            self.not_run[f"{measure} of {peer}"] = str(figures["failed"])
        self._keep()
        words = " ".join(f"{key}={show(value)}" for key, value in figures.items())
        print(f"{measure:9}{peer:15}{words}", file=sys.stderr, flush=True)
