"""The session table, against a plain list of pins."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.core.sessions import SHARD, SessionTable

if TYPE_CHECKING:
    from pypto_serving_router.core.lease import Pin

TTL = 10.0
names = st.sampled_from([f"s{n}" for n in range(12)])


def make(name: str = "r") -> Replica:
    return Replica(ReplicaId(name), "127.0.0.1", 8001, ready=True)


@dataclass
class NaivePin:
    """What the model knows of one pin; the model keeps them in the order of their last activity."""

    session: str
    replica: Replica
    last: float
    inflight: int = 1


@dataclass
class Flight:
    """One request in flight: the table's pin for it, and the model's."""

    pin: Pin
    model: NaivePin = field(repr=False)


class AgainstNaive(RuleBasedStateMachine):
    """Any history of requests, time, drops and sweeps: the table knows what a scan over all pins would."""

    flights = Bundle("flights")

    @initialize(capacity=st.integers(1, 6))
    def start(self, capacity: int) -> None:
        self.unpinned: list[Replica] = []
        self.table = SessionTable(ttl=TTL, capacity=capacity, on_unpin=self.unpinned.append)
        self.capacity = capacity
        self.now = 0.0
        self.replicas = [make(f"r{n}") for n in range(3)]
        self.pins: list[NaivePin] = []
        self.forgotten = {"expired": 0, "evicted": 0, "dropped": 0}

    def tick(self) -> None:
        """Let no two activities fall on one instant: which of them is older would be a matter of taste."""
        self.now += 0.001

    def find(self, session: str) -> NaivePin | None:
        self.expire()
        return next((pin for pin in self.pins if pin.session == session), None)

    def expire(self) -> None:
        kept = [pin for pin in self.pins if pin.inflight or pin.last + TTL > self.now]
        self.pins = kept

    def touch(self, pin: NaivePin) -> None:
        pin.last = self.now
        self.pins.remove(pin)
        self.pins.append(pin)

    @rule(target=flights, session=names, replica=st.integers(0, 2), size=st.integers(0, 3))
    def begin(self, session: str, replica: int, size: int) -> Flight:
        self.tick()
        chosen = self.replicas[replica]
        model = self.find(session)
        if model is None:
            if len(self.pins) >= self.capacity:
                self.pins.pop(0)
            model = NaivePin(session, chosen, self.now)
            self.pins.append(model)
        else:
            model.replica = chosen
            model.inflight += 1
            self.touch(model)
        return Flight(self.table.pin(session, chosen, self.now, size), model)

    @rule(flight=consumes(flights))
    def end(self, flight: Flight) -> None:
        self.tick()
        self.expire()
        if flight.model in self.pins:
            flight.model.inflight -= 1
            self.touch(flight.model)
        self.table.end(flight.pin, self.now)

    @rule(replica=st.integers(0, 2))
    def drop(self, replica: int) -> None:
        gone = self.replicas[replica]
        held = gone.pins
        self.replicas[replica] = make(gone.id)
        assert self.table.drop(gone) == held
        assert (gone.pins, gone.weight) == (0, 0)
        self.pins = [pin for pin in self.pins if pin.replica is not gone]

    @rule(seconds=st.sampled_from([1.0, 4.0, TTL]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(budget=st.sampled_from([1, 2, 1000]))
    def sweep(self, budget: int) -> None:
        if not self.table.sweep(self.now, budget):
            self.expire()
            assert len(self.table) == len(self.pins)
            assert sum(map(len, self.table._shards)) == len(self.pins)

    @invariant()
    def agrees(self) -> None:
        assert len(self.table) <= self.capacity
        assert len(self.table) == sum(replica.pins for replica in self.replicas)
        self.expire()
        assert len(self.table) >= len(self.pins)
        entries = [pin for shard in self.table._shards for pin in shard.values()]
        for replica in self.replicas:
            assert replica.pins == sum(1 for entry in entries if entry.replica is replica)
            assert 0 <= replica.weight <= 3 * replica.pins
        weight, live_pins = sum(replica.weight for replica in self.replicas), len(self.table)
        for size in range(4):
            mean = weight / live_pins if live_pins else size
            assert self.table.is_heavy(size) == (None if abs(size - mean) <= mean / 10 else size > mean)
        live = {
            entry.session: entry.replica
            for entry in entries
            if not entry.replica.dropped and (entry.inflight or entry.last + TTL > self.now)
        }
        assert live == {pin.session: pin.replica for pin in self.pins}

    @rule(session=names)
    def look(self, session: str) -> None:
        pin = self.find(session)
        assert self.table.get(session, self.now) is (None if pin is None else pin.replica)

    def teardown(self) -> None:
        """Whatever happened, in the end every session is on the replica the model has it on."""
        for pin in self.pins:
            assert self.table.get(pin.session, self.now) is pin.replica
        while self.table.sweep(self.now + 1e9, 1):
            pass
        assert len(self.table) == sum(1 for pin in self.pins if pin.inflight)


TestAgainstNaive = AgainstNaive.TestCase
TestAgainstNaive.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestAgainstNaive.__doc__ = "spec 3.6, 3.7, 3.8: the model-based test of the session table."


def test_a_pin_expires_after_the_ttl_without_activity() -> None:
    """spec 3.6: the start and the end of a request are activity; the pin lasts the TTL from the last of them."""
    table, replica = SessionTable(ttl=TTL, capacity=10), make()
    pin = table.pin("s", replica, 0.0)
    table.end(pin, 7.0)

    assert table.get("s", 16.9) is replica
    assert table.get("s", 17.0) is None
    assert (len(table), replica.pins, table.expired) == (0, 0, 1)


def test_a_session_in_flight_does_not_expire() -> None:
    """spec 3.6: a request of an hour keeps its session's pin, and its end renews it."""
    table, replica = SessionTable(ttl=TTL, capacity=10), make()
    pin = table.pin("s", replica, 0.0)

    assert not table.sweep(3600.0, 100)
    assert table.get("s", 3600.0) is replica
    table.end(pin, 3600.0)
    assert table.get("s", 3609.0) is replica


