"""The fleet's mailbox loop: the state file, and the router that comes after a crash, in virtual time."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest
from tests.support.fake_hosts import FakeHosts, Rig, slots
from tests.support.virtual_time import now, virtually

from pypto_serving_router.core.ids import SlotId
from pypto_serving_router.core.slot import Slot, SlotState
from pypto_serving_router.errors import LaunchFailed, PoolFull, SlotBusy
from pypto_serving_router.fleet.controller import Controller

D0, D1, D2 = SlotId("node-d0"), SlotId("node-d1"), SlotId("node-d2")


async def crashed(count: int = 1, *, ready: bool = True, declared: list[Slot] | None = None) -> Rig:
    """Launch replicas, and crash."""
    rig = Rig(declared or slots(count))
    async with rig.running() as fleet:
        for slot in fleet.slots[:count]:
            await fleet.launch(slot=slot.id)
            if ready:
                await rig.ready(slot.id)
    rig.hosts.calls.clear()
    return rig


def again(before: Rig, declared: list[Slot] | None = None, ceiling: int | None = None) -> Rig:
    """Return the next run of the router."""
    return Rig(declared or slots(3), hosts=before.hosts, journal=before.journal, ceiling=ceiling)


# --- the state file ---------------------------------------------------------------------------


class LooksAtTheJournal(FakeHosts):
    """Hosts that demand to be written down before they start anything."""

    rig: Rig

    async def start(self, slot, generation):  # type: ignore[no-untyped-def]  # as the original
        recorded = self.rig.journal.saved.get(slot)
        assert recorded is not None, "unrecorded"
        assert (recorded.state, recorded.generation) == ("launching", generation), "unrecorded"
        return await super().start(slot, generation)


class Careless(Controller):
    """A controller that writes down what it has done, not what it is about to do."""

    async def _write_ahead(self) -> None:
        asyncio.get_running_loop().call_soon(self._mailbox.post, lambda: None)
        if not self._todo:
            await super()._write_ahead()


@pytest.mark.parametrize("controller", [Controller, Careless])
@virtually
async def test_a_launch_is_on_disk_before_its_start_command_leaves(controller: type[Controller]) -> None:
    """Spec 7.12, law 1: and a controller without that law is found out."""
    hosts = LooksAtTheJournal()
    hosts.rig = Rig(slots(1), hosts=hosts, controller=controller)
    async with hosts.rig.running() as fleet:
        if controller is Careless:
            with pytest.raises(LaunchFailed, match="unrecorded"):
                await fleet.launch()
        else:
            await fleet.launch()


@virtually
async def test_a_full_disk_refuses_launches_and_nothing_else() -> None:
    """Spec 7.12: the start command does not leave, stops go on, and it ends with the fault."""
    rig = Rig(slots(2))
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        rig.journal.broken = True
        with pytest.raises(LaunchFailed, match="No space left"):
            await fleet.launch()
        assert rig.hosts.count("start") == 1
        assert rig.state(D1) == "free"
        assert (await fleet.retire(D0)).confirmed
        assert len(rig.log.find("state file not written")) == 1
        assert rig.journal.saved[D0].state == "ready"
        rig.journal.broken = False
        await asyncio.sleep(2)
        assert rig.journal.saved[D0].state == "free"
        assert len(rig.log.find("state file written again")) == 1
        await fleet.launch()


@virtually
async def test_a_full_disk_postpones_replacements() -> None:
    """Spec 7.9, 7.12: the slot did nothing wrong, so it is no loss."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        rig.hosts.die(D0)
        rig.journal.broken = True
        await rig.probe(D0)
        await rig.until(D0, "free")
        await asyncio.sleep(300)
        assert (rig.slot(D0).cooling, rig.slot(D0).losses) == (True, 1)
        rig.journal.broken = False
        assert await rig.until(D0, "starting") < 5


