"""How a slot moves, one event at a time."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import pytest

from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.core.slot import (
    Answered,
    Cause,
    Decision,
    Drain,
    Due,
    Event,
    Gone,
    Idle,
    InspectProcess,
    Launch,
    Launched,
    Observation,
    Occupied,
    Policy,
    Probed,
    ProcessHandle,
    Release,
    Silent,
    Slot,
    SlotState,
    StartProcess,
    Stop,
    StopConfirmed,
    StopProcess,
    StopUnconfirmed,
    Unknown,
)
from pypto_serving_router.core.transitions import TRANSITIONS, advance, diagram
from pypto_serving_router.errors import IllegalTransition

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


SAMPLES: dict[type[Event], Event] = {
    Launch: Launch(N + 1),
    Drain: Drain(),
    Stop: Stop(),
    Release: Release(),
    Launched: Launched(N, HANDLE),
    Gone: Gone(N, 1, "exited"),
    Unknown: Unknown(N, "unreachable"),
    Occupied: Occupied(N, "in use"),
    Silent: Silent(N),
    Answered: Answered(N, Launched(N, HANDLE), healthy=True),
    StopConfirmed: StopConfirmed(N),
    StopUnconfirmed: StopUnconfirmed(N, "unreachable"),
    Probed: Probed(N, healthy=True, status=200),
    Idle: Idle(N),
    Due: Due(N),
}


# --- the table --------------------------------------------------------------------------------


def test_every_event_has_a_sample() -> None:
    """The tests below are about all events there are."""
    assert set(SAMPLES) == set(get_args(Decision)) | set(get_args(Observation))


def test_the_table_speaks_of_every_state() -> None:
    """Every state can be left, and every state can be reached."""
    assert set(TRANSITIONS) == set(SlotState)
    reached = {target for events in TRANSITIONS.values() for targets in events.values() for target in targets}
    assert reached == set(SlotState)


@pytest.mark.parametrize("state", SlotState)
@pytest.mark.parametrize("event", get_args(Decision))
def test_a_decision_outside_the_table_raises(state: SlotState, event: type[Decision]) -> None:
    """An illegal decision is a bug: it raises, and changes nothing; a legal one stays within the table."""
    before = slot(state)
    copy = replace(before)
    if event in TRANSITIONS[state]:
        assert advance(before, SAMPLES[event], NOW, POLICY)[0].state in TRANSITIONS[state][event]
    else:
        with pytest.raises(IllegalTransition):
            advance(before, SAMPLES[event], NOW, POLICY)
    assert before == copy


@pytest.mark.parametrize("state", SlotState)
@pytest.mark.parametrize("event", get_args(Observation))
def test_an_observation_outside_the_table_is_dropped(state: SlotState, event: type[Observation]) -> None:
    """Late news changes nothing and causes nothing."""
    before = slot(state)
    after, effects = advance(before, SAMPLES[event], NOW, POLICY)
    if event in TRANSITIONS[state]:
        assert after.state in {state, *TRANSITIONS[state][event]}
    else:
        assert (after, effects) == (before, ())


@pytest.mark.parametrize("state", SlotState)
def test_an_observation_about_another_instance_is_dropped(state: SlotState) -> None:
    """Spec 7.10, law 5: whatever the state, what is said of another generation is not about this one."""
    for event in get_args(Observation):
        sample: Any = SAMPLES[event]
        for cause in (None, IN_USE, AWAITED):
            before = slot(state, cause=cause, due=0.0)
            for other in (N - 1, N + 1):
                assert advance(before, replace(sample, generation=other), NOW, POLICY) == (before, ())


def test_only_three_events_free_a_slot() -> None:
    """Law 4: a confirmed stop, a refused start, or an address found silent where nothing of ours was started.

    And the operator's word.
    """
    freeing = {
        event
        for state, events in TRANSITIONS.items()
        if state is not FREE
        for event, targets in events.items()
        if targets & {FREE, ABANDONED}
    }
    assert freeing == {StopConfirmed, Gone, Silent, Release}
    assert [state for state, events in TRANSITIONS.items() if FREE in events.get(Gone, ())] == [LAUNCHING]


def test_the_diagram_has_every_change_of_state() -> None:
    """The documentation's picture is the table."""
    lines = diagram().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> free"]
    assert "    launching --> stopping: Launched, Gone, Unknown" in lines
    arrows = {(state, target) for state, events in TRANSITIONS.items() for to in events.values() for target in to}
    assert len(lines) - 2 == len([arrow for arrow in arrows if arrow[0] is not arrow[1]])


