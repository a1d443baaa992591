"""What a slot says of itself."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.core.slot import Cause, Slot, SlotState

SLOT = Slot(SlotId("node-d0"), HostId("node"), "10.0.0.2", 8001, (0, 1))


@pytest.mark.parametrize(
    ("state", "taken", "present", "probed"),
    [
        (SlotState.FREE, False, False, False),
        (SlotState.LAUNCHING, True, True, False),
        (SlotState.STARTING, True, True, True),
        (SlotState.READY, True, True, True),
        (SlotState.DRAINING, True, True, True),
        (SlotState.STOPPING, True, True, False),
        (SlotState.UNCONFIRMED, True, False, False),
        (SlotState.ABANDONED, False, False, False),
    ],
)
def test_what_the_states_mean(state: SlotState, taken: bool, present: bool, probed: bool) -> None:
    """Spec 6.2, 7.1: which states count as owned, which have a replica to list, which are worth a probe."""
    slot = replace(SLOT, state=state)
    assert (slot.taken, slot.present, slot.probed) == (taken, present, probed)


def test_a_reservation_for_a_replica_that_did_not_answer_goes_on_being_probed() -> None:
    """Spec 7.13: of the unconfirmed ones that one alone."""
    reserved = replace(SLOT, state=SlotState.UNCONFIRMED, cause=Cause.UNREACHABLE_AT_STARTUP)
    assert reserved.awaited is True
    assert reserved.probed
    assert not replace(reserved, cause=Cause.STOP_UNCONFIRMED).probed


def test_only_a_free_slot_cools() -> None:
    """Spec 7.9: a slot that is wanted again is cooling once it is free."""
    assert replace(SLOT, wanted=True).cooling
    assert not replace(SLOT, wanted=True, state=SlotState.STOPPING).cooling
    assert not SLOT.cooling


def test_an_address_is_written_as_people_write_it() -> None:
    """An IPv6 address is bracketed."""
    assert SLOT.where == "10.0.0.2:8001"
    assert replace(SLOT, address="fd00::1").where == "[fd00::1]:8001"


def test_a_slot_tells_its_state_and_cannot_be_changed() -> None:
    """What a failed test or a debugger shows is enough to go by."""
    slot = replace(SLOT, state=SlotState.STOPPING, cause=Cause.LOST, generation=7, wanted=True)
    assert repr(slot) == "<Slot node-d0 stopping (lost) g7 wanted>"
    with pytest.raises(FrozenInstanceError):
        slot.state = SlotState.FREE  # type: ignore[misc]  # that is the point


def test_faults_are_the_causes_that_nobody_decided() -> None:
    """Spec 9: these are logged as warnings."""
    decided = {
        Cause.INITIAL, Cause.OPERATOR, Cause.REPLACEMENT, Cause.ADOPTED, Cause.SHUTDOWN, Cause.LAUNCHED, Cause.ANSWERED,
        Cause.IDLE, Cause.DRAIN_TIMEOUT, Cause.STOPPED, Cause.CANCELLED, Cause.PLACE_TAKEN, Cause.FORCED,
    }  # fmt: skip
    assert {cause for cause in Cause if not cause.is_fault} == decided
