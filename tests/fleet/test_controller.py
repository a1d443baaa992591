"""The fleet's mailbox loop, from a launch to its end, in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.support.fake_hosts import Rig, slots
from tests.support.virtual_time import now, virtually

from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.errors import LaunchFailed, PoolFull, SlotBusy, UnknownSlot
from pypto_serving_router.fleet.pool import SlotPool

if TYPE_CHECKING:
    from pypto_serving_router.core.slot import Slot

D0, D1, D2 = SlotId("node-d0"), SlotId("node-d1"), SlotId("node-d2")


# --- launching --------------------------------------------------------------------------------


@virtually
async def test_a_launch_returns_once_its_start_is_accepted() -> None:
    """Spec 7.2: the replica is registered at once, and starting, not ready, when the launch returns."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        launch = asyncio.ensure_future(fleet.launch())
        await asyncio.sleep(0.05)
        assert rig.published[D0].state == "launching"
        assert (await launch).slot.state == "starting"
        assert rig.published[D0].state == "starting"
        assert rig.hosts.alive[D0] == {rig.slot(D0).generation}


@virtually
async def test_slots_are_taken_in_order_and_each_once() -> None:
    """Spec 7.1: simultaneous launches take different slots, in order; the one too many finds the pool full."""
    rig = Rig(slots(3))
    async with rig.running() as fleet:
        done = await asyncio.gather(*(fleet.launch() for _ in range(4)), return_exceptions=True)
        assert [r.slot.id for r in done if not isinstance(r, BaseException)] == [D0, D1, D2]
        assert isinstance(done[3], PoolFull)
        assert rig.hosts.most == 1


@virtually
async def test_the_ceiling_is_kept() -> None:
    """Spec 2.7, 6.3: no more than `--max-replicas` slots are held, however many are free."""
    rig = Rig(slots(3), ceiling=1)
    async with rig.running() as fleet:
        await fleet.launch()
        with pytest.raises(PoolFull, match="no more than 1"):
            await fleet.launch()
        capacity = fleet.capacity()
        assert (capacity.ceiling, capacity.owned, capacity.free_slots) == (1, 1, (D1, D2))


@virtually
async def test_what_is_shown_is_what_was_published() -> None:
    """Spec 6.2: while a change is being written down, no slot is free whose replica is still in the routing table."""
    rig = Rig(slots(1))

    async def compare(*_: object) -> None:
        seen = rig.published.get(D0, rig.controller._pool.declared[D0])
        assert rig.controller.capacity().free_slots == (() if seen.taken else (D0,))
        assert rig.controller.shown == (seen,)
        compared.append(seen.state)

    compared: list[str] = []
    rig.journal.save = compare  # type: ignore[method-assign, assignment]
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        assert (await fleet.retire(D0)).confirmed
    assert compared == ["free", "launching", "starting", "ready", "draining", "stopping"]


@virtually
async def test_a_launch_error_is_not_tried_elsewhere() -> None:
    """Spec 6.3: a refused start frees its slot, and its error is the answer; the next slot is not tried."""
    rig = Rig(slots(2))
    rig.hosts.fate["start", D0] = ["refused"]
    async with rig.running() as fleet:
        with pytest.raises(LaunchFailed, match="permission denied") as failed:
            await fleet.launch()
        assert failed.value.slot == D0
        assert (rig.state(D0), rig.state(D1)) == ("free", "free")
        assert "permission denied" in fleet.capacity().last_errors[D0]
        assert rig.hosts.count("stop") == 0  # nothing was started


@virtually
async def test_an_uncertain_start_is_stopped_before_its_slot_is_free() -> None:
    """Spec 7.10, law 2: a start that happened although its answer was lost is ended, not forgotten."""
    rig = Rig(slots(1))
    rig.hosts.fate["start", D0] = ["lost"]
    async with rig.running() as fleet:
        with pytest.raises(LaunchFailed, match="connection broke"):
            await fleet.launch()
        assert rig.state(D0) == "stopping"
        await rig.until(D0, "free")
        assert not rig.hosts.alive[D0]


