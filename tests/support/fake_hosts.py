"""Hosts for the fleet's tests: they keep the launcher's promises, and misbehave on demand."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.core.slot import Gone, Launched, Policy, ProcessHandle, Slot, Unknown
from pypto_serving_router.errors import JournalError
from pypto_serving_router.fleet.controller import Controller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

ANY = SlotId("*")
POLICY = Policy(launch_timeout=600, drain_timeout=300, replace_after=30)


def slots(count: int, host: str = "node", **fields: Any) -> list[Slot]:
    """Return slots `node-d0`, `node-d1`, … with one device each."""
    return [
        Slot(SlotId(f"{host}-d{n}"), HostId(host), f"{host}.example", 8001 + n, (n,), **fields) for n in range(count)
    ]


class MemoryJournal:
    """A journal without a disk; `broken` makes it full."""

    def __init__(self) -> None:
        self.saved: dict[SlotId, Slot] = {}
        self.broken = False
        self.saves = 0

    def load(self) -> tuple[Slot, ...]:
        return tuple(self.saved.values())

    async def save(self, slots: Iterable[Slot]) -> None:
        await asyncio.sleep(0.01)
        if self.broken:
            raise JournalError("the state file can't be written: No space left on device")
        self.saves += 1
        self.saved = {slot.id: slot for slot in slots if slot.generation}


class FakeHosts:
    """Every host of the fleet: which generations live, which addresses answer, and what goes wrong next.

    `fate[call, slot]`, or that of ANY slot, is consumed call by call: `ok`, `refused`, `unknown` (nothing happens),
    `lost` (it happens, and the answer is lost), `late` (the answer is lost, and it happens 100 s later), `raise`.
    """

    def __init__(self) -> None:
        self.alive: dict[SlotId, set[int]] = defaultdict(set)
        self.fence: dict[SlotId, int] = defaultdict(int)
        self.listening: dict[SlotId, int] = {}  # the status that its health endpoint answers
        self.exits: dict[SlotId, tuple[int, str]] = {}
        self.fate: dict[tuple[str, SlotId], list[str]] = defaultdict(list)
        self.look: dict[SlotId, bool | None] = {}  # what a look at the address says, whoever listens
        self.calls: list[tuple[str, SlotId]] = []
        self.started: list[tuple[SlotId, int, float]] = []
        self.seconds = 0.1
        self.slow: dict[str, float] = {}  # seconds that a host takes to look at all of its slots
        self.guards = True  # a start refuses while an earlier process of the slot lives
        self.loads_after: float | None = None  # seconds from a start until it listens, if it does by itself
        self.strays = False  # a command whose router dies while it is on its way lands nevertheless, later
        self.most = 0  # processes that ever lived on one slot at once

    def count(self, call: str) -> int:
        return sum(name == call for name, _ in self.calls)

    def load(self, slot: SlotId, status: int = 200) -> None:
        """The replica has loaded its model, and listens."""
        self.listening[slot] = status

    def die(self, slot: SlotId, status: int = 1, detail: str = "out of memory") -> None:
        self.alive[slot].clear()
        self.listening.pop(slot, None)
        self.exits[slot] = (status, detail)

    # --- the launcher ---

    async def start(self, slot: SlotId, generation: int) -> Launched | Gone | Unknown:
        match await self._call("start", slot, self._start, generation):
            case "refused":
                return Gone(generation, None, "permission denied (publickey)", refused=True)
            case "unknown":
                return Unknown(generation, "the connection broke")
            case "late":
                asyncio.get_running_loop().call_later(100, self._start, slot, generation)
                return Unknown(generation, "the connection broke")
            case "lost":
                self._start(slot, generation)
                return Unknown(generation, "the connection broke")
        if not self._start(slot, generation):
            return Gone(generation, None, "the fence is up", refused=True)
        return Launched(generation, _handle(generation))

    def _start(self, slot: SlotId, generation: int) -> bool:
        if generation <= self.fence[slot] or (self.guards and self.alive[slot]):
            return False
        self.started.append((slot, generation, asyncio.get_running_loop().time()))
        self.alive[slot].add(generation)
        self.exits.pop(slot, None)
        self.most = max(self.most, len(self.alive[slot]))
        if self.loads_after is not None:
            asyncio.get_running_loop().call_later(self.loads_after, self._loaded, slot, generation)
        return True

    def _loaded(self, slot: SlotId, generation: int) -> None:
        if generation in self.alive[slot]:
            self.load(slot)

    async def inspect(self, slot: SlotId, generation: int, handle: ProcessHandle | None) -> Launched | Gone | Unknown:
        if await self._call("inspect", slot) != "ok":
            return Unknown(generation, "the host is unreachable")
        if generation in self.alive[slot]:
            return Launched(generation, _handle(generation))
        status, detail = self.exits.get(slot, (None, "no such process"))
        return Gone(generation, status, detail)

    async def inspect_all(self, asked: Sequence[Slot]) -> dict[SlotId, Launched | Gone | Unknown]:
        self.calls.append(("inspect all", SlotId(asked[0].host)))
        assert {slot.host for slot in asked} == {asked[0].host}
        await asyncio.sleep(self.slow.get(asked[0].host, 0))
        answers = await asyncio.gather(*(self.inspect(slot.id, slot.generation, slot.handle) for slot in asked))
        return {slot.id: answer for slot, answer in zip(asked, answers, strict=True)}

    async def stop(
        self, slot: SlotId, generation: int, handle: ProcessHandle | None, *, grace: float
    ) -> Gone | Unknown:
        fate = await self._call("stop", slot, self._stop, generation)
        if fate == "unknown":
            return Unknown(generation, "the host is unreachable")
        if fate == "late":
            asyncio.get_running_loop().call_later(100, self._stop, slot, generation)
            return Unknown(generation, "the connection broke")
        self._stop(slot, generation)
        return Gone(generation, 0, "stopped") if fate == "ok" else Unknown(generation, "the answer was lost")

    def _stop(self, slot: SlotId, generation: int) -> None:
        self.fence[slot] = max(self.fence[slot], generation)
        if generation in self.alive[slot]:
            self.alive[slot].discard(generation)
            self.listening.pop(slot, None)

    async def log(self, slot: SlotId, *, lines: int) -> bytes:
        return b"".join(b"line %d of %s\n" % (n, slot.encode()) for n in range(lines))

    async def _call(
        self, name: str, slot: SlotId, act: Callable[[SlotId, int], object] | None = None, generation: int = 0
    ) -> str:
        self.calls.append((name, slot))
        fates = self.fate[name, slot] or self.fate[name, ANY]
        fate = fates.pop(0) if fates else "ok"
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            if act and self.strays:
                asyncio.get_running_loop().call_later(self.seconds, act, slot, generation)
            raise
        if fate == "raise":
            raise RuntimeError("nobody foresaw this")
        return fate

    # --- the network ---

    async def silent(self, slot: Slot) -> bool | None:
        await asyncio.sleep(0.001)
        return self.look.get(slot.id, slot.id not in self.listening)

    async def ask(self, slot: Slot) -> int | None:
        self.calls.append(("ask", slot.id))
        await asyncio.sleep(self.seconds)
        return self.listening.get(slot.id)


def _handle(generation: int) -> ProcessHandle:
    return ProcessHandle(generation % 2**22, str(generation), "boot")


class Log:
    """Remembers what was logged."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.records.append({"level": "info", "event": event, **fields})

    def warning(self, event: str, **fields: Any) -> None:
        self.records.append({"level": "warning", "event": event, **fields})

    def find(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.records if entry["event"] == event]

    def path(self, slot: str) -> list[str]:
        """The states that a slot has gone through."""
        return [entry["to"] for entry in self.find("slot changed") if entry["slot"] == slot]