@virtually
async def test_news_that_changes_no_record_is_not_written() -> None:
    """Spec 7.12: health is not in the file; hundreds of probes a second cost no disk."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        saves = rig.journal.saves
        for healthy in (True, False, True, False):
            await rig.probe(D0, healthy=healthy)
        assert rig.journal.saves == saves


@virtually
async def test_a_fleet_without_a_state_file_works() -> None:
    """Spec 7.12: it is an option."""
    rig = Rig(slots(1))
    rig.controller._journal = None
    async with rig.running() as fleet:
        await fleet.recover()
        await fleet.launch()
        assert await fleet.shutdown()
    assert rig.journal.saves == 0


# --- adoption ---------------------------------------------------------------------------------


@virtually
async def test_what_answers_200_is_adopted_ready() -> None:
    """Spec 7.13: routable before the router listens, and the same process, not a new one."""
    before = await crashed()
    rig = again(before)
    async with rig.running() as fleet:
        await fleet.recover()
        slot = rig.published[D0]
        assert (slot.state, slot.cause) == ("ready", "adopted")
        assert (slot.generation, slot.handle) == (before.slot(D0).generation, before.slot(D0).handle)
        await fleet.start_initial(1)
        assert rig.hosts.count("start") == 0
        assert (await fleet.retire(D0)).confirmed
        assert not rig.hosts.alive[D0]


@virtually
async def test_what_answers_otherwise_is_adopted_starting() -> None:
    """Spec 7.13: the launch timeout counts from the adoption."""
    before = await crashed(ready=False)
    before.hosts.load(D0, 503)
    await asyncio.sleep(10_000)
    rig = again(before)
    async with rig.running() as fleet:
        await fleet.recover()
        assert rig.state(D0) == "starting"
        await asyncio.sleep(590)
        assert rig.state(D0) == "starting"
        assert await rig.until(D0, "stopping") < 15


@pytest.mark.parametrize("dead", [False, True])
@virtually
async def test_what_does_not_answer_stays_reserved(dead: bool) -> None:
    """Spec 7.13: still loading, out of reach or known to be gone: not adopted, and no launch gets its slot."""
    before = await crashed(ready=False)
    if dead:
        before.hosts.die(D0)
    rig = again(before, ceiling=1)
    async with rig.running() as fleet:
        await fleet.recover()
        assert [(entry.slot, entry.reason) for entry in fleet.capacity().unconfirmed] == [
            (D0, "unreachable-at-startup")
        ]
        await fleet.start_initial(1)
        await asyncio.sleep(3600)
        assert (rig.state(D0), rig.hosts.count("start")) == ("unconfirmed", 0)
        with pytest.raises(PoolFull):
            await fleet.launch()
        assert (await fleet.retire(D0)).confirmed
        assert not rig.hosts.alive[D0]


@virtually
async def test_what_answers_later_is_adopted_then() -> None:
    """Spec 7.13: it goes on being probed; the first answer makes it ours again, the first success makes it ready."""
    rig = again(await crashed(ready=False))
    async with rig.running() as fleet:
        await fleet.recover()
        assert rig.slot(D0).probed
        await rig.probe(D0)
        assert rig.state(D0) == "unconfirmed"
        rig.hosts.load(D0, 503)
        fleet.on_probe(D0, rig.slot(D0).generation, healthy=False, status=503)
        await rig.until(D0, "starting")
        await rig.ready(D0)


@virtually
async def test_an_answer_is_asked_after_once_at_a_time() -> None:
    """Spec 7.13: a host that is slow to say whose process it is does not get a command for each probe."""
    rig = again(await crashed(ready=False))
    async with rig.running() as fleet:
        await fleet.recover()
        rig.hosts.load(D0)
        rig.hosts.seconds = 60
        rig.hosts.calls.clear()
        for _ in range(10):
            await rig.probe(D0)
        assert rig.hosts.count("inspect") == 1
        await rig.until(D0, "ready")


@virtually
async def test_a_stranger_is_not_adopted() -> None:
    """Spec 7.13: a 200 from another process than the recorded one is nobody's of ours, and is not touched."""
    before = await crashed()
    before.hosts.die(D0)
    before.hosts.load(D0)  # somebody else took the port
    rig = again(before)
    async with rig.running() as fleet:
        await fleet.recover()
        assert [(entry.slot, entry.reason) for entry in fleet.capacity().unconfirmed] == [(D0, "address-in-use")]
        assert D0 not in {slot.id for slot in rig.published.values() if slot.present}
        assert not (await fleet.retire(D0)).confirmed
        rig.hosts.listening.clear()
        assert (await fleet.retire(D0)).confirmed
        assert rig.hosts.count("stop") == 0


