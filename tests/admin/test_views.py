"""The state of the router as documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.admin import views
from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.core.routing import Routing

if TYPE_CHECKING:
    from tests.admin.conftest import Router


def test_health(router: Router) -> None:
    """`/health` has the fields and the figures of this moment (spec 6.1)."""
    router.add("node0")
    router.add("node1", ready=False)
    router.routing.place("a", 1.0)
    router.routing.place("a", 1.0)

    assert views.health(router.balancer, router.routing.sessions) == {
        "status": "ok",
        "replicas_ready": 1,
        "replicas_total": 2,
        "replicas_failed": 0,
        "sessions": 1,
        "routed": 2,
        "affinity_hits": 1,
        "rejected": 0,
        "replicas": [
            {"name": "node0", "url": "http://10.0.0.1:8001", "ready": True, "outstanding": 2, "phase": "ready"},
            {"name": "node1", "url": "http://10.0.0.1:8001", "ready": False, "outstanding": 0, "phase": "starting"},
        ],
    }


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans())))
def test_health_counts(replicas: list[tuple[bool, bool, bool]]) -> None:
    """The counts are those of the rows, and `ok` means just that a replica is routable (spec 6.1, 5.5)."""
    routing = Routing(slack=1, ttl=1, capacity=1)
    for number, (ever, ready, draining) in enumerate(replicas):
        replica = Replica(ReplicaId(f"r{number}"), "h", 1, ready=False)
        routing.balancer.add(replica)
        if ever:
            routing.balancer.set_ready(replica, True, 1.0)
        routing.balancer.set_ready(replica, ready, 2.0)
        if draining:
            routing.drain(replica, 3.0)

    view = views.health(routing.balancer, routing.sessions)

    phases = [row["phase"] for row in view["replicas"]]
    routable = sum(replica.available for replica in routing.balancer.replicas.values())
    assert view["replicas_ready"] == phases.count("ready") == routable
    assert view["replicas_failed"] == phases.count("failed")
    assert view["replicas_total"] == len(replicas)
    assert view["status"] == ("ok" if routable else "unavailable")


def test_row(router: Router) -> None:
    """A row of `/replicas` has the fields of `/health` and more, and `since` on the wall's clock (spec 6.2)."""
    replica = router.add("node1-d0", owned=True, ready=False)
    router.time += 60
    router.balancer.set_ready(replica, False, router.time, error="connection refused")
    router.balancer.set_ready(replica, True, router.time)
    router.time += 60
    router.balancer.drain(replica, router.time)

    (row,) = router.json("GET", "/replicas")[1]["replicas"]

    assert row == {
        "name": "node1-d0",
        "url": "http://10.0.0.1:8001",
        "ready": True,
        "outstanding": 0,
        "phase": "draining",
        "draining": True,
        "owned": True,
        "routed": 0,
        "sessions": 0,
        "first_byte": {"answers": 0, "seconds": 0.0},
        "slot": "node1-d0",
        "since": "2023-11-14T22:15:20.000Z",
        "last_error": "connection refused",
    }


def test_capacity(router: Router) -> None:
    """The capacity says what is free, what is reserved and why, and what went wrong last (spec 6.2)."""
    assert views.capacity_left(router.fleet.capacity(), str) == {
        "ceiling": 3,
        "owned": 2,
        "free_slots": ["node1-d3", "node1-d4"],
        "cooling": [
            {"slot": "node1-d4", "reason": "lost its replica", "since": "2023-11-14T22:13:21.000Z", "until": "12.0"},
        ],
        "unconfirmed": [
            {"slot": "node1-d1", "reason": "stop-unconfirmed", "since": "2023-11-14T22:13:20.000Z"},
        ],
        "abandoned": [
            {"slot": "node1-d2", "reason": "lost 3 replicas in a row", "since": "2023-11-14T22:13:20.500Z"},
        ],
        "last_errors": {"node1-d1": "still answers", "node1-d2": "exit status 1", "node1-d4": "exit status 3"},
    }
