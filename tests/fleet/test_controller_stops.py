"""The fleet's mailbox loop: retirements, stops and the end, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.support.fake_hosts import POLICY, Rig, slots
from tests.support.virtual_time import now, virtually

from pypto_serving_router.core.ids import SlotId
from pypto_serving_router.errors import LaunchFailed, PoolFull, RouterError, SlotBusy, UnknownSlot

D0, D1, D2 = SlotId("node-d0"), SlotId("node-d1"), SlotId("node-d2")


# --- stopping ---------------------------------------------------------------------------------


@virtually
async def test_a_retirement_drains_first() -> None:
    """Spec 7.8, 6.4: out of rotation at once, stopped when the last request has ended, answered after the stop."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        slot = await rig.ready(D0)
        rig.inflight[D0] = 2
        retirement = asyncio.ensure_future(fleet.retire(D0))
        await asyncio.sleep(100)
        assert rig.published[D0].state == "draining"
        assert rig.hosts.count("stop") == 0
        fleet.idle(D0, slot.generation)
        result = await retirement
        assert (result.confirmed, result.slot.state) == (True, "free")
        assert not rig.hosts.alive[D0]


@virtually
async def test_a_drain_ends_at_its_timeout() -> None:
    """Spec 7.8: requests are awaited for `--drain-timeout`, no longer."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        rig.inflight[D0] = 1
        began = now()
        assert (await fleet.retire(D0)).confirmed
        assert 300 <= now() - began < 310


@virtually
async def test_an_idle_replica_is_stopped_without_waiting() -> None:
    """Spec 7.8: there is nothing to wait for."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        began = now()
        await fleet.retire(D0)
        assert now() - began < 1


@pytest.mark.parametrize("fate", ["unknown", "lost", "raise"])
@virtually
async def test_a_stop_that_the_host_does_not_confirm_leaves_the_slot_reserved(fate: str) -> None:
    """Spec 7.7, law 3: unreachable, cut short or gone wrong: never free."""
    rig = Rig(slots(1))
    rig.hosts.fate["stop", D0] = [fate]
    async with rig.running() as fleet:
        await fleet.launch()
        result = await fleet.retire(D0)
        assert not result.confirmed
        assert [(entry.slot, entry.reason) for entry in fleet.capacity().unconfirmed] == [(D0, "stop-unconfirmed")]
        assert fleet.capacity().owned == 1
        with pytest.raises(PoolFull):
            await fleet.launch()


@pytest.mark.parametrize("look", [False, None])
@virtually
async def test_a_stop_is_not_confirmed_while_its_address_is_not_silent(look: bool | None) -> None:
    """Spec 7.7: an address that accepts, or that can't be told to be silent, keeps the slot reserved."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        rig.hosts.look[D0] = look
        began = now()
        assert not (await fleet.retire(D0)).confirmed
        assert 10 <= now() - began < 12
        assert "node.example:8001" in (fleet.capacity().unconfirmed[0].detail or "")


@virtually
async def test_an_address_may_go_silent_within_the_grace_period() -> None:
    """Spec 7.7: the address is looked at again until the grace period ends."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        rig.hosts.look[D0] = False
        asyncio.get_running_loop().call_later(5, rig.hosts.look.clear)
        assert (await fleet.retire(D0)).confirmed


@virtually
async def test_retirements_share_one_stop() -> None:
    """Spec 6.4: concurrent calls get the same answer from one stop; one that comes later finds nothing."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        rig.hosts.seconds = 20
        first = asyncio.ensure_future(fleet.retire(D0))
        await asyncio.sleep(5)
        results = await asyncio.gather(first, fleet.retire(D0), fleet.retire(D0))
        assert [result.confirmed for result in results] == [True] * 3
        assert rig.hosts.count("stop") == 1
        with pytest.raises(UnknownSlot):
            await fleet.retire(D0)


@virtually
async def test_a_retirement_goes_on_if_its_caller_leaves() -> None:
    """Spec 6.4: the caller's connection is not what keeps it going, and others still get their answer."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        rig.hosts.seconds = 20
        first = asyncio.ensure_future(fleet.retire(D0))
        second = asyncio.ensure_future(fleet.retire(D0))
        await asyncio.sleep(1)
        first.cancel()
        assert (await second).confirmed


@virtually
async def test_a_replica_that_is_being_launched_is_awaited_then_stopped() -> None:
    """Spec 6.4: a retirement during the launch waits for its outcome."""
    rig = Rig(slots(1))
    rig.hosts.seconds = 20
    async with rig.running() as fleet:
        launch = asyncio.ensure_future(fleet.launch())
        await asyncio.sleep(1)
        retirement = asyncio.ensure_future(fleet.retire(D0))
        with pytest.raises(LaunchFailed, match="retired"):
            await launch
        assert (await retirement).confirmed
        assert rig.hosts.calls == [("start", D0), ("stop", D0)]
        assert not rig.hosts.alive[D0]


@virtually
async def test_an_unconfirmed_slot_can_be_tried_again() -> None:
    """Spec 6.4: a retirement of an unconfirmed slot repeats the stop and its confirmation."""
    rig = Rig(slots(1))
    rig.hosts.fate["stop", D0] = ["unknown", "unknown", "ok"]
    async with rig.running() as fleet:
        await fleet.launch()
        assert [(await fleet.retire(D0)).confirmed for _ in range(3)] == [False, False, True]
        assert rig.state(D0) == "free"
        assert not rig.hosts.alive[D0]


