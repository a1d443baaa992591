"""The session table and the balancer together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from pypto_serving_router.core.balancer import Placement, Replica
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.core.routing import Routing
from pypto_serving_router.errors import NoReplica

if TYPE_CHECKING:
    from pypto_serving_router.core.lease import Lease

TTL = 10.0
names = st.sampled_from([f"s{n}" for n in range(9)])


def routing_of(*replicas: Replica, slack: int = 8, capacity: int = 100) -> Routing:
    routing = Routing(slack=slack, ttl=TTL, capacity=capacity)
    for replica in replicas:
        routing.balancer.add(replica)
    return routing


def make(name: str, *, ready: bool = True) -> Replica:
    return Replica(ReplicaId(name), "127.0.0.1", 8001, ready=ready)


class Laws(RuleBasedStateMachine):
    """Any history of requests and replicas: what must hold whatever was chosen."""

    leases = Bundle("leases")

    @initialize(slack=st.sampled_from([0, 1, 8]), capacity=st.sampled_from([1, 3, 100]))
    def start(self, slack: int, capacity: int) -> None:
        self.routing = routing_of(make("r0"), make("r1"), slack=slack, capacity=capacity)
        self.replicas = list(self.routing.balancer.replicas.values())
        self.now = 0.0
        self.open: list[Lease] = []
        self.posts = self.refused = 0

    @rule(ready=st.booleans())
    def add(self, ready: bool) -> None:
        replica = make(f"r{len(self.replicas)}", ready=ready)
        self.replicas.append(replica)
        self.routing.balancer.add(replica)

    @rule(target=leases, session=names, post=st.booleans(), size=st.integers(0, 3))
    def begin(self, session: str, post: bool, size: int) -> object:
        self.now += 0.001
        pinned = self.routing.sessions.get(session, self.now)
        least = min((r.outstanding for r in self.replicas if r.available), default=None)
        load = None if pinned is None else pinned.outstanding
        sessions = len(self.routing.sessions)
        hits = self.routing.balancer.affinity_hits
        self.posts += post
        try:
            lease = self.routing.place(session, self.now, size) if post else self.routing.peek(session, self.now)
        except NoReplica:
            self.refused += post
            assert least is None
            assert self.routing.sessions.get(session, self.now) is pinned
            assert len(self.routing.sessions) == sessions
            return multiple()

        assert least is not None
        slack = self.routing.balancer.slack
        kept = pinned is not None and pinned.available and slack > 0 and (load or 0) <= least + slack
        assert (lease.placement is Placement.AFFINITY) == kept
        if kept:
            assert lease.replica is pinned
        else:
            assert lease.replica.outstanding == least + 1
        assert self.routing.balancer.affinity_hits == hits + (kept and post)
        assert self.routing.sessions.get(session, self.now) is (lease.replica if post else pinned)
        self.open.append(lease)
        return lease

    @rule(lease=leases)
    def finish(self, lease: Lease) -> None:
        self.now += 0.001
        self.routing.finish(lease, self.now)
        if lease in self.open:
            self.open.remove(lease)

    @rule(target=leases, lease=consumes(leases))
    def replace(self, lease: Lease) -> object:
        if lease not in self.open:
            return multiple()
        self.now += 0.001
        self.open.remove(lease)
        try:
            moved = self.routing.replace(lease, self.now)
        except NoReplica:
            assert {r for r in self.replicas if r.available} <= {*lease.tried, lease.replica}
            return multiple()
        assert not lease.held
        assert moved.replica not in moved.tried
        assert moved.tried == (*lease.tried, lease.replica)
        self.open.append(moved)
        return moved

    @rule(which=st.integers(0, 9), how=st.sampled_from(["down", "up", "drain", "remove"]))
    def happen(self, which: int, how: str) -> None:
        replica = self.replicas[which % len(self.replicas)]
        if how in {"down", "up"}:
            self.routing.balancer.set_ready(replica, how == "up", self.now)
        elif how == "drain":
            self.routing.drain(replica, self.now)
        else:
            self.routing.remove(replica)

    @rule(seconds=st.sampled_from([1.0, TTL]), budget=st.integers(0, 3))
    def wait(self, seconds: float, budget: int) -> None:
        self.now += seconds
        self.routing.sessions.sweep(self.now, budget)

    @invariant()
    def books_balance(self) -> None:
        for replica in self.replicas:
            assert replica.outstanding == sum(lease.replica is replica for lease in self.open)
            assert replica.pins == 0 or not replica.draining
        assert len(self.routing.sessions) == sum(replica.pins for replica in self.replicas)
        assert len(self.routing.sessions) <= self.routing.sessions.capacity
        assert self.routing.balancer.routed + self.routing.balancer.rejected == self.posts
        assert self.routing.balancer.rejected == self.refused

    def teardown(self) -> None:
        """When every request has ended and time has passed nothing is outstanding and nothing is pinned."""
        for lease in self.open:
            self.routing.finish(lease, self.now)
        while self.routing.sessions.sweep(self.now + TTL, 5):
            pass
        assert len(self.routing.sessions) == 0
        assert all(replica.outstanding == replica.pins == replica.weight == 0 for replica in self.replicas)


TestLaws = Laws.TestCase
TestLaws.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@given(st.permutations([1500] * 3 + [600] * 9), st.integers(0, 2))
def test_large_conversations_are_kept_apart(sizes: list[int], more: int) -> None:
    """spec 3.4: of twelve that start at once on three replicas, each gets four, and one of the three large ones."""
    replicas = [make(f"r{n}") for n in range(3)]
    routing = routing_of(*replicas)

    placed = [(size, routing.place(f"s{n}", 1.0, size + more * n).replica) for n, size in enumerate(sizes)]

    assert [replica.pins for replica in replicas] == [4, 4, 4]
    assert {replica for size, replica in placed if size > 1000} == set(replicas)


@pytest.mark.parametrize("size", [0, 100])
def test_conversations_of_one_size_rotate(size: int) -> None:
    """spec 3.4: where sizes say nothing, equal replicas take turns."""
    replicas = [make(f"r{n}") for n in range(5)]
    routing = routing_of(*replicas)

    placed = [routing.place(f"s{n}", 1.0, size).replica for n in range(15)]

    assert placed == replicas * 3


def test_a_conversation_moves_with_its_size() -> None:
    """spec 3.4: what a conversation weighs is counted where it is pinned, and nowhere once it is forgotten."""
    first, second = make("r0"), make("r1")
    routing = routing_of(first, second)
    lease = routing.place("s", 1.0, 700)
    here, there = (first, second) if lease.replica is first else (second, first)
    assert (here.weight, there.weight) == (700, 0)

    routing.replace(lease, 2.0)
    assert (here.weight, there.weight) == (0, 700)
    routing.drain(there, 3.0)
    assert (here.weight, there.weight) == (0, 0)


TestLaws.__doc__ = "spec 3.3 to 3.8, 6.1: the laws that hold for any history of requests and replicas."


def test_a_session_stays_on_its_replica() -> None:
    """spec 3.5, 6.1: turn after turn on the same replica, each an affinity hit."""
    routing = routing_of(make("a"), make("b"), make("c"))
    first = routing.place("s", 0.0)
    routing.finish(first, 1.0)

    turns = []
    for n in range(5):
        turns.append(routing.place("s", 2.0 + n))
        routing.finish(turns[-1], 2.5 + n)

    assert first.placement is Placement.NEW
    assert {turn.replica for turn in turns} == {first.replica}
    assert {turn.placement for turn in turns} == {Placement.AFFINITY}
    assert (routing.balancer.routed, routing.balancer.affinity_hits) == (6, 5)


def test_a_session_falls_back_and_stays_there() -> None:
    """spec 3.5 (S: F10): off an unroutable replica a session moves to a live one, and does not move back."""
    first, second = make("a"), make("b")
    routing = routing_of(first, second)
    routing.finish(routing.place("s", 0.0), 0.0)
    routing.balancer.set_ready(first, False, 1.0)

    moved = routing.place("s", 2.0)
    routing.finish(moved, 3.0)
    routing.balancer.set_ready(first, True, 4.0)
    stayed = routing.place("s", 5.0)

    assert (moved.replica, moved.placement) == (second, Placement.MOVED_UNROUTABLE)
    assert (stayed.replica, stayed.placement) == (second, Placement.AFFINITY)


def test_a_session_that_got_no_replica_keeps_the_pin_it_had() -> None:
    """spec 3.3: a rejected request leaves no pin, and takes none away."""
    only = make("a")
    routing = routing_of(only)
    routing.finish(routing.place("s", 0.0), 0.0)
    routing.balancer.set_ready(only, False, 1.0)

    for session in ("s", "other"):
        with pytest.raises(NoReplica):
            routing.place(session, 2.0)

    assert routing.sessions.get("s", 9.9) is only
    assert routing.sessions.get("s", 10.0) is None
    assert routing.sessions.get("other", 2.0) is None


def test_other_methods_open_and_renew_nothing() -> None:
    """spec 3.3, 6.1: a GET with a known id goes to its replica; it renews no pin, opens none, and is not counted."""
    first, second = make("a"), make("b")
    routing = routing_of(first, second)
    routing.finish(routing.place("s", 0.0), 0.0)

    known = routing.peek("s", 9.0)
    unknown = routing.peek("t", 9.0)
    without = routing.peek(None, 9.0)
    assert (known.replica, unknown.replica) == (first, second)
    assert first.outstanding + second.outstanding == 3
    for lease in (known, unknown, without):
        routing.finish(lease, 9.5)

    assert routing.sessions.get("s", 10.0) is None
    assert routing.sessions.get("t", 9.5) is None
    assert (routing.balancer.routed, routing.balancer.affinity_hits, first.routed + second.routed) == (1, 0, 1)
    assert first.outstanding == second.outstanding == 0


def test_gets_are_spread_as_well() -> None:
    """spec 4.1 (S: H15): requests without a session do not all go to the first replica."""
    replicas = [make(name) for name in "abc"]
    routing = routing_of(*replicas)
    chosen = []
    for _ in range(3):
        lease = routing.peek(None, 0.0)
        chosen.append(lease.replica)
        routing.finish(lease, 0.0)

    assert chosen == replicas


def test_a_refused_request_moves_and_takes_its_session_along() -> None:
    """spec 4.6: with connect retries a request goes on to replicas it was not tried on, and its pin follows it."""
    first, second, third = make("a"), make("b"), make("c")
    routing = routing_of(first, second, third)
    lease = routing.place("s", 0.0)

    moved = routing.replace(lease, 1.0)
    again = routing.replace(moved, 2.0)

    assert (lease.replica, moved.replica, again.replica) == (first, second, third)
    assert again.placement is Placement.MOVED_UNROUTABLE
    assert routing.sessions.get("s", 2.0) is third
    assert [replica.outstanding for replica in (first, second, third)] == [0, 0, 1]
    with pytest.raises(NoReplica):
        routing.replace(again, 3.0)
    assert third.outstanding == 0
    assert (routing.balancer.routed, routing.balancer.rejected) == (1, 0)
    assert [replica.routed for replica in (first, second, third)] == [1, 1, 1]


def test_a_drained_replica_loses_its_sessions_at_once() -> None:
    """spec 3.8, 7.8: draining drops the pins while requests in flight go on, and re-routes the next turn."""
    first, second = make("a"), make("b")
    routing = routing_of(first, second)
    lease = routing.place("s", 0.0)

    assert routing.drain(first, 1.0) == 1
    assert (first.pins, first.outstanding, len(routing.sessions)) == (0, 1, 0)
    turn = routing.place("s", 2.0)
    assert (turn.replica, turn.placement) == (second, Placement.NEW)
    routing.finish(lease, 3.0)
    assert (first.outstanding, routing.sessions.get("s", 3.0)) == (0, second)
    assert routing.remove(first) == 0
    assert list(routing.balancer.replicas) == ["b"]