def test_no_field_is_read_that_only_shells_know() -> None:
    """The time of day has no say in what happens."""
    names = {field.name for field in fields(Slot)}
    assert "since" in names
    for state in SlotState:
        for event in TRANSITIONS[state]:
            early, _ = advance(slot(state), SAMPLES[event], NOW, POLICY)
            late, _ = advance(slot(state, since=1e9), SAMPLES[event], NOW, POLICY)
            assert replace(late, since=0.0) == early


# --- launching --------------------------------------------------------------------------------


def test_a_launch_begins_with_a_promise() -> None:
    """Spec 7.2, law 1: the slot is launching, under its new generation, and only then is there something to start."""
    after, effects = advance(slot(FREE), Launch(N + 5), NOW, POLICY)
    assert (after.state, after.generation, after.handle, after.wanted) == (LAUNCHING, N + 5, None, False)
    assert effects == (StartProcess(after.id, N + 5),)


@pytest.mark.parametrize("generation", [N - 1, N])
def test_a_generation_is_not_given_out_twice(generation: int) -> None:
    """Law 5: two instances of one generation could not be told apart."""
    with pytest.raises(IllegalTransition, match="not above"):
        advance(slot(FREE), Launch(generation), NOW, POLICY)


@pytest.mark.parametrize("state", [FREE, ABANDONED])
def test_an_operators_launch_begins_a_new_row(state: SlotState) -> None:
    """Spec 6.3, 7.9: on a cooling or abandoned slot it ends the wait and forgets the losses."""
    after, _ = advance(slot(state, wanted=state is FREE, losses=2, due=2000.0), Launch(N + 1), NOW, POLICY)
    assert (after.wanted, after.losses, after.due) == (False, 0, None)


def test_a_replacement_continues_the_row() -> None:
    """Spec 7.9: it is wanted, and its losses are remembered."""
    after, _ = advance(slot(FREE, wanted=True, losses=2), Launch(N + 1, Cause.REPLACEMENT), NOW, POLICY)
    assert (after.wanted, after.losses) == (True, 2)


def test_a_started_process_is_watched() -> None:
    """Spec 7.5: it has until the launch timeout, and is looked at soon."""
    after, effects = advance(slot(LAUNCHING), Launched(N, HANDLE), NOW, POLICY)
    assert (after.state, after.handle, after.due) == (STARTING, HANDLE, NOW + 600)
    assert effects == (InspectProcess(after.id, N, 1.0),)


def test_a_launch_that_is_not_wanted_any_more_is_stopped_once_its_outcome_is_known() -> None:
    """Spec 6.4: awaited, then stopped."""
    leaving, effects = advance(slot(LAUNCHING, wanted=True), Drain(), NOW, POLICY)
    assert (leaving.state, leaving.leaving, leaving.wanted, effects) == (LAUNCHING, True, False, ())
    after, effects = advance(leaving, Launched(N, HANDLE), NOW, POLICY)
    assert (after.state, after.handle, after.leaving, effects) == (STOPPING, HANDLE, False, (STOP,))


def test_a_refused_start_frees_the_slot() -> None:
    """Spec 6.3: nothing was started, and nothing will be."""
    after, effects = advance(slot(LAUNCHING), Gone(N, None, "no key", refused=True), NOW, POLICY)
    assert (after.state, after.last_error, after.cause, effects) == (FREE, "no key", Cause.LAUNCH_FAILED, ())


@pytest.mark.parametrize("event", [Unknown(N, "broke"), Gone(N, 1, "exited at once")])
def test_a_start_that_may_have_left_something_is_stopped(event: Event) -> None:
    """Law 2: never free at once."""
    after, effects = advance(slot(LAUNCHING), event, NOW, POLICY)
    assert (after.state, effects) == (STOPPING, (STOP,))
    assert after.last_error in ("broke", "exited at once")


def test_an_address_in_use_reserves_the_slot() -> None:
    """Spec 7.4: for a replacement, too, and without a promise to try again."""
    after, effects = advance(slot(LAUNCHING, wanted=True, leaving=True), Occupied(N, "answers"), NOW, POLICY)
    assert (after.state, after.cause, after.last_error, effects) == (UNCONFIRMED, IN_USE, "answers", ())
    assert (after.wanted, after.leaving) == (False, False)


