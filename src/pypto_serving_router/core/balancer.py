"""Which replica a request goes to: fewest outstanding, rotating ties, affinity within a slack.

Theory of operation
-------------------
A replica's *key* is `(outstanding, pins, turn)`; the available replica with the smallest key is chosen. `turn` is
the number of the choice that last fell on it, so equal loads rotate. An affinity hit is not a choice. Of replicas
that are equal but for `turn`, a look at a few of them decides by the size of their conversations (`_fitting`).

The keys lie in one heap, lazily. Each available replica owns exactly one live entry, `replica.queued`, and that
entry is never greater than its key. So

1. whatever raises a key does nothing: the entry stays, now too low;
2. whatever lowers a key pushes a new live entry, if the live one is not low enough already;
3. a choice looks at the top: an entry that is nobody's live one is popped, one that is too low is lifted to the
   key, and one that equals the key is the choice, since every other key is at least its own entry.

It follows that the top is a lower bound of every key, which lets an affinity hit be granted by one comparison,
and that each lift was paid for by the request that raised the key: a choice costs O(log replicas) amortised.

Whoever edits this: only `Balancer` and `SessionTable` write to a replica, `turn` only grows, and whatever lowers
`outstanding` or `pins` or makes a replica available calls `lowered`.
"""

from __future__ import annotations

from enum import StrEnum
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from pypto_serving_router.core.lease import Lease
from pypto_serving_router.errors import NoReplica

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pypto_serving_router.core.ids import ReplicaId, SlotId

Entry: TypeAlias = tuple[Any, ...]
"""`(outstanding, pins, turn, replica)`; of no known length, so that a compiled one has an identity to be known by."""

Seen: TypeAlias = tuple[object, ...]
"""Loads as they are written down in passing: id, outstanding, pins and availability of one replica after the other."""

FEW = 8
"""Of so many replicas, a glance sees all."""


