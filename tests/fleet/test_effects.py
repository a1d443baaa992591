"""Effects end in observations, whatever happens."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from tests.support.fake_hosts import POLICY, FakeHosts, slots
from tests.support.virtual_time import now, virtually

from pypto_serving_router.core.ids import SlotId
from pypto_serving_router.core.slot import (
    Answered,
    AskReplica,
    CheckAddress,
    Effect,
    Gone,
    InspectProcess,
    Launched,
    Observation,
    Occupied,
    Silent,
    SlotState,
    StartProcess,
    StopConfirmed,
    StopProcess,
    StopUnconfirmed,
    Unknown,
)
from pypto_serving_router.core.transitions import TRANSITIONS
from pypto_serving_router.fleet.effects import Performer, unknown

D0 = SlotId("node-d0")
N = 7
SLOT = replace(slots(1)[0], generation=N, state=SlotState.STOPPING)
WRAPPED = replace(SLOT, wrapped=True)


async def perform(hosts: FakeHosts, effect: Effect, slot: object = SLOT) -> Observation | None:
    performer = Performer(launcher=hosts, policy=POLICY, silent=hosts.silent, ask=hosts.ask, clock=now)
    return await performer.perform(effect, slot)  # type: ignore[arg-type]  # a slot


@virtually
async def test_a_start_looks_first() -> None:
    """Spec 7.4: silence, or no command leaves."""
    hosts = FakeHosts()
    hosts.look[D0] = False
    assert isinstance(await perform(hosts, StartProcess(D0, N)), Occupied)
    hosts.look[D0] = None
    answer = await perform(hosts, StartProcess(D0, N))
    assert isinstance(answer, Gone)
    assert answer.refused
    assert hosts.calls == []
    hosts.look.clear()
    assert isinstance(await perform(hosts, StartProcess(D0, N)), Launched)


@virtually
async def test_a_stop_is_confirmed_by_both() -> None:
    """Spec 7.7: the host has confirmed it, and the address is silent."""
    hosts = FakeHosts()
    assert await perform(hosts, StopProcess(D0, N)) == StopConfirmed(N)
    hosts.fate["stop", D0] = ["unknown"]
    assert await perform(hosts, StopProcess(D0, N)) == StopUnconfirmed(N, "the host is unreachable")
    hosts.look[D0] = False
    answer = await perform(hosts, StopProcess(D0, N))
    assert isinstance(answer, StopUnconfirmed)
    assert "still accepts connections" in answer.detail


@pytest.mark.parametrize(
    ("slot", "exit_status", "submitted"),
    [
        (WRAPPED, 0, True),
        (WRAPPED, 1, False),
        (SLOT, 0, False),
        (replace(WRAPPED, has_stop_command=True), 0, False),
    ],
)
@virtually
async def test_a_stop_tells_whether_the_work_had_been_submitted(
    slot: object, exit_status: int, submitted: bool
) -> None:
    """Spec 7.5: an exit of the wrapper before the stop; after it, nobody could tell why it exited."""
    hosts = FakeHosts()
    hosts.die(D0, exit_status)
    assert await perform(hosts, StopProcess(D0, N), slot) == StopConfirmed(N, submitted)


@virtually
async def test_a_look_at_an_address_touches_nothing() -> None:
    """Spec 6.4: silent or not; what can't be told is not silent."""
    hosts = FakeHosts()
    assert await perform(hosts, CheckAddress(D0, N)) == Silent(N)
    for look in (False, None):
        hosts.look[D0] = look
        assert await perform(hosts, CheckAddress(D0, N)) == Occupied(N, "node.example:8001 is not silent")
    assert hosts.calls == []


@virtually
async def test_an_inspection_waits_first() -> None:
    """Spec 7.5: as long as it was told to."""
    hosts = FakeHosts()
    began = now()
    assert isinstance(await perform(hosts, InspectProcess(D0, N, 3.0)), Gone)
    assert 3 < now() - began < 4


@virtually
async def test_a_replica_is_asked_for_both_at_once() -> None:
    """Spec 7.13: what answers, and what the host says of the process; without an answer there is nothing to tell."""
    hosts = FakeHosts()
    hosts.alive[D0].add(N)
    assert await perform(hosts, AskReplica(D0, N)) is None
    began = now()
    for status in (200, 503):
        hosts.load(D0, status)
        answer = await perform(hosts, AskReplica(D0, N))
        assert isinstance(answer, Answered)
        assert (answer.healthy, type(answer.process)) == (status == 200, Launched)
    assert now() - began < 0.3


@pytest.mark.parametrize("effect", get_args(Effect))
def test_an_unforeseen_failure_is_never_taken_for_an_answer(effect: type[Effect]) -> None:
    """Laws 2 and 3: it frees nothing, and it is news that the waiting state listens to."""
    made = effect(D0, N, 1.0) if effect is InspectProcess else effect(D0, N)  # type: ignore[call-arg]  # the others have two
    answer = unknown(made, "failed")
    if effect is AskReplica:
        assert answer is None
        return
    waiting = {
        StartProcess: SlotState.LAUNCHING,
        InspectProcess: SlotState.STARTING,
        StopProcess: SlotState.STOPPING,
        CheckAddress: SlotState.UNCONFIRMED,
    }[effect]
    assert isinstance(answer, Unknown | StopUnconfirmed | Occupied)
    assert answer.detail == "failed"
    assert not TRANSITIONS[waiting][type(answer)] & {SlotState.FREE, SlotState.ABANDONED}