# --- starting ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "delay"), [(0.0, 1.0), (0.5, 1.0), (3.0, 3.0), (100.0, 5.0)], ids=["new", "young", "older", "old"]
)
@pytest.mark.parametrize("event", [Launched(N, HANDLE), Unknown(N, "unreachable")])
def test_a_starting_process_is_looked_at_ever_more_rarely(event: Event, age: float, delay: float) -> None:
    """Spec 7.5: it goes on if the process lives and if that can't be told."""
    before = slot(STARTING, due=NOW - age + 600)
    assert advance(before, event, NOW, POLICY) == (before, (InspectProcess(before.id, N, delay),))


def test_an_exit_ends_the_launch() -> None:
    """Spec 7.5: with the reason, and by way of a stop, for it may have left others behind."""
    after, effects = advance(slot(STARTING, due=2000.0), Gone(N, 3, "exited with status 3"), NOW, POLICY)
    assert (after.state, after.cause, after.last_error, after.due) == (
        STOPPING, Cause.EXITED, "exited with status 3", None,
    )  # fmt: skip
    assert effects == (STOP,)


@pytest.mark.parametrize("state", [LAUNCHING, STARTING])
def test_exit_0_of_a_wrapper_leaves_it_to_the_launch_timeout(state: SlotState) -> None:
    """Spec 7.5: the work is submitted, and there is no process to look at."""
    before = slot(state, wrapped=True, due=None if state is LAUNCHING else NOW + 600)
    after, effects = advance(before, Gone(N, 0, "submitted"), NOW, POLICY)
    assert (after.state, after.due) == (STARTING, NOW + 600)
    assert len(effects) == (state is LAUNCHING)


def test_a_submitted_launch_that_is_not_wanted_any_more_is_stopped() -> None:
    """Spec 6.4, 7.5: submitted is launched, too."""
    after, effects = advance(slot(LAUNCHING, wrapped=True, leaving=True), Gone(N, 0, "submitted"), NOW, POLICY)
    assert (after.state, effects) == (STOPPING, (STOP,))


@pytest.mark.parametrize(
    ("probed", "heard"),
    [
        (Probed(N, healthy=True, status=200), True),
        (Probed(N, healthy=False, status=503), True),
        (Probed(N, healthy=False), False),
    ],
)
def test_an_answer_is_remembered(probed: Probed, heard: bool) -> None:
    """Spec 7.5: silence is what a broker's queue sounds like; who has answered runs."""
    assert advance(slot(STARTING), probed, NOW, POLICY)[0].heard is heard


def test_the_first_success_makes_it_ready_and_wanted() -> None:
    """Spec 5.3, 7.9: what was ready once is replaced when it dies."""
    after, effects = advance(slot(STARTING, due=2000.0), Probed(N, healthy=True, status=200), NOW, POLICY)
    assert (after.state, after.wanted, after.due, effects) == (READY, True, None, ())


def test_the_launch_timeout_stops_it() -> None:
    """Spec 7.5: not before it is due."""
    before = slot(STARTING, due=NOW + 1)
    assert advance(before, Due(N), NOW, POLICY) == (before, ())
    after, effects = advance(before, Due(N), NOW + 1, POLICY)
    assert (after.state, after.cause, effects) == (STOPPING, Cause.LAUNCH_TIMEOUT, (STOP,))


def test_a_starting_replica_has_nothing_to_drain() -> None:
    """Spec 7.8: no request was ever sent to it."""
    after, effects = advance(slot(STARTING, wanted=True), Drain(Cause.SHUTDOWN), NOW, POLICY)
    assert (after.state, after.wanted, after.cause, effects) == (STOPPING, False, Cause.SHUTDOWN, (STOP,))


# --- ready and draining -----------------------------------------------------------------------


def test_patience_counts_from_the_first_failure() -> None:
    """Spec 7.9: later failures don't move it, a success ends it."""
    failing, _ = advance(slot(READY), Probed(N, healthy=False), NOW, POLICY)
    assert (failing.failing_since, failing.due) == (NOW, NOW + 30)
    assert advance(failing, Probed(N, healthy=False), NOW + 20, POLICY) == (failing, ())
    well, _ = advance(failing, Probed(N, healthy=True), NOW + 29, POLICY)
    assert (well.failing_since, well.due) == (None, None)


def test_a_lost_replica_is_drained_in_short() -> None:
    """Spec 7.9: counted, wanted, and not waited for."""
    failing = slot(READY, wanted=True, failing_since=NOW, due=NOW + 30)
    after, effects = advance(failing, Due(N), NOW + 30, POLICY)
    assert (after.state, after.cause, after.losses, after.wanted) == (DRAINING, Cause.LOST, 1, True)
    assert (after.due, effects) == (NOW + 30 + POLICY.lost_drain, ())