@virtually
async def test_a_stranger_where_a_start_may_yet_arrive_ends_in_a_fence() -> None:
    """Laws 1 and 4: a launch that was written down may land after the crash, whoever answers at its address."""
    rig = Rig(slots(1))
    rig.hosts.seconds = 1000
    async with rig.running() as fleet:
        launch = asyncio.ensure_future(fleet.launch())
        await asyncio.sleep(1)
    launch.cancel()
    assert rig.journal.saved[D0].state == "launching"
    rig.hosts.seconds = 0.1
    rig.hosts.load(D0)
    later = again(rig)
    async with later.running() as fleet:
        await fleet.recover()
        assert later.slot(D0).cause == "unreachable-at-startup"
        later.hosts.listening.clear()
        assert (await fleet.retire(D0)).confirmed
        assert later.hosts.fence[D0] == rig.slot(D0).generation


@virtually
async def test_an_answer_stands_where_the_host_cannot_be_asked() -> None:
    """Spec 7.13: the process is looked at where it can be."""
    before = await crashed()
    before.hosts.fate["inspect", D0] = ["unknown"]
    rig = again(before)
    async with rig.running() as fleet:
        await fleet.recover()
        assert rig.state(D0) == "ready"


@virtually
async def test_a_host_that_fails_unforeseen_keeps_its_slots_reserved() -> None:
    """Spec 7.13: whatever goes wrong while asking, its slots are not free and those of other hosts are adopted."""
    declared = [*slots(2), *slots(1, host="other")]
    before = await crashed(3, declared=declared)
    before.hosts.fate["inspect", D0] = ["raise"]
    rig = again(before, declared)
    async with rig.running() as fleet:
        await fleet.recover()
        assert [slot.state for slot in fleet.slots] == ["unconfirmed", "unconfirmed", "ready"]


@virtually
async def test_a_router_that_is_short_of_descriptors_still_takes_up_what_answers() -> None:
    """Spec 7.13: one address that it has no descriptor to ask at keeps that one slot reserved, not its host's."""

    class Short(FakeHosts):
        async def ask(self, slot: Slot) -> int | None:
            if slot.id == D0:
                raise OSError(errno.EMFILE, "Too many open files")
            return await super().ask(slot)

    before = Rig(slots(2), hosts=Short())
    async with before.running() as fleet:
        for slot in fleet.slots:
            await fleet.launch(slot=slot.id)
            await before.ready(slot.id)
    rig = again(before)
    async with rig.running() as fleet:
        await fleet.recover()
        assert (rig.state(D0), rig.state(D1)) == ("unconfirmed", "ready")


@virtually
async def test_fifty_replicas_are_adopted_in_one_round_trip() -> None:
    """Spec 7.13: all slots are reserved first, and all are asked at the same time, with one command on each host."""
    declared = [*slots(40), *slots(20, host="other")]
    before = await crashed(50, declared=declared)
    before.hosts.seconds = 3
    rig = again(before, declared)
    async with rig.running() as fleet:
        began = now()
        recovery = asyncio.ensure_future(fleet.recover())
        await asyncio.sleep(1)
        assert fleet.capacity().owned == 50
        await recovery
        assert now() - began < 4
        assert [host for call, host in rig.hosts.calls if call == "inspect all"] == ["node", "other"]
        assert sum(slot.state == "ready" for slot in fleet.slots) == 50
        began = now()
        await fleet.start_initial(55)
        assert sum(slot.state == "launching" for slot in fleet.slots) == 5


