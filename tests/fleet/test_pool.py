"""The slots there are, and which is the next to launch on."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_hosts import slots

from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.core.slot import Cause, Slot, SlotState
from pypto_serving_router.errors import PoolFull, SlotBusy, UnknownSlot
from pypto_serving_router.fleet.pool import SlotPool


def pool(*states: SlotState, ceiling: int | None = None) -> SlotPool:
    made = SlotPool(slots(len(states)), len(states) if ceiling is None else ceiling)
    for slot, state in zip(list(made.slots.values()), states, strict=True):
        made.put(replace(slot, state=state, generation=1))
    return made


FREE, LAUNCHING, READY, ABANDONED = SlotState.FREE, SlotState.LAUNCHING, SlotState.READY, SlotState.ABANDONED


def test_the_next_slot_is_the_first_free_one() -> None:
    """Spec 7.1: in the order in which they were given; cooling ones come after, abandoned ones last."""
    made = pool(READY, ABANDONED, FREE, FREE)
    made.put(replace(made.slots[SlotId("node-d2")], wanted=True))
    order: list[Slot] = []
    while len(order) < 3:
        order.append(made.pick())
        made.put(replace(order[-1], state=LAUNCHING))
    assert [slot.id for slot in order] == ["node-d3", "node-d2", "node-d1"]
    with pytest.raises(PoolFull):
        made.pick()


@given(
    states=st.lists(st.sampled_from([FREE, READY, ABANDONED]), min_size=1, max_size=6),
    cooling=st.sets(st.integers(0, 5)),
    shared=st.sets(st.integers(0, 5)),
    ceiling=st.integers(0, 6),
    count=st.integers(-1, 7),
)
def test_some_are_picked_as_one_by_one(
    states: list[SlotState], cooling: set[int], shared: set[int], ceiling: int, count: int
) -> None:
    """Spec 7.1, 2.7: the same slots in the same order; two that share a device are not both picked."""
    declared = [
        replace(slot, address="elsewhere", host=HostId("other"), devices=(0,)) if n in shared else slot
        for n, slot in enumerate(slots(len(states)))
    ]
    made = SlotPool(declared, ceiling)
    for n, (slot, state) in enumerate(zip(declared, states, strict=True)):
        made.put(replace(slot, state=state, generation=1, wanted=state is FREE and n in cooling))

    some = made.pick_some(count)

    one_by_one: list[Slot] = []
    with contextlib.suppress(PoolFull):
        while len(one_by_one) < count:
            one_by_one.append(made.pick())
            made.put(replace(one_by_one[-1], state=LAUNCHING))
    assert some == one_by_one


def test_unconfirmed_slots_count_as_held() -> None:
    """Spec 7.13: towards the ceiling, too."""
    made = pool(SlotState.UNCONFIRMED, FREE, ceiling=1)
    assert (made.owned, made.full) == (1, True)
    with pytest.raises(PoolFull, match="1 slots are held, and no more than 1 may be"):
        made.pick()


def test_a_place_can_be_asked_for() -> None:
    """Spec 6.3: a host's next slot, or a slot; what can't be had is told apart from what isn't there."""
    made = pool(FREE, READY, FREE)
    assert made.pick(slot=SlotId("node-d2")).id == "node-d2"
    assert made.pick(host=HostId("node")).id == "node-d0"
    with pytest.raises(SlotBusy, match="node-d1 is not free: ready"):
        made.pick(slot=SlotId("node-d1"))
    with pytest.raises(UnknownSlot, match="no slot node-d9"):
        made.pick(slot=SlotId("node-d9"))
    with pytest.raises(UnknownSlot, match="no host other"):
        made.pick(host=HostId("other"))
    with pytest.raises(UnknownSlot):
        made.pick(slot=SlotId("node-d0"), host=HostId("other"))


def test_the_listing_says_why_a_slot_is_not_used() -> None:
    """Spec 6.2: unconfirmed with its reason, abandoned with its losses, and the last error of each slot."""
    made = pool(READY, SlotState.UNCONFIRMED, ABANDONED, FREE)
    first, second, third, fourth = made.slots.values()
    made.put(replace(second, cause=Cause.STOP_UNCONFIRMED, since=17.0, last_error="unreachable"))
    made.put(replace(third, losses=3, since=18.0))
    made.put(replace(fourth, losses=1, wanted=True, since=19.0, due=5.0))
    capacity = made.capacity()
    assert (capacity.ceiling, capacity.owned, capacity.free_slots) == (4, 2, ("node-d2", "node-d3"))
    (unconfirmed,) = capacity.unconfirmed
    assert (unconfirmed.slot, unconfirmed.reason, unconfirmed.since, unconfirmed.detail) == (
        second.id, "stop-unconfirmed", 17.0, "unreachable",
    )  # fmt: skip
    (abandoned,) = capacity.abandoned
    assert (abandoned.slot, abandoned.reason, abandoned.since) == (third.id, "lost 3 replicas in a row", 18.0)
    (cooling,) = capacity.cooling
    assert (cooling.slot, cooling.reason, cooling.since, cooling.due) == (fourth.id, "lost its replica", 19.0, 5.0)
    assert capacity.last_errors == {second.id: "unreachable"}
    assert first.id not in capacity.last_errors


def test_a_free_slot_is_where_it_is_declared() -> None:
    """Spec 7.13: a recorded one stays where it was launched, until it is free."""
    made = SlotPool(slots(1), 1)
    recorded = replace(slots(1)[0], state=READY, generation=3, port=9000, devices=(6,), host=HostId("old"))
    kept = made.restore(recorded)
    assert kept is not None
    assert (kept.port, kept.devices, kept.host) == (9000, (6,), "node")
    free = made.put(replace(kept, state=FREE))
    assert free.place == slots(1)[0].place


@pytest.mark.parametrize(("host", "address"), [("node", "elsewhere"), ("renamed", "node.example")])
def test_devices_are_held_under_any_name(host: str, address: str) -> None:
    """Spec 2.6, 7.13: the same host or the same address is the same machine."""
    made = SlotPool(slots(2), 2)
    stray = Slot(SlotId("gone-d1"), HostId(host), address, 9999, (1,), state=READY, generation=3)
    assert made.restore(stray) is None
    assert [slot.id for slot in made.free()] == ["node-d0"]
    assert [(entry.slot, entry.reason) for entry in made.capacity().unconfirmed] == [("gone-d1", "undeclared")]
    assert made.owned == 0
    assert list(made.recorded()) == [*made.slots.values(), stray]
    assert [(slot.id, slot.state) for slot in made.shown()][2:] == [("gone-d1", SlotState.UNCONFIRMED)]


def test_an_undeclared_slot_without_a_process_holds_nothing() -> None:
    """Spec 7.13: its record is kept, for its generation."""
    made = SlotPool(slots(1), 1)
    made.restore(Slot(SlotId("gone-d0"), HostId("node"), "node.example", 9999, (0,), generation=3))
    assert [slot.id for slot in made.free()] == ["node-d0"]
    assert made.capacity().unconfirmed == ()
    assert [slot.id for slot in made.shown()] == ["node-d0"]