def test_a_short_drain_timeout_is_kept_for_a_lost_one() -> None:
    """Spec 7.8: `--drain-timeout` is the most that is waited for."""
    failing = slot(READY, wanted=True, failing_since=NOW, due=NOW)
    assert advance(failing, Due(N), NOW, replace(POLICY, drain_timeout=2))[0].due == NOW + 2


def test_five_minutes_well_end_the_row_of_losses() -> None:
    """Spec 7.9: counted from when it became well."""
    ready, _ = advance(slot(STARTING, wanted=True, losses=2), Probed(N, healthy=True), NOW, POLICY)
    assert ready.due == NOW + 300
    assert advance(ready, Due(N), NOW + 299, POLICY)[0].losses == 2
    after, effects = advance(ready, Due(N), NOW + 300, POLICY)
    assert (after.state, after.losses, after.due, effects) == (READY, 0, None, ())


def test_a_drain_waits_for_its_requests() -> None:
    """Spec 7.8: until idle, or the drain timeout."""
    draining, effects = advance(slot(READY, wanted=True), Drain(), NOW, POLICY)
    assert (draining.state, draining.wanted, draining.due, effects) == (DRAINING, False, NOW + 300, ())
    for event, at, cause in ((Idle(N), NOW + 1, Cause.IDLE), (Due(N), NOW + 300, Cause.DRAIN_TIMEOUT)):
        after, effects = advance(draining, event, at, POLICY)
        assert (after.state, after.cause, effects) == (STOPPING, cause, (STOP,))
    assert advance(draining, Due(N), NOW + 299, POLICY) == (draining, ())


@pytest.mark.parametrize("state", [DRAINING, STOPPING])
def test_an_operator_can_give_up_a_replacement_on_its_way(state: SlotState) -> None:
    """Spec 6.4: a retirement joins the stop that is under way, and nothing is launched after it."""
    after, effects = advance(slot(state, wanted=True, losses=1, due=1005.0), Drain(), NOW, POLICY)
    assert (after.state, after.wanted, after.due, effects) == (state, False, 1005.0, ())


# --- stopping ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("losses", "wait"), [(1, 10), (2, 20)])
def test_a_wanted_slot_cools_ever_longer(losses: int, wait: float) -> None:
    """Spec 7.9: counted from the confirmed stop."""
    after, effects = advance(slot(STOPPING, wanted=True, losses=losses), StopConfirmed(N), NOW, POLICY)
    assert (after.state, after.cooling, after.due, effects) == (FREE, True, NOW + wait, ())


def test_the_third_loss_abandons() -> None:
    """Spec 7.9: the router won't use it by itself."""
    after, _ = advance(slot(STOPPING, wanted=True, losses=3), StopConfirmed(N), NOW, POLICY)
    assert (after.state, after.wanted, after.due) == (ABANDONED, False, None)


def test_a_refused_replacement_is_a_loss() -> None:
    """Spec 7.9: it never became ready."""
    refused = Gone(N, None, "no key", refused=True)
    assert advance(slot(LAUNCHING, wanted=True, losses=1), refused, NOW, POLICY)[0].due == NOW + 20
    assert advance(slot(LAUNCHING, wanted=True, losses=2), refused, NOW, POLICY)[0].state is ABANDONED


def test_a_stop_that_is_not_confirmed_reserves_the_slot() -> None:
    """Spec 7.7, law 3: with what is not confirmed."""
    after, effects = advance(slot(STOPPING, handle=HANDLE), StopUnconfirmed(N, "unreachable"), NOW, POLICY)
    assert (after.state, after.cause, after.last_error) == (UNCONFIRMED, Cause.STOP_UNCONFIRMED, "unreachable")
    assert (after.handle, effects) == (HANDLE, ())


@pytest.mark.parametrize("event", [Gone(N, 0, "gone"), Unknown(N, "unreachable"), Launched(N, HANDLE)])
def test_an_inspection_that_comes_late_settles_no_stop(event: Event) -> None:
    """Law 4: it has raised no fence, and is not what the stop will find."""
    before = slot(STOPPING)
    assert advance(before, event, NOW, POLICY) == (before, ())


@pytest.mark.parametrize(
    ("submitted", "heard", "state"), [(True, False, UNCONFIRMED), (True, True, FREE), (False, False, FREE)]
)
def test_work_that_waits_with_a_broker_is_not_stopped(submitted: bool, heard: bool, state: SlotState) -> None:
    """Law 3: what nothing has recalled may still be started; what has answered is known by its silence."""
    assert advance(slot(STOPPING, heard=heard), StopConfirmed(N, submitted), NOW, POLICY)[0].state is state
