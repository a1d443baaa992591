"""The fleet's mailbox loop: replicas that die, and what becomes of their slots, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.support.fake_hosts import POLICY, Rig, slots
from tests.support.virtual_time import now, virtually

from pypto_serving_router.core.ids import SlotId
from pypto_serving_router.errors import LaunchFailed, UnknownSlot

D0, D1, D2 = SlotId("node-d0"), SlotId("node-d1"), SlotId("node-d2")


async def lose(rig: Rig, name: SlotId = D0) -> None:
    """A ready replica dies, a probe finds it out, and its stop is confirmed."""
    await rig.ready(name)
    rig.hosts.die(name)
    await rig.probe(name)
    await rig.until(name, "free", "abandoned", "unconfirmed")


@virtually
async def test_a_dead_replica_is_replaced_on_its_slot() -> None:
    """Spec 7.9: unroutable for `--replace-after`, it is stopped and, 10 s after that is confirmed, launched again."""
    rig = Rig(slots(2))
    async with rig.running() as fleet:
        first = (await fleet.launch()).slot.generation
        await rig.ready(D0)
        rig.hosts.die(D0)
        await rig.probe(D0)
        assert 29 < await rig.until(D0, "draining", "stopping") < 31
        await rig.until(D0, "free")
        assert rig.hosts.count("stop") == 1
        assert fleet.capacity().free_slots == (D0, D1)
        assert 9 < await rig.until(D0, "starting") < 11
        slot = await rig.ready(D0)
        assert slot.generation > first
        assert rig.state(D1) == "free"


@virtually
async def test_a_replica_that_recovers_is_left_alone() -> None:
    """Spec 7.9: one success within `--replace-after` starts the count again."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        for _ in range(10):
            await rig.probe(D0, healthy=False)
            await asyncio.sleep(25)
            await rig.probe(D0, healthy=True)
        assert rig.hosts.count("start") == 1
        assert rig.state(D0) == "ready"


@virtually
async def test_the_third_loss_in_a_row_abandons_the_slot() -> None:
    """Spec 7.9: 10 s after the first loss, 20 s after the second, and the third is the last."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await lose(rig)
        assert 9 < await rig.until(D0, "starting") < 11
        await lose(rig)
        assert 19 < await rig.until(D0, "starting") < 21
        await lose(rig)
        assert rig.state(D0) == "abandoned"
        await asyncio.sleep(7200)
        assert rig.state(D0) == "abandoned"
        capacity = fleet.capacity()
        assert (capacity.owned, capacity.free_slots) == (0, (D0,))
        assert [entry.slot for entry in capacity.abandoned] == [D0]
        assert "out of rotation for 30 s" in capacity.last_errors[D0]
        with pytest.raises(UnknownSlot):
            await fleet.retire(D0)


@virtually
async def test_an_operator_may_use_an_abandoned_slot_again() -> None:
    """Spec 7.9: and the row of losses begins anew."""
    rig = Rig(slots(1), policy=replace(POLICY, losses=1))
    async with rig.running() as fleet:
        await fleet.launch()
        await lose(rig)
        assert rig.state(D0) == "abandoned"
        await fleet.launch()
        assert (rig.state(D0), rig.slot(D0).losses) == ("starting", 0)
        assert fleet.capacity().abandoned == ()


@virtually
async def test_a_replacement_that_never_gets_ready_is_a_loss() -> None:
    """Spec 7.9: timed out, exited, refused or uncertain, each counts."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await lose(rig)
        await rig.until(D0, "starting")
        assert 599 < await rig.until(D0, "free") < 610
        rig.hosts.fate["start", D0] = ["refused"]
        assert 19 < await rig.until(D0, "abandoned") < 22
        assert rig.hosts.count("start") == 3


@pytest.mark.parametrize("fate", ["refused", "lost", "unknown"])
@virtually
async def test_a_first_launch_that_fails_is_not_retried(fate: str) -> None:
    """Spec 7.9: only what was ready once is replaced."""
    rig = Rig(slots(1))
    rig.hosts.fate["start", D0] = [fate]
    async with rig.running() as fleet:
        with pytest.raises(LaunchFailed):
            await fleet.launch()
        await asyncio.sleep(7200)
        assert rig.hosts.count("start") == 1
        assert (rig.state(D0), rig.slot(D0).wanted) == ("free", False)


@virtually
async def test_five_minutes_ready_end_the_row_of_losses() -> None:
    """Spec 7.9: a replica that stayed ready for five minutes has no losses behind it."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        for _ in range(5):
            await lose(rig)
            assert 9 < await rig.until(D0, "starting") < 11
            await rig.ready(D0)
            await asyncio.sleep(299)
            assert rig.slot(D0).losses == 1
            await asyncio.sleep(2)
            assert rig.slot(D0).losses == 0


@virtually
async def test_only_an_uninterrupted_time_ends_the_row() -> None:
    """Spec 7.9: the five minutes begin again when the replica is unroutable in between."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await lose(rig)
        await rig.until(D0, "starting")
        await rig.ready(D0)
        await asyncio.sleep(290)
        await rig.probe(D0, healthy=False)
        await rig.probe(D0, healthy=True)
        await asyncio.sleep(290)
        assert rig.slot(D0).losses == 1
        await asyncio.sleep(20)
        assert rig.slot(D0).losses == 0