def test_two_requests_of_a_session_hold_its_pin_until_both_ended() -> None:
    """spec 3.6: a session is in flight while any of its requests is."""
    table, replica = SessionTable(ttl=TTL, capacity=10), make()
    first, second = table.pin("s", replica, 0.0), table.pin("s", replica, 1.0)
    table.end(first, 2.0)

    assert not table.sweep(100.0, 100)
    assert table.get("s", 100.0) is replica
    table.end(second, 100.0)
    table.end(second, 101.0)
    assert table.get("s", 109.0) is replica
    assert table.get("s", 110.0) is None


def test_the_least_recently_used_goes_first_even_in_flight() -> None:
    """spec 3.7: a long request's session is evicted before one that was active after it began."""
    table, replica = SessionTable(ttl=TTL, capacity=2), make()
    long = table.pin("long", replica, 0.0)
    table.end(table.pin("short", replica, 1.0), 2.0)
    table.pin("third", replica, 3.0)

    assert table.get("long", 3.0) is None
    assert table.get("short", 3.0) is replica
    table.end(long, 4.0)
    assert table.get("long", 4.0) is None
    assert (len(table), replica.pins, table.evicted) == (2, 2, 1)


def test_an_expired_pin_makes_room_before_a_live_one() -> None:
    """spec 3.6, 3.7: no live pin is evicted while an expired one takes up a place."""
    table, replica = SessionTable(ttl=TTL, capacity=2), make()
    table.pin("old-but-busy", replica, 0.0)
    table.end(table.pin("expired", replica, 1.0), 2.0)
    table.pin("new", replica, 12.0)

    assert table.get("old-but-busy", 12.0) is replica
    assert (table.expired, table.evicted) == (1, 0)


def test_a_dropped_replica_is_forgotten_at_once() -> None:
    """spec 3.8: the moment a replica's pins are dropped none of them is found, counted or renewed."""
    table, gone, other = SessionTable(ttl=TTL, capacity=10), make("gone"), make("other")
    pins = [table.pin(f"s{n}", gone, 0.0) for n in range(5)]
    table.end(table.pin("kept", other, 0.0), 0.0)

    assert table.drop(gone) == 5
    assert (len(table), gone.pins, table.dropped) == (1, 0, 5)
    assert all(table.get(f"s{n}", 0.0) is None for n in range(5))
    for pin in pins:
        table.end(pin, 1.0)
    assert (len(table), gone.pins) == (1, 0)
    assert table.get("kept", 1.0) is other


