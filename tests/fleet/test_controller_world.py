"""The whole controller in a hostile world: real passes, timers and write-ahead, and a router killed at any moment.

Hypothesis writes the script; virtual time makes hours of it cheap. Hosts here don't refuse a start beside a living
process, as real ones do: what keeps to one process a slot is the controller alone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import virtual_time
from tests.support.fake_hosts import ANY, FakeHosts, MemoryJournal, Rig, slots

from pypto_serving_router.errors import RouterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pypto_serving_router.core.ids import SlotId
    from pypto_serving_router.fleet.controller import Controller

SLOTS = [slot.id for slot in slots(3)]
CEILING = 2
SLOT = st.sampled_from(SLOTS)
FATES = st.sampled_from(["refused", "unknown", "lost", "late", "raise"])

STEP = st.one_of(
    st.tuples(st.just("launch")),
    st.tuples(st.just("retire"), SLOT),
    st.tuples(st.just("wait"), st.sampled_from([0.05, 1, 12, 45, 700])),
    st.tuples(st.just("die"), SLOT),
    st.tuples(st.just("hang"), SLOT),
    st.tuples(st.just("fail"), st.sampled_from(["start", "stop", "inspect"]), FATES),
    st.tuples(st.just("slow"), st.sampled_from([0.1, 5])),
    st.tuples(st.just("disk"), st.booleans()),
    st.tuples(st.just("crash"), st.booleans()),
)


class World:
    """What outlives the router: hosts, disk, and the people who use it."""

    def __init__(self) -> None:
        self.hosts = FakeHosts()
        self.hosts.guards = False
        self.hosts.loads_after = 20
        self.journal = MemoryJournal()
        self.people: set[asyncio.Task[Any]] = set()
        self.hung: set[SlotId] = set()

    async def play(self, script: Sequence[tuple[Any, ...]]) -> None:
        left = list(script)
        while left:
            self.journal.broken = False
            rig = Rig(slots(3), hosts=self.hosts, journal=self.journal, ceiling=CEILING)
            async with rig.running() as fleet, asyncio.TaskGroup() as tasks:
                monitor = tasks.create_task(self.monitor(rig))
                await fleet.recover()
                await fleet.start_initial(1)
                while left and (step := left.pop(0))[0] != "crash":
                    await self.act(fleet, *step)
                    self.check(fleet)
                self.hosts.strays = bool(left) and step[-1]
                if not left:
                    await self.settle(rig)
                monitor.cancel()
        for person in self.people:
            person.cancel()

    async def act(self, fleet: Controller, kind: str, *details: Any) -> None:
        match kind, *details:
            case "launch", *_:
                self.ask(fleet.launch())
            case "retire", slot:
                self.ask(fleet.retire(slot))
            case "wait", seconds:
                await asyncio.sleep(seconds)
            case "die", slot:
                self.hosts.die(slot)
            case "hang", slot:
                self.hung ^= {slot}
            case "fail", call, fate:
                self.hosts.fate[call, ANY].append(fate)
            case "slow", seconds:
                self.hosts.seconds = seconds
            case "disk", full:
                self.journal.broken = full

    def ask(self, call: Any) -> None:
        """Somebody uses the API, and doesn't mind what comes of it."""

        async def person() -> None:
            with suppress(RouterError):
                await call

        task = asyncio.ensure_future(person())
        self.people.add(task)
        task.add_done_callback(self.people.discard)

    async def monitor(self, rig: Rig) -> None:
        """Probe every replica every 5 s; two failures in a row count."""
        failures: dict[SlotId, int] = {}
        while True:
            for slot in rig.controller.slots:
                if slot.probed:
                    status = None if slot.id in self.hung else self.hosts.listening.get(slot.id)
                    failures[slot.id] = 0 if status == 200 else failures.get(slot.id, 0) + 1
                    healthy = status == 200 or (slot.state == "ready" and failures[slot.id] < 2)
                    rig.controller.on_probe(slot.id, slot.generation, healthy, status)
            await asyncio.sleep(5)

    def check(self, fleet: Controller) -> None:
        assert self.hosts.most <= 1, "two processes on one slot"
        assert sum(slot.taken for slot in fleet.slots) <= CEILING
        for slot in fleet.slots:
            assert slot.taken or not self.hosts.alive[slot.id], f"{slot}, but {self.hosts.alive[slot.id]} live"

    async def settle(self, rig: Rig) -> None:
        """Once faults stop, and an operator looks after what is unconfirmed, every slot comes to rest."""
        self.hosts.fate.clear()
        self.hosts.seconds = 0.1
        self.hung.clear()
        self.journal.broken = False
        await asyncio.sleep(200)  # what is late arrives
        for _ in range(6):
            for slot in rig.controller.slots:
                if slot.state == "unconfirmed":
                    await rig.controller.retire(slot.id)
            await asyncio.sleep(700)
            self.check(rig.controller)
        for slot in rig.controller.slots:
            assert slot.state in ("free", "ready", "abandoned"), slot
            assert not slot.cooling, slot
            assert self.hosts.alive[slot.id] == ({slot.generation} if slot.taken else set())
        assert await rig.controller.shutdown()
        assert not any(self.hosts.alive.values())
        assert not any(slot.taken for slot in self.journal.saved.values())


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(st.lists(STEP, min_size=10, max_size=30))
def test_the_controller_survives_a_hostile_world(script: list[tuple[Any, ...]]) -> None:
    """Spec 7.7, 7.9, 7.11 to 7.13: one process a slot, none on a free one, and every fleet comes to rest."""
    virtual_time.run(World().play([*script, ("wait", 1)]))