class Rig:
    """A controller among fake hosts, in virtual time; the monitor's part is played by `probe`."""

    def __init__(
        self,
        declared: Iterable[Slot],
        *,
        hosts: FakeHosts | None = None,
        journal: MemoryJournal | None = None,
        policy: Policy = POLICY,
        ceiling: int | None = None,
        wall: float = 1_700_000_000.0,
        controller: type[Controller] = Controller,
    ) -> None:
        declared = list(declared)
        loop = asyncio.get_running_loop()
        self.hosts = hosts or FakeHosts()
        self.journal = journal if journal is not None else MemoryJournal()
        self.log = Log()
        self.published: dict[SlotId, Slot] = {}
        self.inflight: dict[SlotId, int] = defaultdict(int)
        self.controller = controller(
            declared,
            ceiling=len(declared) if ceiling is None else ceiling,
            policy=policy,
            launcher=self.hosts,
            journal=self.journal,  # type: ignore[arg-type]  # it has what the controller calls
            publish=self._publish,
            outstanding=lambda slot: self.inflight[slot],
            silent=self.hosts.silent,
            ask=self.hosts.ask,
            clock=loop.time,
            wall=lambda: wall + loop.time(),
            log=self.log,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Controller]:
        """Run the controller; what is left of it at the end dies, as in a crash."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.controller.run())
            try:
                yield self.controller
            finally:
                task.cancel()

    def _publish(self, slot: Slot) -> None:
        if not slot.taken:
            assert not self.hosts.alive[slot.id], f"{slot}, but {self.hosts.alive[slot.id]} live"
        self.published[slot.id] = slot

    def slot(self, name: str) -> Slot:
        return next(slot for slot in self.controller.slots if slot.id == name)

    def state(self, name: str) -> str:
        return self.slot(name).state.value

    async def probe(self, name: str, *, healthy: bool | None = None) -> None:
        """Probe a slot's replica once, or claim that it was found so."""
        slot = self.slot(name)
        status = self.hosts.listening.get(slot.id)
        if healthy is None:
            healthy = status == 200
        self.controller.on_probe(slot.id, slot.generation, healthy, status if healthy else None)
        await asyncio.sleep(0.1)

    async def ready(self, name: str) -> Slot:
        """Bring a launched slot to ready."""
        self.hosts.load(SlotId(name))
        await self.probe(name)
        assert self.state(name) == "ready"
        return self.slot(name)

    async def until(self, name: str, *states: str, within: float = 3600) -> float:
        """Wait until a slot is in one of the states; return how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self.state(name) not in states:
            assert loop.time() < began + within, f"{self.slot(name)} is still not {states}"
            await asyncio.sleep(0.05)
        return loop.time() - began
