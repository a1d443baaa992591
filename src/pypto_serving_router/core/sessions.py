"""The pins: which replica each live conversation is on.

Theory of operation
-------------------
A pin is found by its session's id and lies in one of two rings, each ordered by last activity: *busy* while the
session has a request in flight, else *idle*. Expiry looks only at the head of the idle ring. Eviction takes the
older of the two heads. Both are O(1), and so is each step of a request.

A replica's pins are dropped at once by counting them off. What is left of them reads as no pin and is removed bit by
bit: a shard with each new pin, so that it cannot pile up, and by `sweep`.

No operation may hold the event loop for long, however many pins there are. Two things would: growing one big hash
table (8 ms at 175,000 entries), and the garbage collector walking the pins. So the index is cut into shards, and
compiled pins are not tracked (`acyclic`). A ring is made of cycles, which nobody would collect then: a pin that is
forgotten is unlinked by hand, and a table is made once for the life of the process.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.decisions import Why
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.core.lease import Pin

if TYPE_CHECKING:
    from collections.abc import Callable

SHARD = 1024
"""The most pins a shard holds on average: few enough to be gone through within one request."""

_DRAINING, _EXPIRED, _EVICTED = Why.DRAINING, Why.EXPIRED, Why.EVICTED


def _ring() -> Pin:
    """Make an empty ring: its root is older than nothing, so that no reader need ask whether it is empty."""
    return Pin("", Replica(ReplicaId(""), "", 0, ready=False), inf, None, None)


class SessionTable:
    """At most `capacity` pins, each forgotten after `ttl` seconds without activity."""

    def __init__(self, *, ttl: float, capacity: int, on_unpin: Callable[[Replica], None] | None = None) -> None:
        """`on_unpin` is called when a replica has lost one pin."""
        self.ttl = ttl
        self.capacity = capacity
        self.expired = 0
        self.evicted = 0
        self.dropped = 0
        self._on_unpin = on_unpin
        self._live = 0
        self._weight = 0  # of the live pins
        self._remains = 0  # pins of draining replicas, counted off already
        self._idle = _ring()
        self._busy = _ring()
        self._mask = (1 << (capacity // SHARD).bit_length()) - 1
        self._shards: list[dict[str, Pin]] = [{} for _ in range(self._mask + 1)]
        self._next_shard = 0

    def __len__(self) -> int:
        """The number of live pins; an expired one counts until it is swept."""
        return self._live

    def get(self, session: str, now: float) -> Replica | None:
        """Return the replica the session is pinned to."""
        pin = self.find(session, now)
        return None if pin is None else pin.replica

    def find(self, session: str, now: float) -> Pin | None:
        """Return the session's live pin; what is left of one that lives no more is removed."""
        pin = self._shards[hash(session) & self._mask].get(session)
        if pin is not None:
            if pin.replica.dropped:
                self._forget(pin, _DRAINING)
                return None
            if pin.last + self.ttl <= now and not pin.inflight:
                self._expire(pin)
                return None
        return pin

    def is_heavy(self, size: int) -> bool | None:
        """Tell whether a request of so many bytes is more than what live pins were made by on average, or less.

        None if it is about the same, or there is nothing to compare it with.
        """
        more = size * self._live - self._weight
        return None if -self._weight <= 10 * more <= self._weight else more > 0

    def open(self, session: str, replica: Replica, now: float, size: int = 0) -> Pin:
        """Pin a session for which `find` has just returned None, with one request in flight, of `size` bytes."""
        if self._remains:
            self._clean_shard()
        while self._live >= self.capacity:
            idle = self._idle.after
            if idle.last + self.ttl <= now:
                self._expire(idle)
                continue
            busy = self._busy.after
            victim = idle if idle.last <= busy.last else busy
            self.evicted += not victim.replica.dropped
            self._forget(victim, _EVICTED)
        root = self._busy
        last = root.before
        pin = Pin(session, replica, now, last, root)
        last.after = root.before = self._shards[hash(session) & self._mask][session] = pin
        self._live += 1
        self._weight += size
        replica.pins += 1
        replica.weight += size
        return pin

    def begin(self, pin: Pin, replica: Replica, now: float) -> None:
        """Note that a request of the session starts on `replica`, and pin the session there."""
        left = pin.replica
        if replica is not left:
            pin.replica = replica
            size = _take_share(left)
            replica.pins += 1
            replica.weight += size
            left.pins -= 1
            if self._on_unpin is not None:
                self._on_unpin(left)
        pin.inflight += 1
        pin.last = now
        _append(self._busy, pin)

    def end(self, pin: Pin, now: float) -> None:
        """Note that one of the session's requests is over; of a forgotten pin, nothing."""
        inflight = pin.inflight
        if inflight:
            pin.inflight = inflight - 1
            pin.last = now
            _append(self._busy if inflight > 1 else self._idle, pin)

    def pin(self, session: str, replica: Replica, now: float, size: int = 0) -> Pin:
        """Pin the session to the replica, wherever it was, with one more request in flight, of `size` bytes."""
        pin = self.find(session, now)
        if pin is None:
            return self.open(session, replica, now, size)
        self.begin(pin, replica, now)
        return pin

    def drop(self, replica: Replica) -> int:
        """Drop all pins of a replica that will get no more; return how many."""
        count = replica.pins
        replica.dropped = True
        self._weight -= replica.weight
        replica.pins = replica.weight = 0
        self._live -= count
        self._remains += count
        self.dropped += count
        return count

    def sweep(self, now: float, budget: int) -> bool:
        """Remove up to about `budget` pins that expired or were dropped; True if some may be left."""
        while budget > 0 and self._idle.after.last + self.ttl <= now:
            self._expire(self._idle.after)
            budget -= 1
        while budget > 0 and self._remains:
            budget -= self._clean_shard()
        return budget <= 0

    def _clean_shard(self) -> int:
        """Remove what dropped replicas left in the next shard; return the work done, in pins looked at."""
        shard = self._shards[self._next_shard]
        self._next_shard = (self._next_shard + 1) & self._mask
        work = len(shard) + 1
        for pin in [pin for pin in shard.values() if pin.replica.dropped]:
            self._forget(pin, _DRAINING)
        return work

    def _expire(self, pin: Pin) -> None:
        self.expired += not pin.replica.dropped
        self._forget(pin, _EXPIRED)

    def _forget(self, pin: Pin, why: Why) -> None:
        del self._shards[hash(pin.session) & self._mask][pin.session]
        before = pin.before
        after = pin.after
        before.after = after
        after.before = before
        # Leases and decisions may hold it still: they must not keep its neighbours, nor take it for a live one.
        pin.before = pin.after = self._idle
        pin.inflight = 0
        replica = pin.replica
        if replica.dropped:
            pin.ended = _DRAINING
            self._remains -= 1
            return
        pin.ended = why
        self._live -= 1
        self._weight -= _take_share(replica)
        replica.pins -= 1
        if self._on_unpin is not None:
            self._on_unpin(replica)


def _take_share(replica: Replica) -> int:
    """Take off a replica's weight what a pin has on average: with a size of its own, each would be a tenth larger."""
    size = replica.weight // replica.pins
    replica.weight -= size
    return size


def _append(root: Pin, pin: Pin) -> None:
    """Take the pin out of the ring it is in and make it the youngest of this one."""
    before = pin.before
    after = pin.after
    before.after = after
    after.before = before
    last = root.before
    last.after = root.before = pin
    pin.before = last
    pin.after = root
