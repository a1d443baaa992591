"""Why each conversation is where it is: the last choices of a replica, each with what else there was to choose from.

Theory of operation. Only choices are remembered, in one queue whose length bounds the memory: the first placement of a
conversation, and every move. A request that stays where its session is pinned is no choice and is counted on the pin.
A choice refers to the pin it made, even when that has ended: what became of it is found out when somebody asks, from
the pin and from the next choice of the same conversation. So a request pays for writing down, and for nothing else.

Loads are written down for few replicas, however many there are: all of a small table; of a large one the chosen one,
the one that was left, and those at the top of the balancer's heap, which are among the least loaded.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from mypy_extensions import mypyc_attr

from pypto_serving_router.core.balancer import FEW, Placement, Seen
from pypto_serving_router.core.ids import ReplicaId  # noqa: TC001 - compiled, a named tuple's types are looked up

if TYPE_CHECKING:
    from pypto_serving_router.core.balancer import Replica
    from pypto_serving_router.core.lease import Lease, Pin

KEPT = 16_384
"""Choices remembered: 27 minutes of ten new conversations a second. One takes 340 to 560 bytes: 9 MB at most."""


class Why(StrEnum):
    """Why a replica was chosen, and why a stay on one ended."""

    FIRST = "first"
    """Nothing is remembered of the conversation."""
    SLACK = "slack"
    """Its replica was too far behind the least loaded one."""
    UNROUTABLE = "unroutable"
    """Its replica was not routable."""
    REFUSED = "refused"
    """The replica refused the connection, and another one was tried."""
    DRAINING = "draining"
    """Its replica was drained or removed, which drops all pins."""
    EXPIRED = "expired"
    """It was inactive for longer than the session TTL."""
    EVICTED = "evicted"
    """There were more conversations than may be pinned, and it was the one used longest ago."""
    NO_AFFINITY = "no-affinity"
    """Affinity is switched off: every request is a choice."""


_REASONS = {
    Placement.NEW: Why.NO_AFFINITY,
    Placement.MOVED_SLACK: Why.SLACK,
    Placement.MOVED_UNROUTABLE: Why.UNROUTABLE,
}
"""Why a conversation that had a pin was placed anew."""


class Load(NamedTuple):
    """What a replica had to do when a choice was made."""

    replica: ReplicaId
    outstanding: int
    pins: int
    available: bool


@mypyc_attr(acyclic=True)
class Choice:
    """What is written down of one choice.

    `why` is None where the conversation had no pin: what became of its last one says why. `hits` are the pin's until
    then.
    """

    __slots__ = ("at", "hits", "left", "pin", "placement", "replica", "replicas", "seen", "trouble", "why")

    def __init__(  # noqa: PLR0917 - keyword arguments would cost a tenth of a choice
        self,
        pin: Pin,
        at: float,
        replica: ReplicaId,
        placement: Placement,
        why: Why | None,
        left: ReplicaId | None,
        trouble: str | None,
        replicas: int,
        seen: Seen,
    ) -> None:
        self.pin = pin
        self.at = at
        self.replica = replica
        self.placement = placement
        self.why = why
        self.left = left
        self.trouble = trouble
        self.hits = pin.hits
        self.replicas = replicas
        self.seen = seen


class Decision(NamedTuple):
    """One choice, why it was made and what became of it."""

    session: str
    at: float
    """On the clock of the caller."""
    replica: ReplicaId
    placement: Placement
    why: Why
    left: ReplicaId | None
    """Where the conversation was until then, unless it had no pin."""
    trouble: str | None
    """What that replica last failed with, if it was not routable."""
    stayed: int
    """The requests since then that went to the same replica by affinity."""
    ended: Why | None
    """Why the conversation is not there any more; None while it is pinned there."""
    loads: tuple[Load, ...]
    """What replicas had to do before this choice, the least loaded first: the chosen one, the one that was left and
    some others."""
    replicas: int
    """How many replicas there were."""


class Decisions:
    """The memory of choices."""

    def __init__(self, kept: int = KEPT) -> None:
        """Remember the last `kept` choices."""
        self._queue: deque[Choice] = deque(maxlen=kept)

    def __len__(self) -> int:
        """The number of choices remembered."""
        return len(self._queue)

    def note(self, pin: Pin, lease: Lease, now: float, seen: Seen, left: Replica | None = None) -> None:
        """Remember a choice: the pin it made, or is about to move away from `left`, and what `glance` saw before."""
        why = trouble = None
        if left is not None:
            why = Why.REFUSED if lease.tried else _REASONS[lease.placement]
            trouble = None if left.available else left.last_error
        self._queue.append(
            Choice(
                pin, now, lease.replica.id, lease.placement, why, None if left is None else left.id, trouble,
                len(lease.balancer.replicas), seen,
            )
        )  # fmt: skip

    def last(self, count: int, session: str | None = None) -> list[Decision]:
        """Return up to `count` of the last choices, of one conversation if it is named; the latest last."""
        found: list[Choice] = []
        first: set[str] = set()
        for choice in reversed(self._queue):
            name = choice.pin.session
            if session is not None and name != session:
                continue
            if len(found) < count:
                found.append(choice)
                first.add(name)
            elif name in first:  # the one before the first that is wanted says why that was made
                found.append(choice)
                first.remove(name)
                if not first:
                    break
        return _told(found[::-1])[-count:]


def glance(lease: Lease, left: Replica | None = None) -> Seen:
    """Write down what replicas have to do, with the request of the lease counted already; some may come twice."""
    balancer, chosen = lease.balancer, lease.replica
    seen = balancer.glance()
    if len(balancer.replicas) > FEW and seen[0] is not chosen.id:
        seen += (chosen.id, chosen.outstanding, chosen.pins, chosen.available)
    if left is not None:
        seen += (left.id, left.outstanding, left.pins, left.available)
    return seen


def _told(choices: list[Choice]) -> list[Decision]:
    """Say of each choice why it was made and what became of it; those of one conversation have no gaps."""
    ends: list[tuple[int, Why | None]] = []
    following: dict[str, Choice] = {}
    for choice in reversed(choices):
        pin = choice.pin
        after = following.get(pin.session)
        if after is not None and after.pin is pin:
            ends.append((after.hits - choice.hits, after.why))
        else:
            # What is left of a dropped replica's pins is forgotten bit by bit.
            ends.append((pin.hits - choice.hits, pin.ended or (Why.DRAINING if pin.replica.dropped else None)))
        following[pin.session] = choice
    told: dict[str, Decision] = {}
    decisions = []
    for choice, (stayed, ended) in zip(choices, reversed(ends), strict=True):
        session = choice.pin.session
        before = told.get(session)
        why = choice.why or (before and before.ended) or Why.FIRST
        decision = Decision(
            session, choice.at, choice.replica, choice.placement, why, choice.left, choice.trouble, stayed, ended,
            _loads(choice), choice.replicas,
        )  # fmt: skip
        told[session] = decision
        decisions.append(decision)
    return decisions


def _loads(choice: Choice) -> tuple[Load, ...]:
    """Return the loads as they were before the choice, each once, the least loaded first."""
    fields = iter(choice.seen)
    loads = {}
    for replica, outstanding, pins, available in zip(fields, fields, fields, fields, strict=True):
        own = replica == choice.replica
        loads[replica] = Load(replica, outstanding - own, pins, available)  # type: ignore[arg-type,operator] # as `glance` wrote them
    return tuple(sorted(loads.values(), key=lambda load: (not load.available, load.outstanding, load.pins)))