@virtually
async def test_a_recorded_reservation_stays_whatever_answers() -> None:
    """Spec 7.13: what could not be confirmed to be gone is not adopted on the strength of an answer."""
    before = Rig(slots(1))
    before.hosts.fate["stop", D0] = ["unknown"]
    async with before.running() as fleet:
        await fleet.launch()
        await before.ready(D0)
        await fleet.retire(D0)
        since = fleet.capacity().unconfirmed[0].since
    rig = again(before)
    async with rig.running() as fleet:
        await fleet.recover()
        await rig.probe(D0)
        entry = fleet.capacity().unconfirmed[0]
        assert (entry.slot, entry.reason, entry.since) == (D0, "stop-unconfirmed", since)
        assert (await fleet.retire(D0)).confirmed


@virtually
async def test_a_recorded_drain_is_resumed() -> None:
    """Spec 7.13: the requests it waited for have gone with the router, so it is stopped, and not replaced."""
    before = Rig(slots(1))
    async with before.running() as fleet:
        await fleet.launch()
        await before.ready(D0)
        before.inflight[D0] = 1
        retirement = asyncio.ensure_future(fleet.retire(D0))
        await asyncio.sleep(1)
    retirement.cancel()
    rig = again(before)
    async with rig.running() as fleet:
        await fleet.recover()
        await rig.until(D0, "free", within=5)
        await asyncio.sleep(3600)
        assert not rig.hosts.alive[D0]
        assert rig.hosts.count("start") == 1


@virtually
async def test_a_recorded_loss_is_still_replaced() -> None:
    """Spec 7.9, 7.13: the promise of a replacement survives the router."""
    before = await crashed()
    async with before.running():
        pass
    cooling = Rig(slots(1), hosts=before.hosts, journal=before.journal)
    async with cooling.running() as fleet:
        await fleet.recover()
        cooling.hosts.die(D0)
        await cooling.probe(D0, healthy=False)
        await cooling.until(D0, "free")
    rig = again(cooling)
    async with rig.running() as fleet:
        await fleet.recover()
        assert rig.slot(D0).cooling
        await fleet.start_initial(1)
        assert rig.hosts.count("start") == 0
        assert 8 < await rig.until(D0, "starting") < 11


@virtually
async def test_a_restart_uses_an_abandoned_slot_again() -> None:
    """Spec 7.9: abandoned is what this run of the router has given up on."""
    before = await crashed()
    before.journal.saved[D0] = replace(before.journal.saved[D0], state=SlotState.ABANDONED, losses=3, wanted=False)
    before.hosts.die(D0)
    rig = again(before)
    async with rig.running() as fleet:
        await fleet.recover()
        assert (rig.state(D0), rig.slot(D0).losses) == ("free", 0)
        await fleet.start_initial(1)
        await rig.until(D0, "starting")


@pytest.mark.parametrize("state", [state for state in SlotState if state != "unconfirmed"])
@virtually
async def test_a_recovery_that_is_cut_short_ends_in_an_orderly_shutdown(state: SlotState) -> None:
    """Spec 7.11, 7.13: what is recorded is the router's, and is stopped, whatever it was about and whoever answered."""
    declared = [*slots(2), *slots(1, host="slow")]
    before = await crashed(3, declared=declared)
    for name in (D0, slow := SlotId("slow-d0")):
        before.journal.saved[name] = replace(before.journal.saved[name], state=state)
    if state in ("free", "abandoned"):
        before.hosts.die(D0)
        before.hosts.die(slow)
    rig = again(before, declared)
    rig.hosts.slow["slow"] = 40
    async with rig.running() as fleet:
        stop, began = asyncio.Event(), now()
        asyncio.get_running_loop().call_later(1, stop.set)
        await fleet.recover(until=stop)
        assert now() - began < 1.1
        assert rig.state(D1) == "ready"
        assert await fleet.shutdown()
        assert not any(rig.hosts.alive.values())
        assert {slot.state for slot in rig.journal.saved.values()} == {"free"}


