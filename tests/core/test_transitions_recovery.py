"""How a slot comes out of the unconfirmed, and how it is taken up after a restart of the router."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.core.slot import (
    Answered,
    AskReplica,
    Cause,
    CheckAddress,
    Decision,
    Drain,
    Event,
    Gone,
    InspectProcess,
    Launched,
    Occupied,
    Policy,
    Probed,
    ProcessHandle,
    Release,
    Silent,
    Slot,
    SlotState,
    Stop,
    StopProcess,
    Unknown,
)
from pypto_serving_router.core.transitions import advance, recover, retirement, to_be_asked

FREE, LAUNCHING, STARTING, READY, DRAINING, STOPPING, UNCONFIRMED, ABANDONED = SlotState
POLICY = Policy(launch_timeout=600, drain_timeout=300, replace_after=30)
NOW = 1000.0
N = 7
HANDLE = ProcessHandle(4242, "123", "boot")
STOP = StopProcess(SlotId("node-d0"), N)
IN_USE = Cause.ADDRESS_IN_USE
AWAITED = Cause.UNREACHABLE_AT_STARTUP


def slot(state: SlotState, **changes: object) -> Slot:
    base = Slot(SlotId("node-d0"), HostId("node"), "127.0.0.1", 8001, (0,), state=state, generation=N)
    return replace(base, **changes)  # type: ignore[arg-type]  # names and values are the test's


# --- unconfirmed ------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", [Cause.STOP_UNCONFIRMED, AWAITED])
def test_an_unconfirmed_stop_is_tried_again(cause: Cause) -> None:
    """Spec 6.4: and what comes of it is not replaced."""
    after, effects = advance(slot(UNCONFIRMED, cause=cause, wanted=True), Stop(), NOW, POLICY)
    assert (after.state, after.wanted, effects) == (STOPPING, False, (STOP,))


def test_an_address_in_use_is_only_looked_at() -> None:
    """Spec 6.4: nothing there is ours to stop; silence frees the slot."""
    before = slot(UNCONFIRMED, cause=IN_USE)
    assert advance(before, Stop(), NOW, POLICY) == (before, (CheckAddress(before.id, N),))
    after, effects = advance(before, Occupied(N, "still"), NOW, POLICY)
    assert (after.state, after.cause, after.last_error, effects) == (UNCONFIRMED, IN_USE, "still", ())
    assert advance(before, Silent(N), NOW, POLICY)[0].state is FREE


@pytest.mark.parametrize("event", [Silent(N), Occupied(N, "")])
def test_a_look_says_nothing_of_a_stop(event: Event) -> None:
    """Law 3: silence alone does not prove that the processes have exited."""
    before = slot(UNCONFIRMED, cause=Cause.STOP_UNCONFIRMED)
    assert advance(before, event, NOW, POLICY) == (before, ())


@pytest.mark.parametrize("cause", [Cause.STOP_UNCONFIRMED, IN_USE, AWAITED])
def test_the_operators_word_frees_it(cause: Cause) -> None:
    """Spec 6.4: whatever the reason."""
    after, effects = advance(slot(UNCONFIRMED, cause=cause, wanted=True), Release(Cause.FORCED), NOW, POLICY)
    assert (after.state, after.wanted, after.cause, effects) == (FREE, False, Cause.FORCED, ())


@pytest.mark.parametrize(
    ("cause", "probed", "asks"),
    [
        (AWAITED, Probed(N, healthy=True), True),
        (AWAITED, Probed(N, healthy=False, status=503), True),
        (AWAITED, Probed(N, healthy=False), False),
        (Cause.STOP_UNCONFIRMED, Probed(N, healthy=True, status=200), False),
        (IN_USE, Probed(N, healthy=True, status=200), False),
    ],
)
def test_an_answer_at_a_reserved_address_is_looked_into(cause: Cause, probed: Probed, asks: bool) -> None:
    """Spec 7.13: only for a replica that did not answer at the start."""
    before = slot(UNCONFIRMED, cause=cause)
    assert advance(before, probed, NOW, POLICY) == (before, (AskReplica(before.id, N),) if asks else ())


# --- a restart of the router ------------------------------------------------------------------


@pytest.mark.parametrize("state", [LAUNCHING, STARTING, READY])
def test_a_healthy_answer_is_adopted_ready(state: SlotState) -> None:
    """Spec 7.13: routable at once, with the handle that the host gives."""
    before = slot(state, losses=1)
    assert to_be_asked(before)
    after, effects = recover(before, Answered(N, Launched(N, HANDLE), healthy=True), NOW, POLICY)
    assert (after.state, after.cause, after.handle, after.wanted) == (READY, Cause.ADOPTED, HANDLE, True)
    assert (after.due, effects) == (NOW + 300, ())


@pytest.mark.parametrize("state", [LAUNCHING, STARTING, READY])
def test_another_answer_is_adopted_starting(state: SlotState) -> None:
    """Spec 7.13: with the whole launch timeout before it; what was ready before is still wanted."""
    after, effects = recover(slot(state, wanted=True), Answered(N, Launched(N, HANDLE), healthy=False), NOW, POLICY)
    assert (after.state, after.wanted, after.due) == (STARTING, True, NOW + 600)
    assert effects == (InspectProcess(after.id, N, 1.0),)


@pytest.mark.parametrize("state", [LAUNCHING, STARTING, READY])
def test_no_answer_reserves_the_slot(state: SlotState) -> None:
    """Spec 7.13: unreachable at startup."""
    after, effects = recover(slot(state, handle=HANDLE), None, NOW, POLICY)
    assert (after.state, after.cause, after.handle, effects) == (UNCONFIRMED, AWAITED, HANDLE, ())


@pytest.mark.parametrize("healthy", [True, False])
@pytest.mark.parametrize(
    ("recorded", "process", "adopted"),
    [
        ({"handle": HANDLE}, Unknown(N, "unreachable"), True),
        ({"handle": HANDLE}, Gone(N, None, "no such process"), False),
        ({"handle": HANDLE}, Gone(N, 0, "exited"), False),
        ({"handle": HANDLE, "wrapped": True}, Gone(N, 0, "submitted"), True),
        ({"handle": HANDLE, "wrapped": True}, Gone(N, 1, "failed"), False),
    ],
)
def test_a_stranger_is_not_adopted(
    recorded: dict[str, object], process: Unknown | Gone, adopted: bool, healthy: bool
) -> None:
    """Spec 7.13: the recorded process is known to be gone, so somebody else answers; a wrapper's end says nothing."""
    after, effects = recover(slot(READY, **recorded), Answered(N, process, healthy=healthy), NOW, POLICY)
    assert (after.state in (READY, STARTING)) is adopted
    if not adopted:
        assert (after.state, after.cause, effects) == (UNCONFIRMED, IN_USE, ())