@virtually
async def test_a_start_that_lands_late_finds_the_fence() -> None:
    """Law 4: a start that lands after its slot was freed starts nothing."""
    rig = Rig(slots(1))
    rig.hosts.fate["start", D0] = ["late"]
    async with rig.running() as fleet:
        with pytest.raises(LaunchFailed):
            await fleet.launch()
        await rig.until(D0, "free")
        await asyncio.sleep(200)
        assert not rig.hosts.alive[D0]


@virtually
async def test_what_nobody_foresaw_is_unknown() -> None:
    """A launcher that raises has not said that nothing was started: the slot is fenced and stopped."""
    rig = Rig(slots(1))
    rig.hosts.fate["start", D0] = ["raise"]
    async with rig.running() as fleet:
        with pytest.raises(LaunchFailed, match="nobody foresaw"):
            await fleet.launch()
        await rig.until(D0, "free")
        assert rig.hosts.fence[D0] > 0
        assert rig.log.find("effect failed")


@virtually
async def test_an_address_in_use_sends_the_launch_to_the_next_slot() -> None:
    """Spec 7.4: a slot whose address is not silent becomes unconfirmed, untouched, and the next free one is taken."""
    rig = Rig(slots(3))
    rig.hosts.look = {D0: False, D1: False}
    async with rig.running() as fleet:
        assert (await fleet.launch()).slot.id == D2
        reserved = fleet.capacity().unconfirmed
        assert [(entry.slot, entry.reason) for entry in reserved] == [(D0, "address-in-use"), (D1, "address-in-use")]
        assert rig.hosts.calls == [("start", D2)]
        assert fleet.capacity().owned == 3
        with pytest.raises(PoolFull):
            await fleet.launch()


@virtually
async def test_an_address_in_use_fails_a_launch_on_that_very_slot() -> None:
    """Spec 6.3, 7.4: a launch that asked for the slot gets no other."""
    rig = Rig(slots(2))
    rig.hosts.look = {D0: False}
    async with rig.running() as fleet:
        with pytest.raises(SlotBusy, match=r"answers at node\.example:8001"):
            await fleet.launch(slot=D0)
        assert rig.hosts.calls == []


@virtually
async def test_an_address_that_cannot_be_told_to_be_silent_gets_no_launch() -> None:
    """Spec 7.4: without silence nothing is started; the slot is as free as before."""
    rig = Rig(slots(1))
    rig.hosts.look = {D0: None}
    async with rig.running() as fleet:
        with pytest.raises(LaunchFailed, match=r"cannot tell whether node\.example:8001 is silent"):
            await fleet.launch()
        assert rig.hosts.calls == []
        assert rig.state(D0) == "free"


@virtually
async def test_a_launch_can_choose_its_slot_or_host() -> None:
    """Spec 6.3: by slot or by host; unknown names and taken slots are told apart."""
    rig = Rig([*slots(2), *slots(1, host="other")])
    async with rig.running() as fleet:
        assert (await fleet.launch(slot=D1)).slot.id == D1
        assert (await fleet.launch(host=HostId("other"))).slot.id == "other-d0"
        with pytest.raises(SlotBusy):
            await fleet.launch(slot=D1)
        with pytest.raises(PoolFull, match="no slot of other is free"):
            await fleet.launch(host=HostId("other"))
        with pytest.raises(UnknownSlot):
            await fleet.launch(slot=SlotId("node-d9"))
        with pytest.raises(UnknownSlot):
            await fleet.launch(host=HostId("nowhere"))


