"""What a request holds while it is under way: its place on a replica, and its session's pin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i32, mypyc_attr

if TYPE_CHECKING:
    from pypto_serving_router.core.balancer import Balancer, Placement, Replica
    from pypto_serving_router.core.decisions import Why


@mypyc_attr(acyclic=True)  # compiled, they are kept out of the collector's sight, which would find nothing
class Pin:
    """One session's place: its replica, its last activity, its requests in flight.

    `inflight` is 0 in the idle ring, and once forgotten. `hits` counts the requests that went to the replica by
    affinity. `ended` says why the pin was forgotten.
    """

    __slots__ = ("after", "before", "ended", "hits", "inflight", "last", "replica", "session")

    def __init__(self, session: str, replica: Replica, last: float, before: Pin | None, after: Pin | None) -> None:
        """Make a pin with one request in flight, between two of a ring, or one that is a ring of its own."""
        self.session = session
        self.replica = replica
        self.last = last
        self.inflight: i32 = 1
        self.hits: i32 = 0
        self.before: Pin = self if before is None else before
        self.after: Pin = self if after is None else after
        self.ended: Why | None = None


@mypyc_attr(acyclic=True)
class Lease:
    """A request's place on a replica, counted as outstanding until released.

    `tried` are the replicas this request was placed on before. `pin` is the session's, which this request keeps from
    expiring.
    """

    __slots__ = ("balancer", "held", "pin", "placement", "replica", "tried")

    def __init__(self, balancer: Balancer, replica: Replica, placement: Placement) -> None:
        self.balancer = balancer
        self.replica = replica
        self.placement = placement
        self.tried: tuple[Replica, ...] = ()
        self.pin: Pin | None = None
        self.held = True

    def release(self) -> None:
        """Give the place back; a second call does nothing."""
        if self.held:
            self.held = False
            self.balancer.released(self.replica)
