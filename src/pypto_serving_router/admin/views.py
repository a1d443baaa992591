"""Documents that show the state of the router: pure functions of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pypto_serving_router.admin.wall_clock import iso
from pypto_serving_router.core.balancer import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypto_serving_router.core.balancer import Balancer, Replica
    from pypto_serving_router.core.sessions import SessionTable
    from pypto_serving_router.fleet.pool import Capacity, Reserved


def health(balancer: Balancer, sessions: SessionTable) -> dict[str, Any]:
    """Return the state of the whole table (spec 6.1). `replicas_ready` counts the routable ones."""
    replicas = balancer.replicas.values()
    phases = [replica.phase for replica in replicas]
    ready = phases.count(Phase.READY)
    return {
        "status": "ok" if ready else "unavailable",
        "replicas_ready": ready,
        "replicas_total": len(phases),
        "replicas_failed": phases.count(Phase.FAILED),
        "sessions": len(sessions),
        "routed": balancer.routed,
        "affinity_hits": balancer.affinity_hits,
        "rejected": balancer.rejected,
        "replicas": [_summary(replica) for replica in replicas],
    }


def fleet(balancer: Balancer, capacity: Capacity, wall_time: Callable[[float], str]) -> dict[str, Any]:
    """Return every replica, and what is left to launch on (spec 6.2)."""
    return {
        "replicas": [row(replica, wall_time) for replica in balancer.replicas.values()],
        "capacity": capacity_left(capacity),
    }


def row(replica: Replica, wall_time: Callable[[float], str]) -> dict[str, Any]:
    """Return one replica as `/replicas` lists it; `since` is when its phase last changed."""
    return {
        **_summary(replica),
        "draining": replica.draining,
        "owned": replica.owned,
        "routed": replica.routed,
        "sessions": replica.pins,
        "slot": replica.slot,
        "since": wall_time(replica.since),
        "last_error": replica.last_error,
    }


def capacity_left(capacity: Capacity) -> dict[str, Any]:
    """Return what is held and what is left."""
    details = {reserved.slot: reserved.detail for reserved in capacity.unconfirmed if reserved.detail}
    return {
        "ceiling": capacity.ceiling,
        "owned": capacity.owned,
        "free_slots": list(capacity.free_slots),
        "unconfirmed": [_reserved(slot) for slot in capacity.unconfirmed],
        "abandoned": [_reserved(slot) for slot in capacity.abandoned],
        "last_errors": details | dict(capacity.last_errors),
    }


def _summary(replica: Replica) -> dict[str, Any]:
    return {
        "name": replica.id,
        "url": replica.url,
        "ready": replica.ready,
        "outstanding": replica.outstanding,
        "phase": replica.phase,
    }


def _reserved(slot: Reserved) -> dict[str, Any]:
    return {"slot": slot.slot, "reason": slot.reason, "since": iso(slot.since)}
