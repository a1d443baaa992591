"""The pins: which replica each live conversation is on.

Theory of operation
-------------------
A pin is found by its session's id and lies in one of two rings, each ordered by last activity: *idle*, or *busy*
while the session has a request in flight. Expiry looks only at the head of the idle ring. Eviction takes the older
of the two heads. Both are O(1), and so is each step of a request.

A draining replica's pins are dropped at once by counting them off; what is left of them reads as no pin, and is
removed bit by bit: one shard for each new pin, and by `sweep`.

No operation may hold the event loop for long, however many pins there are. Two things would: growing one big hash
table (8 ms at 175,000 entries), and the garbage collector walking the pins. So the index is cut into shards of some
hundred pins, and pins are untracked (`gc=False`); since a ring is full of cycles, each pin is taken out of it by hand.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.ids import ReplicaId

if TYPE_CHECKING:
    from collections.abc import Callable

SHARD = 256
"""Pins a shard holds on average when the table is full: small enough to go through within one request."""


class Pin(msgspec.Struct, gc=False, eq=False):
    """One session's place: its replica, its last activity, its requests in flight."""

    session: str
    replica: Replica
    last: float
    inflight: int
    """0 in the idle ring, and once forgotten."""
    before: Pin
    after: Pin


def _ring() -> Pin:
    """Make an empty ring: its root is older than nothing, so that no reader need ask whether it is empty."""
    root = Pin("", Replica(ReplicaId(""), "", 0, ready=False), inf, 0, None, None)  # type: ignore[arg-type] # closed at once
    root.before = root.after = root
    return root


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
        """Return the session's live pin."""
        pin = self._shards[hash(session) & self._mask].get(session)
        if pin is None or pin.replica.dropped:
            return None
        if not pin.inflight and pin.last + self.ttl <= now:
            return None
        return pin

    def open(self, session: str, replica: Replica, now: float) -> Pin:
        """Pin a session that has no live pin, with one request in flight."""
        if self._remains:
            self._clean_shard()
        shard = self._shards[hash(session) & self._mask]
        if session in shard:
            self._forget(shard[session])
        while self._live >= self.capacity:
            self._forget(self._least_recently_used(now))
            self.evicted += 1
        root = self._busy
        last = root.before
        pin = Pin(session, replica, now, 1, last, root)
        last.after = root.before = shard[session] = pin
        self._live += 1
        replica.pins += 1
        return pin

    def begin(self, pin: Pin, replica: Replica, now: float) -> None:
        """Note that a request of the session starts on `replica`, and pin the session there."""
        left = pin.replica
        if replica is not left:
            pin.replica = replica
            replica.pins += 1
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

    def pin(self, session: str, replica: Replica, now: float) -> Pin:
        """Pin the session to the replica, wherever it was, with one more request in flight."""
        pin = self.find(session, now)
        if pin is None:
            return self.open(session, replica, now)
        self.begin(pin, replica, now)
        return pin

    def drop(self, replica: Replica) -> int:
        """Drop all pins of a replica that will get no more; return how many."""
        count = replica.pins
        replica.dropped = True
        replica.pins = 0
        self._live -= count
        self._remains += count
        self.dropped += count
        return count

    def sweep(self, now: float, budget: int) -> bool:
        """Remove up to about `budget` pins that expired or were dropped; True if some may be left."""
        while budget > 0:
            oldest = self._idle.after
            if oldest.last + self.ttl > now:
                break
            if not oldest.replica.dropped:
                self.expired += 1
            self._forget(oldest)
            budget -= 1
        while budget > 0 and self._remains:
            budget -= self._clean_shard()
        return budget <= 0

    def _least_recently_used(self, now: float) -> Pin:
        idle = self._idle.after
        busy = self._busy.after
        return idle if idle.last <= busy.last or idle.last + self.ttl <= now else busy

    def _clean_shard(self) -> int:
        """Remove what dropped replicas left in the next shard; return the work done, in pins looked at."""
        shard = self._shards[self._next_shard]
        self._next_shard = (self._next_shard + 1) & self._mask
        work = len(shard) + 1
        for pin in [pin for pin in shard.values() if pin.replica.dropped]:
            self._forget(pin)
        return work

    def _forget(self, pin: Pin) -> None:
        del self._shards[hash(pin.session) & self._mask][pin.session]
        before = pin.before
        after = pin.after
        before.after = after
        after.before = before
        pin.before = pin.after = self._idle  # its leases may outlive it; they must not keep its neighbours
        pin.inflight = 0
        replica = pin.replica
        if replica.dropped:
            self._remains -= 1
            return
        self._live -= 1
        replica.pins -= 1
        if self._on_unpin is not None:
            self._on_unpin(replica)


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
