"""A request's way through session table and balancer, as one step each for its start and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pypto_serving_router.core import decisions
from pypto_serving_router.core.balancer import Balancer, Placement
from pypto_serving_router.core.decisions import Decisions, glance
from pypto_serving_router.core.sessions import SessionTable

if TYPE_CHECKING:
    from pypto_serving_router.core.balancer import Replica
    from pypto_serving_router.core.lease import Lease

_AFFINITY = Placement.AFFINITY


class Routing:
    """The session table and the balancer, kept in step, and the memory of what was chosen.

    Every method is synchronous, so that nothing comes between the look-up, the choice and the pin.
    """

    def __init__(self, *, slack: int, ttl: float, capacity: int, remembered: int = decisions.KEPT) -> None:
        """Take `--affinity-slack`, `--session-ttl` in seconds, `--max-sessions`, and how many choices to remember."""
        self.balancer = Balancer(slack=slack)
        self.decisions = Decisions(remembered)
        self.sessions = SessionTable(ttl=ttl, capacity=capacity, on_unpin=self.balancer.lowered)

    def place(self, session: str, now: float, size: int = 0) -> Lease:
        """Choose the replica for a request of the session, of `size` bytes, and pin the session there.

        Raises:
            NoReplica: none is routable; the session's pin is as it was.
        """
        sessions = self.sessions
        pin = sessions.find(session, now)
        if pin is None:
            lease = self.balancer.acquire(heavy=sessions.is_heavy(size))
            seen = glance(lease)
            lease.pin = pin = sessions.open(session, lease.replica, now, size)
            self.decisions.note(pin, lease, now, seen)
        else:
            pinned = pin.replica
            lease = self.balancer.acquire(pinned)
            lease.pin = pin
            if lease.placement is _AFFINITY:
                pin.hits += 1
            else:
                self.decisions.note(pin, lease, now, glance(lease, pinned), pinned)
            sessions.begin(pin, lease.replica, now)
        return lease

    def peek(self, session: str | None, now: float) -> Lease:
        """Choose the replica for a request that opens no session, renews none and is not counted.

        Raises:
            NoReplica: none is routable.
        """
        pinned = None if session is None else self.sessions.get(session, now)
        return self.balancer.acquire(pinned, count=False)

    def replace(self, lease: Lease, now: float) -> Lease:
        """Move a request whose replica refused the connection to one it was not tried on, and pin its session there.

        `lease` is finished, also where no other replica is found. The request counts for either replica's `routed`,
        and once in all.

        Raises:
            NoReplica: none is routable that was not tried.
        """
        self.finish(lease, now)
        tried = (*lease.tried, lease.replica)
        moved = self.balancer.acquire(exclude=tried, count=False)
        moved.tried = tried
        moved.placement = Placement.MOVED_UNROUTABLE
        if lease.pin is not None:
            moved.replica.routed += 1
            seen = glance(moved, lease.replica)
            moved.pin = self.sessions.pin(lease.pin.session, moved.replica, now)
            self.decisions.note(moved.pin, moved, now, seen, lease.replica)
        return moved

    def finish(self, lease: Lease, now: float) -> None:
        """Give the request's place back, and renew its session's pin; a second call does nothing."""
        if lease.held:
            lease.held = False
            pin = lease.pin
            if pin is not None:
                self.sessions.end(pin, now)
            self.balancer.released(lease.replica)

    def drain(self, replica: Replica, now: float) -> int:
        """Choose the replica no more, and drop its pins; return how many. Final."""
        count = self.sessions.drop(replica)
        self.balancer.drain(replica, now)
        return count

    def remove(self, replica: Replica) -> int:
        """Take the replica out of the table, and drop its pins; return how many."""
        count = self.sessions.drop(replica)
        self.balancer.remove(replica)
        return count
