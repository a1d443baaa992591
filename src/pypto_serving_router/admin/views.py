"""Documents that show the state of the router: pure functions of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pypto_serving_router.admin.wall_clock import iso
from pypto_serving_router.core.balancer import Phase
from pypto_serving_router.telemetry.access import short_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pypto_serving_router.core.balancer import Balancer, Replica
    from pypto_serving_router.core.decisions import Decision
    from pypto_serving_router.core.lease import Pin
    from pypto_serving_router.core.sessions import SessionTable
    from pypto_serving_router.fleet.pool import Capacity, Reserved

_NONE: Final = (0, 0.0)


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


def fleet(
    balancer: Balancer,
    capacity: Capacity,
    first_bytes: Mapping[str, tuple[int, float]],
    wall_time: Callable[[float], str],
) -> dict[str, Any]:
    """Return every replica, and what is left to launch on (spec 6.2)."""
    return {
        "replicas": [
            row(replica, first_bytes.get(replica.id, _NONE), wall_time) for replica in balancer.replicas.values()
        ],
        "capacity": capacity_left(capacity, wall_time),
    }


def row(replica: Replica, first_bytes: tuple[int, float], wall_time: Callable[[float], str]) -> dict[str, Any]:
    """Return one replica as `/replicas` lists it; `since` is when its phase last changed.

    `first_bytes` is how many of its answers have begun, and the seconds which that took in sum.
    """
    answers, seconds = first_bytes
    return {
        **_summary(replica),
        "draining": replica.draining,
        "owned": replica.owned,
        "routed": replica.routed,
        "sessions": replica.pins,
        "first_byte": {"answers": answers, "seconds": round(seconds, 6)},
        "slot": replica.slot,
        "since": wall_time(replica.since),
        "last_error": replica.last_error,
    }


def capacity_left(capacity: Capacity, wall_time: Callable[[float], str]) -> dict[str, Any]:
    """Return what is held and what is left."""
    details = {reserved.slot: reserved.detail for reserved in capacity.unconfirmed if reserved.detail}
    return {
        "ceiling": capacity.ceiling,
        "owned": capacity.owned,
        "free_slots": list(capacity.free_slots),
        "cooling": [
            _reserved(slot) | {"until": None if slot.due is None else wall_time(slot.due)} for slot in capacity.cooling
        ],
        "unconfirmed": [_reserved(slot) for slot in capacity.unconfirmed],
        "abandoned": [_reserved(slot) for slot in capacity.abandoned],
        "last_errors": details | dict(capacity.last_errors),
    }


def story(session: str, pin: Pin | None, ttl: float, wall_time: Callable[[float], str]) -> dict[str, Any]:
    """Return where a conversation is now; `expires` is when its pin does, unless a request comes before."""
    pinned = pin and {
        "replica": pin.replica.id,
        "outstanding": pin.inflight,
        "last_activity": wall_time(pin.last),
        "expires": None if pin.inflight else wall_time(pin.last + ttl),
    }
    return {"session": session, "digest": short_hash(session), "pinned": pinned}


def decisions(found: Iterable[Decision], slack: int, wall_time: Callable[[float], str]) -> dict[str, Any]:
    """Return choices of a replica; like the log, they name their sessions by digests."""
    return {"slack": slack, "decisions": [_decision(decision, wall_time) for decision in found]}


def _decision(decision: Decision, wall_time: Callable[[float], str]) -> dict[str, Any]:
    return {
        "digest": short_hash(decision.session),
        "at": wall_time(decision.at),
        "replica": decision.replica,
        "placement": decision.placement,
        "why": decision.why,
        "left": decision.left,
        "trouble": decision.trouble,
        "stayed": decision.stayed,
        "ended": decision.ended,
        "replicas": decision.replicas,
        "loads": [
            {
                "replica": load.replica,
                "routable": load.available,
                "outstanding": load.outstanding,
                "sessions": load.pins,
            }
            for load in decision.loads
        ],
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