def test_a_stranger_before_a_start_that_may_yet_arrive_keeps_the_fence_due() -> None:
    """Law 4: the reservation of a launch without a handle ends in a stop, not in a look."""
    after, _ = recover(slot(LAUNCHING), Answered(N, Gone(N, None, "nothing"), healthy=True), NOW, POLICY)
    assert (after.state, after.cause) == (UNCONFIRMED, AWAITED)
    assert "stranger" in (after.last_error or "")


@pytest.mark.parametrize("before", [slot(DRAINING, wanted=True), slot(STOPPING), slot(LAUNCHING, leaving=True)])
def test_a_stop_is_resumed(before: Slot) -> None:
    """Spec 7.13: nothing is asked, and what was to be replaced still is."""
    assert not to_be_asked(before)
    after, effects = recover(before, None, NOW, POLICY)
    assert (after.state, after.wanted, effects) == (STOPPING, before.wanted, (STOP,))


def test_a_reservation_stays() -> None:
    """Spec 7.13: whatever its reason."""
    for cause in (Cause.STOP_UNCONFIRMED, IN_USE, AWAITED):
        before = slot(UNCONFIRMED, cause=cause)
        assert recover(before, None, NOW, POLICY) == (before, ())


def test_a_back_off_begins_again() -> None:
    """Spec 7.9: its deadline was in another run's time."""
    after, effects = recover(slot(FREE, wanted=True, losses=2), None, NOW, POLICY)
    assert (after.cooling, after.due, effects) == (True, NOW + 20, ())


def test_a_restart_forgives() -> None:
    """Spec 7.9: an abandoned slot is used again."""
    after, effects = recover(slot(ABANDONED, losses=3), None, NOW, POLICY)
    assert (after.state, after.losses, effects) == (FREE, 0, ())


# --- retirement -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "decision"),
    [
        (slot(FREE), None),
        (slot(FREE, wanted=True), Release(Cause.CANCELLED)),
        (slot(LAUNCHING), Drain(Cause.SHUTDOWN)),
        (slot(STARTING), Drain(Cause.SHUTDOWN)),
        (slot(READY), Drain(Cause.SHUTDOWN)),
        (slot(DRAINING), Drain(Cause.SHUTDOWN)),
        (slot(STOPPING), Drain(Cause.SHUTDOWN)),
        (slot(UNCONFIRMED), Stop(Cause.SHUTDOWN)),
        (slot(ABANDONED), None),
    ],
)
def test_every_state_has_its_way_out(before: Slot, decision: Decision | None) -> None:
    """Spec 6.4, 7.11: one decision empties a slot, and it is legal."""
    assert retirement(before, Cause.SHUTDOWN) == decision
    if decision is not None:
        advance(before, decision, NOW, POLICY)
