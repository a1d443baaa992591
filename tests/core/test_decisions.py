"""The memory of choices, against a plain diary of everything that happened."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from pypto_serving_router.core.balancer import FEW, Placement, Replica
from pypto_serving_router.core.decisions import Decision, Load, Why
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.core.routing import Routing
from pypto_serving_router.errors import NoReplica

if TYPE_CHECKING:
    from pypto_serving_router.core.lease import Lease

TTL = 10.0
KEPT = 12
names = st.sampled_from([f"s{n}" for n in range(5)])


def fleet(count: int, *, slack: int = 8, capacity: int = 100, kept: int = KEPT) -> tuple[Routing, list[Replica]]:
    routing = Routing(slack=slack, ttl=TTL, capacity=capacity, remembered=kept)
    replicas = [Replica(ReplicaId(f"r{n}"), "127.0.0.1", 8001, ready=True) for n in range(count)]
    for replica in replicas:
        routing.balancer.add(replica)
    return routing, replicas


def loads_of(routing: Routing) -> dict[str, Load]:
    replicas = routing.balancer.replicas.values()
    return {r.id: Load(r.id, r.outstanding, r.pins, r.available) for r in replicas}


@dataclass
class Entry:
    """What the diary says of one choice."""

    session: str
    at: float
    replica: str
    why: Why
    left: str | None
    loads: dict[str, Load]
    stayed: int = 0
    ended: Why | None = None


class Diary(RuleBasedStateMachine):
    """Any history: what is remembered is the end of a diary that forgets nothing."""

    leases = Bundle("leases")

    @initialize(slack=st.sampled_from([0, 1, 8]), capacity=st.sampled_from([1, 3, 100]), count=st.integers(1, 3))
    def start(self, slack: int, capacity: int, count: int) -> None:
        self.routing, self.replicas = fleet(count, slack=slack, capacity=capacity)
        self.now = 0.0
        self.diary: list[Entry] = []
        self.pinned: dict[str, list[float]] = {}
        """By session, in order of activity: when that was, and how many requests are in flight."""
        self.current: dict[str, Entry] = {}

    # --- the plain model of pins ---

    def end(self, session: str, why: Why) -> None:
        del self.pinned[session]
        self.current.pop(session).ended = why

    def expire(self) -> None:
        for session, (last, inflight) in list(self.pinned.items()):
            if last + TTL <= self.now and not inflight:
                self.end(session, Why.EXPIRED)

    def touch(self, session: str, more: int) -> None:
        inflight = self.pinned.pop(session, [0.0, 0])[1]
        self.pinned[session] = [self.now, inflight + more]

    def chosen(self, session: str, lease: Lease, why: Why, loads: dict[str, Load], left: str | None) -> None:
        if why is Why.FIRST:
            before = [entry for entry in self.diary if entry.session == session]
            why = before[-1].ended or Why.FIRST if before else Why.FIRST
        elif session in self.current:
            self.current[session].ended = why
        if session not in self.pinned:
            while len(self.pinned) >= self.routing.sessions.capacity:
                self.end(next(iter(self.pinned)), Why.EVICTED)
        entry = Entry(session, self.now, lease.replica.id, why, left, loads)
        self.diary.append(entry)
        self.current[session] = entry

    # --- what happens ---

    @rule(target=leases, session=names)
    def request(self, session: str) -> object:
        self.now += 0.001
        self.expire()
        loads = loads_of(self.routing)
        try:
            lease = self.routing.place(session, self.now)
        except NoReplica:
            return multiple()
        if lease.placement is Placement.AFFINITY:
            self.current[session].stayed += 1
        elif session not in self.pinned:
            self.chosen(session, lease, Why.FIRST, loads, None)
        else:
            whys = {Placement.NEW: Why.NO_AFFINITY, Placement.MOVED_SLACK: Why.SLACK}
            why = whys.get(lease.placement, Why.UNROUTABLE)
            self.chosen(session, lease, why, loads, self.current[session].replica)
        self.touch(session, 1)
        return session, lease

    @rule(lease=consumes(leases))
    def finish(self, lease: tuple[str, Lease]) -> None:
        session, place = lease
        self.now += 0.001
        if place.pin is not None and place.pin.inflight:
            self.touch(session, -1)
        self.routing.finish(place, self.now)

    @rule(target=leases, lease=consumes(leases))
    def refuse(self, lease: tuple[str, Lease]) -> object:
        session, place = lease
        self.now += 0.001
        self.expire()
        if place.pin is not None and place.pin.inflight:
            self.touch(session, -1)
        loads = loads_of(self.routing)
        was = loads.get(place.replica.id)
        try:
            moved = self.routing.replace(place, self.now)
        except NoReplica:
            return multiple()
        if was is not None:
            loads[was.replica] = was._replace(outstanding=was.outstanding - 1)
        self.expire()
        self.chosen(session, moved, Why.REFUSED, loads, place.replica.id)
        self.touch(session, 1)
        return session, moved

    @rule(which=st.integers(0, 9), how=st.sampled_from(["down", "up", "drain"]))
    def happen(self, which: int, how: str) -> None:
        replica = self.replicas[which % len(self.replicas)]
        if how == "drain":
            self.routing.drain(replica, self.now)
            for session in [name for name, entry in self.current.items() if entry.replica == replica.id]:
                self.end(session, Why.DRAINING)
        else:
            self.routing.balancer.set_ready(replica, how == "up", self.now)

    @rule(seconds=st.sampled_from([1.0, TTL]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def remembered(self) -> None:
        self.expire()
        while self.routing.sessions.sweep(self.now, 3):
            pass
        kept = self.diary[-KEPT:]
        assert len(self.routing.decisions) == len(kept)
        self.compare(self.routing.decisions.last(KEPT), kept)
        for session in {entry.session for entry in kept}:
            own = [entry for entry in kept if entry.session == session]
            self.compare(self.routing.decisions.last(2, session), own[-2:])

    def compare(self, told: list[Decision], entries: list[Entry]) -> None:
        assert len(told) == len(entries)
        for decision, entry in zip(told, entries, strict=True):
            earlier = [other for other in self.diary[-KEPT:] if other.session == entry.session and other.at < entry.at]
            forgotten = entry.why in (Why.EXPIRED, Why.EVICTED, Why.DRAINING) and not earlier
            assert (decision.session, decision.at, decision.replica) == (entry.session, entry.at, entry.replica)
            assert decision.why is (Why.FIRST if forgotten else entry.why)
            assert (decision.left, decision.stayed, decision.ended) == (entry.left, entry.stayed, entry.ended)
            assert {load.replica: load for load in decision.loads} == entry.loads


TestDiary = Diary.TestCase
TestDiary.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestDiary.__doc__ = "spec 3.4 to 3.8, 9: of any history the last choices are remembered as they were."


def test_a_conversations_story() -> None:
    """spec 9: an operator is told where a conversation went, why, and what else there was."""
    routing, (first, second) = fleet(2, slack=1)
    for moment in (1.0, 2.0, 3.0):
        routing.finish(routing.place("s", moment), moment)
    busy = [routing.place(f"other{n}", 4.0) for n in range(2)]
    busy += [routing.place("s", 5.0), routing.place("s", 5.0)]
    routing.finish(busy[0], 5.5)

    moved = routing.place("s", 6.0)

    new, slack = routing.decisions.last(9, "s")
    assert (new.replica, new.placement, new.why, new.left) == ("r0", Placement.NEW, Why.FIRST, None)
    assert (new.stayed, new.ended) == (4, Why.SLACK)
    assert new.loads == (Load(first.id, 0, 0, True), Load(second.id, 0, 0, True))
    assert moved.replica is second
    assert (slack.replica, slack.placement, slack.why) == ("r1", Placement.MOVED_SLACK, Why.SLACK)
    assert (slack.at, slack.left, slack.stayed, slack.ended) == (6.0, "r0", 0, None)
    assert slack.loads == (Load(second.id, 0, 1, True), Load(first.id, 3, 2, True))
    assert slack.replicas == 2


def test_the_trouble_of_a_replica_that_was_left() -> None:
    """spec 3.5, 9: where a conversation left an unroutable replica, what that failed with is remembered."""
    routing, (first, _) = fleet(2)
    routing.finish(routing.place("s", 1.0), 1.0)
    routing.balancer.set_ready(first, False, 2.0, error="connection refused")

    routing.place("s", 3.0)
    routing.balancer.set_ready(first, True, 4.0)

    decision = routing.decisions.last(1, "s")[0]
    assert (decision.why, decision.left, decision.trouble) == (Why.UNROUTABLE, "r0", "connection refused")
    assert [load.available for load in decision.loads] == [True, False]


def test_a_conversation_that_moves_to_and_fro() -> None:
    """spec 3.5, 9: the requests that stayed are told of each stay by itself, and what a replica has got over is not."""
    routing, replicas = fleet(2)
    here = replicas[0]
    for stayed in (2, 0, 1):
        for _ in range(stayed + 1):
            routing.finish(routing.place("s", 1.0), 1.0)
        here, there = sorted(replicas, key=lambda replica: -replica.pins)
        routing.balancer.set_ready(here, False, 1.0, error="timed out")
        routing.balancer.set_ready(there, True, 1.0)
    routing.balancer.slack = 1
    for _ in range(3):
        routing.place("s", 2.0)
    routing.balancer.set_ready(here, True, 2.0)
    routing.place("s", 3.0)

    told = routing.decisions.last(9, "s")

    assert [(decision.stayed, decision.ended) for decision in told] == [
        (2, Why.UNROUTABLE), (0, Why.UNROUTABLE), (1, Why.UNROUTABLE), (2, Why.SLACK), (0, None),
    ]  # fmt: skip
    assert [decision.trouble for decision in told] == [None, "timed out", "timed out", "timed out", None]


def test_a_drained_replica_is_left_at_once() -> None:
    """spec 3.8, 9: a pin that a drain has dropped counts as ended before it is swept away."""
    routing, (first, _) = fleet(2)
    routing.place("s", 1.0)

    routing.drain(first, 2.0)

    assert routing.decisions.last(1)[0].ended is Why.DRAINING


@pytest.mark.parametrize("count", [FEW + 1, 100])
def test_few_loads_of_many_replicas(count: int) -> None:
    """spec 3.9, 9: of a large fleet the choice, the replica that was left and a few others are recorded, never all."""
    routing, _ = fleet(count, slack=2)
    routing.finish(routing.place("s", 1.0), 1.0)
    for _ in range(3):
        routing.place("s", 2.0)

    routing.place("s", 3.0)

    first, *_, decision = routing.decisions.last(9, "s")
    assert (decision.why, decision.left) == (Why.SLACK, "r0")
    for told in (first, decision):
        loads = {load.replica: load.outstanding for load in told.loads}
        assert loads[told.replica] == min(loads.values()) == 0
        assert 2 <= len(loads) <= FEW
        assert told.replicas == count
    assert Load(ReplicaId("r0"), 3, 1, True) in decision.loads


def test_a_choice_that_had_to_avoid_the_least_loaded() -> None:
    """spec 4.6, 9: in a large fleet, too, a refused request is recorded with both replicas it was sent to."""
    routing, _ = fleet(FEW + 4)
    refused = routing.place("s", 1.0)

    moved = routing.replace(refused, 2.0)

    decision = routing.decisions.last(1, "s")[0]
    assert (decision.why, decision.left, decision.replica) == (Why.REFUSED, refused.replica.id, moved.replica.id)
    assert {refused.replica.id, moved.replica.id} <= {load.replica for load in decision.loads}


def test_a_large_fleet_of_which_little_is_routable() -> None:
    """spec 3.9, 9: where fewer replicas are available than are looked at, the chosen one is recorded still."""
    routing, replicas = fleet(20)
    for replica in replicas[:-1]:
        routing.balancer.set_ready(replica, False, 1.0)

    lease = routing.place("s", 2.0)

    (decision,) = routing.decisions.last(5)
    assert lease.replica is replicas[-1]
    assert [load.replica for load in decision.loads if load.available] == ["r19"]


def test_memory_is_bounded_whatever_one_conversation_does() -> None:
    """spec 3.7, 9: neither many conversations nor one that moves for ever makes the memory grow."""
    routing, _ = fleet(2, slack=0, kept=50)
    for n in range(500):
        routing.finish(routing.place("restless", float(n)), float(n))
        routing.finish(routing.place(f"s{n}", float(n)), float(n))

    assert len(routing.decisions) == 50
    assert len(routing.decisions.last(1000)) == 50
    told = routing.decisions.last(3, "restless")
    assert [decision.at for decision in told] == [497.0, 498.0, 499.0]
    assert {decision.why for decision in told} == {Why.NO_AFFINITY}
    assert routing.decisions.last(3, "s449") == []


def test_a_forgotten_pin_keeps_no_other() -> None:
    """spec 3.7: a pin that only the memory still refers to does not keep its former neighbours."""
    routing, _ = fleet(1, capacity=3, kept=1000)
    for n in range(100):
        routing.finish(routing.place(f"s{n}", float(n)), float(n))

    gone = [choice.pin for choice in routing.decisions._queue][:50]
    assert all(pin.before is pin.after and pin.before.session == "" for pin in gone)


@pytest.mark.compiled
def test_the_collector_has_nothing_to_walk() -> None:
    """spec 8: what is remembered is nothing that a garbage collection goes through, once it is a collection old."""
    routing, _ = fleet(3, kept=5000)
    for n in range(5000):
        routing.finish(routing.place(f"s{n}", 1.0), 1.0)
    gc.collect()

    tracked = {id(thing) for thing in gc.get_objects()}
    choices = list(routing.decisions._queue)
    assert not any(id(choice) in tracked or id(choice.seen) in tracked for choice in choices)