class Phase(StrEnum):
    """Where a replica stands, as the API and the logs name it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Placement(StrEnum):
    """Why a request went to its replica."""

    AFFINITY = "affinity"
    """Its session is pinned there."""
    NEW = "new"
    """No pin was known: the least loaded replica."""
    MOVED_SLACK = "moved-slack"
    """The pinned replica is too far behind the least loaded one."""
    MOVED_UNROUTABLE = "moved-unroutable"
    """The pinned replica is not routable, or refused the connection."""


# Bound once: looking a member up on its class costs as much as the rest of an affinity hit's comparisons.
_AFFINITY = Placement.AFFINITY
_NEW = Placement.NEW
_MOVED_SLACK = Placement.MOVED_SLACK
_MOVED_UNROUTABLE = Placement.MOVED_UNROUTABLE


class Replica:
    """One replica in the routing table. Compared by identity: a slot's next replica is another one.

    Facts given at construction never change. The rest is written by the balancer and the session table only:
    `ready` (health's judgement), `draining` (final; a removed replica is draining, too), `removed`, `available`
    (ready and not draining: the one predicate of routability), `outstanding` requests, live `pins` and their `weight`
    (about the bytes of the requests that made them), whether they were `dropped` (final), `routed` requests in all,
    `ever_ready` (a probe has succeeded), `since` (when its phase last changed, on the clock of the caller),
    `last_error`.
    """

    __slots__ = (
        "authority", "available", "draining", "dropped", "ever_ready", "generation", "host", "id", "last_error",
        "outstanding", "owned", "pins", "port", "queued", "ready", "removed", "routed", "scheme", "since", "slot",
        "turn", "weight",
    )  # fmt: skip

    def __init__(
        self,
        id: ReplicaId,  # noqa: A002 - the word the API, the logs and the metrics use for it
        host: str,
        port: int,
        *,
        ready: bool,
        scheme: str = "http",
        owned: bool = False,
        slot: SlotId | None = None,
        generation: int = 0,
        since: float = 0.0,
    ) -> None:
        self.id = id
        self.host = host
        self.port = port
        self.scheme = scheme
        self.authority = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()
        """The value of the Host header."""
        self.owned = owned
        self.slot = slot
        self.generation = generation

        self.ready = ready
        self.draining = False
        self.removed = False
        self.available = ready
        self.ever_ready = False
        self.since = since
        self.last_error: str | None = None

        self.outstanding = 0
        self.pins = 0
        self.weight = 0
        self.dropped = False
        self.routed = 0
        self.turn = 0
        self.queued: Entry | None = None

    def key(self) -> Entry:
        """Return what the replica is chosen by, as it is now."""
        return (self.outstanding, self.pins, self.turn, self)

    @property
    def phase(self) -> Phase:
        """The phase shown to operators."""
        if self.draining:
            return Phase.DRAINING
        if self.ready:
            return Phase.READY
        return Phase.FAILED if self.ever_ready else Phase.STARTING

    @property
    def url(self) -> str:
        """The replica's root URL, without a final slash."""
        return f"{self.scheme}://{self.authority.decode()}"

    def __repr__(self) -> str:
        return f"<Replica {self.id} {self.phase}: {self.outstanding} outstanding, {self.pins} pins>"


class Balancer:
    """The routing table: the replicas, their load, and the choice among them."""

    def __init__(self, *, slack: int) -> None:
        """Allow a pinned replica `slack` more outstanding requests than the least loaded; 0 disables affinity."""
        self.slack = slack
        self.on_idle: Callable[[Replica], None] | None = None
        """Called when a draining replica has nothing outstanding: at its last release, or by `drain` itself."""
        self.routed = 0
        self.affinity_hits = 0
        self.rejected = 0
        self._replicas: dict[ReplicaId, Replica] = {}
        self.replicas: Mapping[ReplicaId, Replica] = MappingProxyType(self._replicas)
        self._turn = 0
        self._heap: list[Entry] = []

    def add(self, replica: Replica) -> None:
        """Take a replica into the table; its id must be free."""
        if replica.id in self._replicas:
            raise ValueError(f"replica {replica.id} is in the table already")
        self._replicas[replica.id] = replica
        self._turn += 1
        replica.turn = self._turn
        if replica.available:
            self.lowered(replica)

    def remove(self, replica: Replica) -> None:
        """Take a replica out; its leases stay valid, and their release is counted still."""
        if self._replicas.get(replica.id) is replica:
            del self._replicas[replica.id]
        replica.removed = replica.draining = True
        self._withdraw(replica)

    def set_ready(self, replica: Replica, ready: bool, now: float, *, error: str | None = None) -> None:  # noqa: FBT001 - the name says it
        """Record health's judgement, after a failure if there was an `error`, which then replaces the last one."""
        phase = replica.phase
        replica.ready = ready
        if ready and error is None:  # one failed probe alone leaves a static replica ready, too
            replica.ever_ready = True
        if error is not None:
            replica.last_error = error
        if replica.phase is not phase:
            replica.since = now
        if not ready:
            self._withdraw(replica)
        elif not replica.draining and not replica.available:
            replica.available = True
            if self._replicas.get(replica.id) is replica:
                self.lowered(replica)

    def drain(self, replica: Replica, now: float) -> None:
        """Choose the replica no more; final."""
        if replica.draining:
            return
        replica.draining = True
        replica.since = now
        self._withdraw(replica)
        if not replica.outstanding and self.on_idle is not None:
            self.on_idle(replica)

    def acquire(
        self,
        pinned: Replica | None = None,
        *,
        exclude: Collection[Replica] = (),
        heavy: bool | None = None,
        count: bool = True,
    ) -> Lease:
        """Choose a replica for one request, `pinned` if it will do, and count the request as outstanding there.

        `exclude` restricts the choice, not the pin. `heavy` says whether the request's conversation is larger than
        most, if that is known. `count` is False for requests that `routed`, `affinity_hits`
        and `rejected` leave out.

        Raises:
            NoReplica: none is available, or none beside the excluded.
        """
        placement = _NEW
        if pinned is not None:
            if not pinned.available:
                placement = _MOVED_UNROUTABLE
            elif slack := self.slack:
                # The top is a lower bound: only where it denies the pin need the true minimum be found.
                if pinned.outstanding <= self._heap[0][0] + slack or pinned.outstanding <= self._least()[0] + slack:
                    pinned.outstanding += 1
                    if count:
                        pinned.routed += 1
                        self.routed += 1
                        self.affinity_hits += 1
                    return Lease(self, pinned, _AFFINITY)
                placement = _MOVED_SLACK
        try:
            replica = (self._least_beside(exclude) if exclude else self._least())[3]
            if heavy is not None and not exclude:
                replica = self._fitting(replica, heavy=heavy)
        except NoReplica:
            self.rejected += count
            raise
        self._turn = replica.turn = self._turn + 1
        replica.outstanding += 1
        if count:
            replica.routed += 1
            self.routed += 1
        return Lease(self, replica, placement)

    def glance(self) -> Seen:
        """Return the loads of all replicas, if they are few; else of those that lie at the top of the heap.

        The last choice lies there, unless it was restricted, with others that are among the least loaded as far as
        choices have come. One may be there twice, or not be available any more.
        """
        heap = self._heap
        if len(self._replicas) > FEW and len(heap) >= 6:
            # Written out, since a loop takes three times as long.
            (_, _, _, a), (_, _, _, b), (_, _, _, c), (_, _, _, d), (_, _, _, e), (_, _, _, f) = heap[:6]
            return (
                a.id, a.outstanding, a.pins, a.available, b.id, b.outstanding, b.pins, b.available,
                c.id, c.outstanding, c.pins, c.available, d.id, d.outstanding, d.pins, d.available,
                e.id, e.outstanding, e.pins, e.available, f.id, f.outstanding, f.pins, f.available,
            )  # fmt: skip
        seen: list[object] = []
        for replica in islice(self._replicas.values(), FEW):
            seen += (replica.id, replica.outstanding, replica.pins, replica.available)
        return tuple(seen)

    def released(self, replica: Replica) -> None:
        """Count one request less; called once for each lease, by the lease."""
        replica.outstanding = outstanding = replica.outstanding - 1
        queued = replica.queued
        if queued is not None:
            # `turn` only grows, so where the first two are equal the entry is low enough.
            if outstanding < queued[0] or (outstanding == queued[0] and replica.pins < queued[1]):
                self.lowered(replica)
        elif replica.draining and not replica.outstanding and not replica.removed and self.on_idle is not None:
            self.on_idle(replica)

    def lowered(self, replica: Replica) -> None:
        """Keep the heap's promise after the replica's key went down, or it became available."""
        if not replica.available:
            return
        entry = replica.key()
        queued = replica.queued
        if queued is None or entry < queued:
            replica.queued = entry
            heappush(self._heap, entry)
            if len(self._heap) > 2 * len(self._replicas) + 16:
                self._heap = [r.queued for r in self._replicas.values() if r.queued is not None]
                heapify(self._heap)

    def _withdraw(self, replica: Replica) -> None:
        replica.available = False
        replica.queued = None  # what lies in the heap is nobody's now

    def _fitting(self, best: Replica, *, heavy: bool) -> Replica:
        """Of a few replicas that are as little loaded as `best`, return the one that suits a conversation of its size.

        A small one goes where the large ones are, a large one where they are not. Each of the replicas gets one
        before any gets two, so the small ones leave room apart for the large ones that are yet to come.
        """
        outstanding, pins = best.outstanding, best.pins
        for entry in self._heap[1:FEW]:
            replica = entry[3]
            if replica.outstanding == outstanding and replica.pins == pins and replica.queued is entry:
                gain = best.weight - replica.weight if heavy else replica.weight - best.weight
                if gain > 0 or (gain == 0 and replica.turn < best.turn):
                    best = replica
        return best

    def _least_beside(self, exclude: Collection[Replica]) -> Entry:
        aside = []
        try:
            while (entry := self._least())[3] in exclude:
                aside.append(heappop(self._heap))
        finally:
            for passed_over in aside:
                heappush(self._heap, passed_over)
        return entry

    def _least(self) -> Entry:
        """Settle the top of the heap until it is exact: the least loaded available replica."""
        heap = self._heap
        while heap:
            entry = heap[0]
            replica: Replica = entry[3]
            if replica.queued is not entry:
                heappop(heap)
                continue
            if replica.outstanding == entry[0] and replica.pins == entry[1] and replica.turn == entry[2]:
                return entry
            replica.queued = key = replica.key()
            heapreplace(heap, key)
        raise NoReplica
