"""What a request holds while it is under way."""

from __future__ import annotations

import sys

import pytest

from pypto_serving_router.core.balancer import Balancer, Placement, Replica
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.core.lease import Lease, Pin


def replica() -> Replica:
    return Replica(ReplicaId("r"), "h", 1, ready=True)


def test_a_pin_without_neighbours_is_a_ring_of_its_own() -> None:
    """spec 3.7: so a ring is never empty, and whoever takes a pin out of it asks for no end."""
    root = Pin("", replica(), 0.0, None, None)
    pin = Pin("s", replica(), 1.0, root, root)

    assert root.before is root.after is root
    assert pin.before is pin.after is root
    assert (pin.inflight, pin.hits, pin.ended) == (1, 0, None)


def test_a_lease_is_released_once() -> None:
    """spec 3.4: a second release gives back no place of somebody else's."""
    balancer, one = Balancer(slack=1), replica()
    balancer.add(one)
    kept, lease = balancer.acquire(), balancer.acquire()
    for _ in range(2):
        lease.release()

    assert one.outstanding == 1
    assert (kept.held, lease.held) == (True, False)


@pytest.mark.compiled
def test_a_pin_is_small() -> None:
    """A hundred thousand of them fit in 30 MB, their ids and the index included: docs/explanation/routing.md."""
    assert sys.getsizeof(Pin("s", replica(), 0.0, None, None)) <= 80
    assert sys.getsizeof(Lease(Balancer(slack=1), replica(), Placement.NEW)) <= 80