# --- a fleet file that was changed in between -------------------------------------------------


@virtually
async def test_a_record_of_an_undeclared_slot_is_kept_and_listed() -> None:
    """Spec 7.13: never dropped, until the operator says that it is over."""
    before = await crashed(2)
    rig = again(before, slots(1))
    async with rig.running() as fleet:
        await fleet.recover()
        assert [(entry.slot, entry.reason) for entry in fleet.capacity().unconfirmed] == [(D1, "undeclared")]
        assert rig.log.find("slot is not declared any more")[0]["slot"] == D1
        await fleet.retire(D0)
        assert rig.journal.saved[D1].state == "ready"
        assert not (await fleet.retire(D1)).confirmed
        assert (await fleet.retire(D1, force=True)).confirmed
        assert fleet.capacity().unconfirmed == ()
        await fleet.launch()
        assert D1 not in rig.journal.saved


@virtually
async def test_no_launch_on_devices_that_an_undeclared_slot_holds() -> None:
    """Spec 7.13: a host that was renamed is the same machine, and the cards are taken."""
    before = await crashed(2)
    renamed = [replace(slot, address="node.example") for slot in slots(3, host="renamed")]
    rig = again(before, renamed)
    async with rig.running() as fleet:
        await fleet.recover()
        assert fleet.capacity().free_slots == ("renamed-d2",)
        await fleet.start_initial(3)
        assert [slot.state for slot in fleet.slots] == ["free", "free", "launching"]
        with pytest.raises(SlotBusy):
            await fleet.launch(slot=SlotId("renamed-d0"))
        await fleet.retire(D0, force=True)
        assert (await fleet.launch()).slot.id == "renamed-d0"


@virtually
async def test_a_slot_that_was_cut_differently_stays_where_it_was_launched() -> None:
    """Spec 7.13: it is asked for where it was, holds the devices that it held, and is free where it is declared."""
    first, _, third = slots(3)
    pair = replace(first, devices=(0, 1), port=9000)
    before = await crashed(declared=[pair, replace(third, devices=(2, 3))])
    rig = again(before, slots(3))
    async with rig.running() as fleet:
        await fleet.recover()
        assert rig.log.find("slot is declared elsewhere now")[0]["slot"] == D0
        assert (rig.state(D0), rig.slot(D0).port, rig.slot(D0).devices) == ("ready", 9000, (0, 1))
        assert fleet.capacity().free_slots == (D2,)
        await fleet.retire(D0)
        assert (rig.slot(D0).port, rig.slot(D0).devices) == (8001, (0,))
        assert fleet.capacity().free_slots == (D0, D1, D2)


@virtually
async def test_initial_replicas_wait_for_a_stop_that_is_resumed() -> None:
    """Spec 7.2, 7.13: what an earlier run was stopping is no replica of this one, and its devices are used again."""
    before = Rig(slots(2))
    before.hosts.seconds = 5
    async with before.running() as fleet:
        for _ in range(2):
            await fleet.launch()
        await before.ready(D0)
        await before.ready(D1)
        retiring = [asyncio.ensure_future(fleet.retire(slot)) for slot in (D0, D1)]
        await before.until(D1, "stopping")
    for each in retiring:
        each.cancel()
    rig = again(before)
    rig.hosts.seconds = 5
    async with rig.running() as fleet:
        await fleet.recover()
        await fleet.start_initial(2)
        assert [rig.state(name) for name in (D0, D1)] == ["stopping"] * 2
        assert not rig.log.find("initial replicas not launched")
        gone = asyncio.ensure_future(fleet.retire(D1))  # the operator's word is later than the option's
        await rig.until(D0, "starting")
        assert (await gone).confirmed
        assert rig.state(D1) == "free"
        assert rig.slot(D0).cause == "launched"