@virtually
async def test_a_launch_goes_on_if_its_caller_leaves() -> None:
    """Spec 6.3: a caller that gives up takes nothing back."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        launch = asyncio.ensure_future(fleet.launch())
        await asyncio.sleep(0.05)
        launch.cancel()
        await rig.until(D0, "starting")


@virtually
async def test_initial_replicas_launch_concurrently() -> None:
    """Spec 7.2: the slots are taken first, all are launched at once, and one that fails is alone with it."""
    rig = Rig(slots(4))
    rig.hosts.seconds = 100
    rig.hosts.fate["start", D1] = ["refused"]
    async with rig.running() as fleet:
        await fleet.start_initial(3)
        assert [rig.state(name) for name in (D0, D1, D2)] == ["launching"] * 3
        assert rig.state("node-d3") == "free"
        began = now()
        await rig.until(D2, "starting")
        assert now() - began < 150
        assert [rig.state(name) for name in (D0, D1, D2)] == ["starting", "free", "starting"]
        assert "permission denied" in rig.log.find("initial replica not launched")[0]["error"]


@virtually
async def test_initial_replicas_that_find_no_slot_are_logged() -> None:
    """Spec 7.2: fewer slots than asked for is a warning, not an end."""
    rig = Rig(slots(2), ceiling=1)
    async with rig.running() as fleet:
        await fleet.start_initial(2)
        assert rig.log.find("initial replicas not launched")[0]["replicas"] == 1
        await rig.until(D0, "starting")


@virtually
async def test_a_large_fleet_is_not_searched_again_for_each_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec 7.2: the time to a thousand initial launches grows with their number, not with its square."""
    searches: list[SlotPool] = []
    free = SlotPool.free

    def search(pool: SlotPool) -> list[Slot]:
        searches.append(pool)
        return free(pool)

    monkeypatch.setattr(SlotPool, "free", search)
    rig = Rig(slots(50))
    async with rig.running() as fleet:
        await fleet.start_initial(60)
        assert sum(slot.state == "launching" for slot in fleet.slots) == 50
    assert len(searches) <= 2


@virtually
async def test_generations_are_above_those_of_a_run_without_memory() -> None:
    """Without a state file generations don't begin at 1 again, where a host's fence would refuse them."""
    rig = Rig(slots(1), wall=1_700_000_000.0)
    async with rig.running() as fleet:
        first = (await fleet.launch()).slot.generation
    later = Rig(slots(1), wall=1_700_000_001.0, hosts=rig.hosts)
    rig.hosts.alive[D0].clear()
    rig.hosts.fence[D0] = first
    async with later.running() as fleet:
        assert (await fleet.launch()).slot.generation > first


@virtually
async def test_generations_grow_even_if_the_time_of_day_does_not() -> None:
    """A clock that was set back does not give out a generation twice."""
    rig = Rig(slots(1), wall=-1e9)
    async with rig.running() as fleet:
        first = (await fleet.launch()).slot.generation
        await fleet.retire(D0)
        assert (await fleet.launch()).slot.generation == first + 1


# --- while it starts --------------------------------------------------------------------------


@virtually
async def test_a_launch_that_never_gets_ready_is_stopped() -> None:
    """Spec 7.5: not ready within the launch timeout: stopped, its slot free once that is confirmed, and not retried."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        assert 590 < await rig.until(D0, "stopping") < 610
        await rig.until(D0, "free")
        assert not rig.hosts.alive[D0]
        assert "not ready within 600 s" in fleet.capacity().last_errors[D0]
        await asyncio.sleep(3600)
        assert rig.hosts.count("start") == 1


@virtually
async def test_a_process_that_exits_while_starting_ends_its_launch_at_once() -> None:
    """Spec 7.5: exit status and last log lines are in `last_error`, which outlives the replica."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await asyncio.sleep(60)
        rig.hosts.die(D0, 3, "exited with status 3: no such model")
        assert await rig.until(D0, "free") < 10
        assert fleet.capacity().last_errors == {D0: "exited with status 3: no such model"}