@pytest.mark.interpreted
def test_each_pin_is_counted_for_what_ended_it() -> None:
    """spec 3.6, 3.7, 3.8: a dropped pin is neither expired nor evicted when its remains are removed."""
    replicas = [make(f"r{n}") for n in range(3)]
    table = SessionTable(ttl=TTL, capacity=2)
    for n, replica in enumerate(replicas):
        table.end(table.pin(f"s{n}", replica, 0.0), 0.0)
    assert (table.expired, table.evicted, table.dropped) == (0, 1, 0)
    table.drop(replicas[1])

    table.sweep(TTL, 100)
    assert (table.expired, table.evicted, table.dropped) == (1, 1, 1)

    for n, replica in enumerate((make("a"), make("b"), make("c"))):
        table._clean_shard = lambda: 0  # type: ignore[method-assign]  # so that remains are met by an eviction
        table.end(table.pin(f"t{n}", replica, TTL), TTL)
        if n == 0:
            table.drop(replica)
    table.end(table.pin("t3", make("d"), TTL), TTL)
    assert (table.expired, table.evicted, table.dropped) == (1, 2, 2)


def test_a_forgotten_pin_keeps_no_other_alive() -> None:
    """spec 3.7: a request longer than its pin does not hold on to the pins that were next to it."""
    table, replica = SessionTable(ttl=TTL, capacity=2), make()
    first, middle = table.pin("first", replica, 0.0), table.pin("middle", replica, 1.0)
    table.pin("last", replica, 2.0)
    table.pin("after", replica, 3.0)

    for pin in (first, middle):
        assert pin.before is pin.after is table._idle


def test_a_session_of_a_dropped_replica_is_pinned_anew() -> None:
    """spec 3.8: the end of a request on the old replica does not touch the session's new pin."""
    table, gone, other = SessionTable(ttl=TTL, capacity=10), make("gone"), make("other")
    before = table.pin("s", gone, 0.0)
    table.drop(gone)
    after = table.pin("s", other, 1.0)
    table.end(after, 1.0)
    table.end(before, 9.0)

    assert table.get("s", 10.0) is other
    assert table.get("s", 11.0) is None


def test_the_lost_pin_is_told() -> None:
    """spec 3.4: each lowering of a replica's live pins is told, so that the tie-break can follow."""
    told: list[Replica] = []
    table = SessionTable(ttl=TTL, capacity=1, on_unpin=told.append)
    first, second = make("first"), make("second")

    table.end(table.pin("a", first, 0.0), 0.0)
    table.end(table.pin("a", second, 1.0), 1.0)
    assert told == [first]
    table.end(table.pin("b", first, 2.0), 2.0)
    assert told == [first, second]
    table.sweep(100.0, 10)
    assert told == [first, second, first]


@pytest.mark.parametrize("capacity", [1, 10, 5 * SHARD])
def test_what_is_dropped_cannot_pile_up(capacity: int) -> None:
    """spec 3.7: without a single sweep, drop after drop, the table holds few more entries than its capacity."""
    table = SessionTable(ttl=1e9, capacity=capacity)
    now = 0.0
    largest = 0
    for generation in range(4):
        replica = make(f"g{generation}")
        for n in range(capacity):
            now += 1.0
            table.end(table.pin(f"{generation}-{n}", replica, now), now)
            assert len(table) <= capacity
            largest = max(largest, table._live + table._remains)
        table.drop(replica)

    assert largest <= capacity + len(table._shards)


@given(st.integers(1, 3 * SHARD))
@settings(max_examples=20, deadline=None)
def test_a_sweep_keeps_to_its_budget(count: int) -> None:
    """spec 3.9: a sweep removes no more expired pins than its budget, and says whether it is done."""
    table, replica = SessionTable(ttl=TTL, capacity=3 * SHARD), make()
    for n in range(count):
        table.end(table.pin(f"s{n}", replica, 0.0), 0.0)

    sweeps = 1
    while table.sweep(TTL, 100):
        assert len(table) == count - 100 * sweeps
        sweeps += 1
    assert (len(table), table.expired) == (0, count)
    assert sweeps == count // 100 + 1


@pytest.mark.compiled
def test_pins_are_nothing_to_the_garbage_collector() -> None:
    """spec 3.9: neither a pin nor the index that holds it is walked by a collection."""
    table, replica = SessionTable(ttl=TTL, capacity=10), make()
    pin = table.pin("s", replica, 0.0)

    assert not gc.is_tracked(pin)
    assert not any(gc.is_tracked(shard) for shard in table._shards)