@virtually
async def test_a_stop_that_cannot_be_confirmed_is_never_launched_onto() -> None:
    """Spec 7.9: a dead replica on an unreachable host keeps its slot reserved; the operator's retirement ends it."""
    rig = Rig(slots(1))
    rig.hosts.fate["stop", D0] = ["unknown"]
    async with rig.running() as fleet:
        await fleet.launch()
        await lose(rig)
        assert rig.state(D0) == "unconfirmed"
        await asyncio.sleep(7200)
        assert rig.hosts.count("start") == 1
        assert (await fleet.retire(D0)).confirmed
        await asyncio.sleep(7200)
        assert rig.hosts.count("start") == 1


@virtually
async def test_requests_to_a_hung_replica_do_not_delay_its_replacement() -> None:
    """Spec 7.9: its drain is cut short, so that its requests' connections are closed by the stop."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        rig.inflight[D0] = 7
        await rig.probe(D0, healthy=False)
        await rig.until(D0, "draining")
        assert 4 < await rig.until(D0, "stopping") < 6
        assert rig.published[D0].state == "stopping"
        await rig.until(D0, "starting")


@virtually
async def test_a_replacement_can_be_cancelled() -> None:
    """Spec 6.4: on a slot that waits to replace its replica, a retirement cancels that."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await lose(rig)
        assert (await fleet.retire(D0)).confirmed
        await asyncio.sleep(7200)
        assert rig.hosts.count("start") == 1
        with pytest.raises(UnknownSlot):
            await fleet.retire(D0)


@pytest.mark.parametrize("state", ["draining", "stopping", "launching"])
@virtually
async def test_a_retirement_during_a_replacement_ends_it(state: str) -> None:
    """Spec 6.4: whatever stage the replacement is in, the slot is free afterwards."""
    rig = Rig(slots(1))
    rig.hosts.seconds = 2
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        rig.inflight[D0] = 1
        rig.hosts.die(D0)
        await rig.probe(D0)
        await rig.until(D0, state)
        assert (await fleet.retire(D0)).confirmed
        await asyncio.sleep(7200)
        assert (rig.state(D0), rig.slot(D0).wanted) == ("free", False)
        assert not rig.hosts.alive[D0]


@virtually
async def test_cooling_and_abandoned_slots_are_taken_last() -> None:
    """Spec 6.3: and taking one ends its wait."""
    rig = Rig(slots(3), policy=replace(POLICY, losses=2, backoff=1000))
    async with rig.running() as fleet:
        await fleet.launch(slot=D0)
        await lose(rig, D0)
        await rig.until(D0, "starting")
        await lose(rig, D0)
        await fleet.launch(slot=D1)
        await lose(rig, D1)
        assert (rig.state(D0), rig.slot(D1).cooling) == ("abandoned", True)
        assert fleet.capacity().free_slots == (D0, D1, D2)
        began = now()
        assert [(await fleet.launch()).slot.id for _ in range(3)] == [D2, D1, D0]
        assert now() - began < 5
        assert not rig.slot(D1).wanted
        await asyncio.sleep(550)
        assert rig.hosts.count("start") == 6


@virtually
async def test_a_replacement_gives_way_if_its_place_was_taken() -> None:
    """Spec 2.7: a launch while a slot cools may fill the fleet up to its ceiling, and the ceiling is kept."""
    rig = Rig(slots(2), ceiling=1)
    async with rig.running() as fleet:
        await fleet.launch()
        await lose(rig)
        assert (await fleet.launch()).slot.id == D1
        await rig.ready(D1)
        await asyncio.sleep(60)
        assert (rig.state(D0), rig.slot(D0).cooling, rig.hosts.count("start")) == ("free", False, 2)
        assert rig.log.find("slot changed")[-1]["cause"] == "place-taken"


@virtually
async def test_a_replacement_that_finds_its_address_in_use_stays_reserved() -> None:
    """Spec 7.4, 7.9: a replacement goes to its own slot or to none."""
    rig = Rig(slots(2))
    async with rig.running() as fleet:
        await fleet.launch()
        await lose(rig)
        rig.hosts.look[D0] = False
        await rig.until(D0, "unconfirmed")
        await asyncio.sleep(3600)
        assert (rig.hosts.count("start"), rig.state(D1)) == (1, "free")
        assert fleet.capacity().unconfirmed[0].reason == "address-in-use"