@virtually
async def test_a_host_that_cannot_be_asked_is_no_reason_to_end_a_launch() -> None:
    """Law 2: an inspection that fails says nothing of the process."""
    rig = Rig(slots(1))
    rig.hosts.fate["inspect", D0] = ["unknown", "raise", "unknown"]
    async with rig.running() as fleet:
        await fleet.launch()
        await asyncio.sleep(60)
        assert rig.state(D0) == "starting"
        await rig.ready(D0)


@virtually
async def test_exit_0_under_a_wrapper_means_submitted() -> None:
    """Spec 7.5: the launch timeout decides then; work that a stop_command can't recall is not taken for gone."""
    rig = Rig(slots(1, wrapped=True))
    async with rig.running() as fleet:
        await fleet.launch()
        rig.hosts.die(D0, 0, "submitted")
        await asyncio.sleep(500)
        assert rig.state(D0) == "starting"
        await rig.until(D0, "unconfirmed")
        reserved = fleet.capacity().unconfirmed[0]
        assert reserved.reason == "stop-unconfirmed"
        assert "broker" in (reserved.detail or "")


@virtually
async def test_submitted_work_is_recalled_by_a_stop_command() -> None:
    """Spec 7.5, 7.6: with a stop_command that succeeds, the slot of a launch that was only submitted is free again."""
    rig = Rig(slots(1, wrapped=True, has_stop_command=True))
    async with rig.running() as fleet:
        await fleet.launch()
        rig.hosts.die(D0, 0, "submitted")
        await rig.until(D0, "free")


@virtually
async def test_submitted_work_that_was_ready_is_stopped_like_any_other() -> None:
    """Spec 7.5, 7.7: once it has answered, its address and processes are what a stop is judged by."""
    rig = Rig(slots(1, wrapped=True))
    async with rig.running() as fleet:
        await fleet.launch()
        rig.hosts.die(D0, 0, "submitted")
        await asyncio.sleep(60)
        await rig.ready(D0)
        rig.hosts.listening.clear()
        assert (await fleet.retire(D0)).confirmed


@virtually
async def test_a_wrapper_that_fails_ends_the_launch() -> None:
    """Spec 7.5: any other exit under a wrapper is a failed launch."""
    rig = Rig(slots(1, wrapped=True))
    async with rig.running() as fleet:
        await fleet.launch()
        rig.hosts.die(D0, 1, "no such queue")
        assert await rig.until(D0, "free") < 10


# --- what is told -----------------------------------------------------------------------------


@virtually
async def test_each_transition_is_logged_once() -> None:
    """Spec 9: a record says which slot and launch went from what to what, why, and as which process."""
    rig = Rig(slots(1))
    async with rig.running() as fleet:
        await fleet.launch()
        await rig.ready(D0)
        pid = rig.slot(D0).handle.pid  # type: ignore[union-attr]  # it has been launched
        await fleet.retire(D0)
    assert rig.log.path(D0) == ["launching", "starting", "ready", "draining", "stopping", "free"]
    assert [entry["pid"] for entry in rig.log.find("slot changed")] == [None, pid, pid, pid, pid, pid]
    ready = rig.log.find("slot changed")[2]
    assert ready.pop("generation") > 0
    assert ready == {
        "level": "info", "event": "slot changed", "slot": D0, "host": "node",
        "from": "starting", "to": "ready", "cause": "answered", "pid": pid,
    }  # fmt: skip


@virtually
async def test_a_fault_is_logged_as_a_warning_with_its_error() -> None:
    """Spec 9: what nobody decided stands out, and says why."""
    rig = Rig(slots(1))
    rig.hosts.fate["start", D0] = ["unknown"]
    async with rig.running() as fleet:
        with pytest.raises(LaunchFailed):
            await fleet.launch()
    stopping = rig.log.find("slot changed")[1]
    assert (stopping["level"], stopping["cause"]) == ("warning", "launch-uncertain")
    assert stopping["error"] == "the connection broke"