@virtually
async def test_a_slot_whose_address_is_in_use_is_only_looked_at_again() -> None:
    """Spec 6.4: nothing there is ours to stop."""
    rig = Rig(slots(1))
    rig.hosts.look[D0] = False
    async with rig.running() as fleet:
        with pytest.raises(PoolFull):
            await fleet.launch()
        assert not (await fleet.retire(D0)).confirmed
        rig.hosts.look.clear()
        assert (await fleet.retire(D0)).confirmed
        assert rig.hosts.calls == []
        await fleet.launch()


@virtually
async def test_the_operators_word_frees_an_unconfirmed_slot() -> None:
    """Spec 6.4: `force` frees it without another stop."""
    rig = Rig(slots(1))
    rig.hosts.fate["stop", D0] = ["unknown"]
    async with rig.running() as fleet:
        await fleet.launch()
        await fleet.retire(D0)
        rig.hosts.die(D0)  # the operator has seen to it
        assert (await fleet.retire(D0, force=True)).confirmed
        assert rig.hosts.count("stop") == 1
        await fleet.launch()


@virtually
async def test_force_is_no_way_around_a_stop() -> None:
    """Spec 6.4: on a living replica `force` drains and stops like any retirement."""
    rig = Rig(slots(1))
    rig.hosts.fate["stop", D0] = ["unknown"]
    async with rig.running() as fleet:
        await fleet.launch()
        assert not (await fleet.retire(D0, force=True)).confirmed


@virtually
async def test_there_is_nothing_to_retire_on_a_free_or_unknown_slot() -> None:
    """Spec 6.4: both are unknown."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        with pytest.raises(UnknownSlot, match="no replica is on"):
            await fleet.retire(D0)
        with pytest.raises(UnknownSlot, match="there is no slot"):
            await fleet.retire(D1)


@virtually
async def test_the_log_of_every_declared_slot_can_be_read() -> None:
    """Spec 6.5: a launch is not needed for it."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        assert await fleet.log(D0, 2) == b"line 0 of node-d0\nline 1 of node-d0\n"
        with pytest.raises(UnknownSlot):
            await fleet.log(D1, 2)


# --- the end ----------------------------------------------------------------------------------


@virtually
async def test_a_shutdown_stops_everything_at_the_same_time() -> None:
    """Spec 7.11: drains and stops are concurrent, launches are awaited, replacements cancelled, and the loop ends."""
    rig = Rig(slots(6), policy=replace(POLICY, backoff=10_000))
    async with rig.running() as fleet:
        for name in (D0, D1, D2):
            await fleet.launch(slot=name)
            await rig.ready(name)
        rig.hosts.die(D2)
        await rig.probe(D2)
        await rig.until(D2, "free")
        assert rig.slot(D2).cooling
        await fleet.launch(slot=SlotId("node-d3"))
        rig.inflight[D1] = 1
        rig.hosts.seconds = 50
        launch = asyncio.ensure_future(fleet.launch(slot=SlotId("node-d4")))
        await asyncio.sleep(1)
        began = now()
        assert await fleet.shutdown()
        assert 350 <= now() - began < 360  # the longest: one drain, then its stop
        with pytest.raises(LaunchFailed):
            await launch
        assert not any(rig.hosts.alive.values())
        assert not any(slot.taken or slot.cooling for slot in fleet.slots)
        assert not any(slot.taken for slot in rig.journal.saved.values())
        with pytest.raises(RouterError):
            await fleet.launch()


@virtually
async def test_a_shutdown_says_whether_every_stop_was_confirmed() -> None:
    """Spec 1.4, 7.11: a stop that was not confirmed is tried once more, and makes the difference if that fails too."""
    rig = Rig(slots(3))
    rig.hosts.fate["stop", D0] = ["unknown", "unknown"]
    rig.hosts.fate["stop", D1] = ["unknown"]
    rig.hosts.look[D2] = False
    async with rig.running() as fleet:
        for name in (D0, D1):
            await fleet.launch(slot=name)
            await fleet.retire(name)
        with pytest.raises(SlotBusy):
            await fleet.launch(slot=D2)
        assert not await fleet.shutdown()
        assert [rig.state(name) for name in (D0, D1, D2)] == ["unconfirmed", "free", "unconfirmed"]
        assert ("stop", D2) not in rig.hosts.calls
        assert rig.journal.saved[D0].state == "unconfirmed"


@virtually
async def test_no_launch_begins_during_a_shutdown() -> None:
    """Spec 7.11: the operator is told that the pool is closed."""
    rig = Rig(slots(2))
    async with rig.running() as fleet:
        await fleet.launch()
        rig.hosts.seconds = 20
        end = asyncio.ensure_future(fleet.shutdown())
        await asyncio.sleep(1)
        with pytest.raises(PoolFull, match="shutting down"):
            await fleet.launch()
        assert await end


@virtually
async def test_a_fleet_without_replicas_shuts_down_at_once() -> None:
    """Spec 7.11: with nothing to stop, every stop is confirmed."""
    rig = Rig([])
    async with rig.running() as fleet:
        assert await fleet.shutdown()
