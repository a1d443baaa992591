"""What all exchanges share: how a placement is told to clients."""

from __future__ import annotations

from tests.support.rig import Rig

from pypto_serving_router.core.balancer import Placement, Replica
from pypto_serving_router.core.ids import ReplicaId


def test_a_placement_is_described_once() -> None:
    """Each replica and reason has lines of its own, which are not written anew for each request (spec 9)."""
    proxy = Rig().proxy
    lease = proxy.routing.place("a", 1.0)
    again = proxy.routing.place("a", 1.0)

    lines = proxy.describe(lease)

    assert lines == f"X-Router-Replica: {lease.replica.id}\r\nX-Router-Placement: new\r\n".encode()
    assert proxy.describe(again) == lines.replace(b"new", b"affinity")
    lease.placement = Placement.AFFINITY
    assert proxy.describe(lease) is proxy.describe(again)


def test_descriptions_do_not_pile_up() -> None:
    """Replicas come and go for years; only some thousands of descriptions are kept."""
    proxy = Rig().proxy
    lease = proxy.routing.place("a", 1.0)
    for number in range(10_000):
        lease.replica = Replica(ReplicaId(f"r{number}"), "127.0.0.1", 1, ready=True)
        proxy.describe(lease)

    assert len(proxy._described) <= 8192
