"""What a request holds while it is under way: its place on a replica, and its session's pin.

Both are kept out of the garbage collector's sight, which would walk a hundred thousand of them and find nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pypto_serving_router.core.balancer import Balancer, Placement, Replica
    from pypto_serving_router.core.decisions import Why


class Pin(msgspec.Struct, gc=False, eq=False):
    """One session's place: its replica, its last activity, its requests in flight."""

    session: str
    replica: Replica
    last: float
    inflight: int
    """0 in the idle ring, and once forgotten."""
    before: Pin
    after: Pin
    hits: int = 0
    """Requests that went to the replica by affinity."""
    ended: Why | None = None
    """Why it was forgotten."""


class Lease(msgspec.Struct, gc=False, eq=False):
    """A request's place on a replica, counted as outstanding until released.

    It is not tracked by the garbage collector: whoever holds it lets go of it when the request is over.
    """

    balancer: Balancer
    replica: Replica
    placement: Placement
    tried: tuple[Replica, ...] = ()
    """The replicas this request was placed on before."""
    pin: Pin | None = None
    """The session's pin that this request keeps from expiring."""
    held: bool = True

    def release(self) -> None:
        """Give the place back; a second call does nothing."""
        if self.held:
            self.held = False
            self.balancer.released(self.replica)
