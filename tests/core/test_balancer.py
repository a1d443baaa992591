"""The choice of a replica, against a balancer that looks at all of them each time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from pypto_serving_router.core.balancer import Balancer, Phase, Placement, Replica
from pypto_serving_router.core.ids import ReplicaId, SlotId
from pypto_serving_router.errors import NoReplica

if TYPE_CHECKING:
    from pypto_serving_router.core.lease import Lease


def make(name: str = "r", *, ready: bool = True, host: str = "127.0.0.1", owned: bool = False) -> Replica:
    return Replica(ReplicaId(name), host, 8001, ready=ready, owned=owned)


def balancer_of(*replicas: Replica, slack: int = 8) -> Balancer:
    balancer = Balancer(slack=slack)
    for replica in replicas:
        balancer.add(replica)
    return balancer


class NaiveReplica:
    """What the model knows of one replica."""

    def __init__(self, turn: int, *, ready: bool) -> None:
        self.turn = turn
        self.ready = ready
        self.draining = False
        self.pins = 0
        self.leases = 0
        self.routed = 0

    @property
    def available(self) -> bool:
        return self.ready and not self.draining


class AgainstNaive(RuleBasedStateMachine):
    """Any history of replicas, leases and pins: the balancer chooses what a scan over all replicas would."""

    replicas = Bundle("replicas")
    leases = Bundle("leases")

    @initialize(slack=st.sampled_from([0, 1, 2, 8]))
    def start(self, slack: int) -> None:
        self.slack = slack
        self.balancer = Balancer(slack=slack)
        self.idle: Counter[Replica] = Counter()
        self.expected_idle: Counter[Replica] = Counter()
        self.balancer.on_idle = lambda replica: self.idle.update([replica])
        self.model: dict[Replica, NaiveReplica] = {}
        self.removed: set[Replica] = set()
        self.turn = 0
        self.routed = self.hits = self.rejected = 0
        self.most = 0

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn

    def table(self) -> list[Replica]:
        return [replica for replica in self.model if replica not in self.removed]

    @rule(target=replicas, ready=st.lists(st.booleans(), min_size=1, max_size=4))
    def add(self, ready: list[bool]) -> object:
        made = []
        for each in ready:
            replica = make(f"r{len(self.model)}", ready=each)
            self.balancer.add(replica)
            self.model[replica] = NaiveReplica(self.next_turn(), ready=each)
            made.append(replica)
        self.most = max(self.most, len(self.table()))
        return multiple(*made)

    @rule(replica=replicas)
    def remove(self, replica: Replica) -> None:
        self.balancer.remove(replica)
        self.removed.add(replica)
        self.model[replica].draining = True
        replica.pins = self.model[replica].pins = 0

    @rule(replica=replicas, ready=st.booleans())
    def judge(self, replica: Replica, ready: bool) -> None:
        self.balancer.set_ready(replica, ready, 1.0)
        self.model[replica].ready = ready

    @rule(replica=replicas)
    def drain(self, replica: Replica) -> None:
        model = self.model[replica]
        if not model.draining and not model.leases:
            self.expected_idle[replica] += 1
        self.balancer.drain(replica, 1.0)
        model.draining = True
        replica.pins = model.pins = 0

    @rule(
        target=leases,
        pinned=st.none() | replicas,
        exclude=st.lists(replicas, max_size=2),
        heavy=st.none() | st.booleans(),
        count=st.booleans(),
        times=st.integers(1, 12),
    )
    def acquire(
        self, pinned: Replica | None, exclude: list[Replica], heavy: bool | None, count: bool, times: int
    ) -> object:
        leases = [self.acquire_one(pinned, exclude, heavy, count) for _ in range(times)]
        return multiple(*(lease for lease in leases if lease is not None))

    def acquire_one(
        self, pinned: Replica | None, exclude: list[Replica], heavy: bool | None, count: bool
    ) -> Lease | None:
        available = {r: m for r, m in self.model.items() if m.available and r not in self.removed}
        least = min((m.leases for m in available.values()), default=0)
        placement = Placement.NEW
        expected = None
        if pinned is not None:
            if pinned not in available:
                placement = Placement.MOVED_UNROUTABLE
            elif self.slack and available[pinned].leases <= least + self.slack:
                placement = Placement.AFFINITY
                expected = pinned
            elif self.slack:
                placement = Placement.MOVED_SLACK
        if expected is None:
            left = {r: m for r, m in available.items() if r not in exclude}
            if not left:
                self.rejected += count
                with pytest.raises(NoReplica):
                    self.balancer.acquire(pinned, exclude=exclude, count=count)
                return None
            expected = min(left, key=lambda r: (left[r].leases, left[r].pins, left[r].turn))
        lease = self.balancer.acquire(pinned, exclude=exclude, heavy=heavy, count=count)

        if placement is not Placement.AFFINITY:
            chosen = lease.replica
            if heavy is not None and not exclude and chosen is not expected:
                same = available[chosen], available[expected]
                assert same[0].leases == same[1].leases
                assert same[0].pins == same[1].pins
                assert chosen.weight < expected.weight if heavy else chosen.weight > expected.weight
                expected = chosen
            self.model[chosen].turn = self.next_turn()
        assert lease.replica is expected
        assert lease.placement is placement
        model = self.model[expected]
        model.leases += 1
        model.routed += count
        self.routed += count
        self.hits += count and placement is Placement.AFFINITY
        return lease

    @rule(lease=leases)
    def release(self, lease: Lease) -> None:
        model = self.model[lease.replica]
        if lease.held:
            model.leases -= 1
            if model.draining and not model.leases and lease.replica not in self.removed:
                self.expected_idle[lease.replica] += 1
        lease.release()

    @rule(replica=replicas, pins=st.integers(1, 3))
    def pin(self, replica: Replica, pins: int) -> None:
        if self.model[replica].available:
            self.model[replica].pins += pins
            replica.pins += pins
            replica.weight = 3 * pins % 4

    @rule(replica=replicas)
    def unpin(self, replica: Replica) -> None:
        if self.model[replica].pins:
            self.model[replica].pins -= 1
            replica.pins -= 1
            self.balancer.lowered(replica)

    @invariant()
    def agrees(self) -> None:
        for replica, model in self.model.items():
            assert replica.outstanding == model.leases >= 0
            assert replica.routed == model.routed
            assert replica.available == model.available
        assert list(self.balancer.replicas.values()) == self.table()
        assert self.idle == self.expected_idle
        assert (self.balancer.routed, self.balancer.affinity_hits, self.balancer.rejected) == (
            self.routed,
            self.hits,
            self.rejected,
        )
        assert len(self.balancer._heap) <= 4 * self.most + 64


TestAgainstNaive = AgainstNaive.TestCase
TestAgainstNaive.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgainstNaive.__doc__ = "spec 3.4, 3.5, 3.9, 6.1: the model-based test of the choice, of leases and of the counters."


@given(st.integers(1, 12), st.integers(1, 4))
def test_idle_replicas_take_turns(replicas: int, rounds: int) -> None:
    """spec 3.4: N idle replicas get N successive new sessions one each, and so on round after round."""
    balancer = balancer_of(*(make(f"r{n}") for n in range(replicas)))

    for _ in range(rounds):
        chosen = []
        for _ in range(replicas):
            lease = balancer.acquire()
            chosen.append(lease.replica)
            lease.release()
        assert chosen == list(balancer.replicas.values())


def test_equal_loads_go_to_the_fewest_pins() -> None:
    """spec 3.4: among equally loaded replicas the one that keeps the fewest conversations gets the new one."""
    replicas = [make(f"r{n}") for n in range(3)]
    balancer = balancer_of(*replicas)
    for replica, pins in zip(replicas, (5, 4, 3), strict=True):
        replica.pins = pins

    for _ in range(3):
        lease = balancer.acquire()
        lease.replica.pins += 1
        lease.release()

    assert [replica.pins for replica in replicas] == [5, 5, 5]


def test_a_pin_lost_while_a_request_is_in_flight_counts_afterwards() -> None:
    """spec 3.4: what lowered a replica's pins while its load was up is remembered when the load goes down."""
    other, loser = make("other"), make("loser")
    other.pins = loser.pins = 2
    balancer = balancer_of(other, loser)
    lease = balancer.acquire(loser)
    loser.pins -= 1
    balancer.lowered(loser)
    lease.release()

    assert balancer.acquire().replica is loser


def test_affinity_hits_do_not_advance_the_rotation() -> None:
    """spec 3.4: a pinned request between two new sessions changes nothing about where the second one goes."""
    first, second = make("a"), make("b")
    balancer = balancer_of(first, second)

    balancer.acquire().release()
    for _ in range(3):
        balancer.acquire(first).release()
        balancer.acquire(second).release()

    assert balancer.acquire().replica is second


@pytest.mark.parametrize("slack", [1, 8, 100])
def test_affinity_ends_where_the_slack_does(slack: int) -> None:
    """spec 3.5: the pinned replica gets the request until it is more than the slack busier than the least loaded."""
    pinned, other = make("pinned"), make("other")
    balancer = balancer_of(pinned, other, slack=slack)

    placements = [balancer.acquire(pinned).placement for _ in range(slack + 2)]

    assert placements == [Placement.AFFINITY] * (slack + 1) + [Placement.MOVED_SLACK]
    assert other.outstanding == 1


def test_an_escape_lands_on_the_least_loaded() -> None:
    """spec 3.5 (S: L4): a session that leaves a busy replica goes to the least busy one, not the next one."""
    busy, middling, quiet = make("busy"), make("middling"), make("quiet")
    balancer = balancer_of(busy, middling, quiet, slack=2)
    for replica, load in ((busy, 3), (middling, 2), (quiet, 0)):
        for _ in range(load):
            balancer.acquire(replica)
    assert busy.outstanding == 3

    assert balancer.acquire(busy).replica is quiet


def test_no_slack_is_no_affinity() -> None:
    """spec 3.5: with a slack of 0 a pin decides nothing, and no affinity hit is counted."""
    first, second = make("a"), make("b")
    balancer = balancer_of(first, second, slack=0)

    chosen = [balancer.acquire(first).replica for _ in range(4)]

    assert chosen == [first, second, first, second]
    assert balancer.affinity_hits == 0


def test_nothing_routable() -> None:
    """spec 4.7, 6.1: without a routable replica a request is rejected, counted, and leaves no trace."""
    replica = make(ready=False)
    balancer = balancer_of(replica)

    with pytest.raises(NoReplica):
        balancer.acquire()
    with pytest.raises(NoReplica):
        balancer.acquire(replica, count=False)

    assert (balancer.rejected, balancer.routed, replica.outstanding) == (1, 0, 0)


def test_the_excluded_are_passed_over_this_once() -> None:
    """spec 4.6: another replica than those tried is chosen, and the next request may have them again."""
    first, second, third = make("a"), make("b"), make("c")
    balancer = balancer_of(first, second, third)

    assert balancer.acquire(exclude=(first, second)).replica is third
    with pytest.raises(NoReplica):
        balancer.acquire(exclude=(first, second, third))
    assert balancer.acquire().replica is first


def test_a_lease_is_released_once() -> None:
    """spec 3.10 (S: D7, L1): however often a lease is released, one request less is outstanding."""
    replica = make()
    balancer = balancer_of(replica)
    lease, other = balancer.acquire(), balancer.acquire()

    lease.release()
    lease.release()

    assert (lease.held, other.held) == (False, True)
    assert replica.outstanding == 1


def test_health_does_not_touch_the_load() -> None:
    """spec 3.10 (S: L1): going out of rotation and coming back leaves what is outstanding as it was."""
    replica, other = make("a"), make("b")
    balancer = balancer_of(replica, other)
    lease = balancer.acquire()

    balancer.set_ready(replica, False, 1.0)
    balancer.set_ready(replica, True, 2.0)

    assert replica.outstanding == 1
    assert balancer.acquire().replica is other
    lease.release()
    assert balancer.acquire().replica is replica


def test_a_draining_replica_tells_when_it_is_idle() -> None:
    """spec 7.8: the last release on a draining replica is told, once; one that is idle already tells at once."""
    busy, idle = make("busy"), make("idle")
    balancer = balancer_of(busy, idle)
    told: list[Replica] = []
    balancer.on_idle = told.append
    leases = [balancer.acquire(busy), balancer.acquire(busy)]

    balancer.drain(busy, 1.0)
    leases.pop().release()
    assert told == []
    leases.pop().release()
    assert told == [busy]

    balancer.drain(idle, 1.0)
    balancer.drain(idle, 1.0)
    assert told == [busy, idle]


def test_a_removed_replica_gets_nothing() -> None:
    """spec 3.8, 7.10: a removed replica is never chosen or waited for, and takes no other's place with it."""
    old, new = make("slot"), make("slot")
    balancer = balancer_of(old)
    told: list[Replica] = []
    balancer.on_idle = told.append
    lease = balancer.acquire()
    balancer.remove(old)
    balancer.add(new)

    balancer.remove(old)
    balancer.set_ready(old, True, 1.0)
    lease.release()

    assert dict(balancer.replicas) == {"slot": new}
    assert balancer.acquire(old).replica is new
    assert (old.available, old.outstanding, told) == (False, 0, [])


def test_two_replicas_cannot_share_an_id() -> None:
    """spec 2.6: an id is one replica's."""
    balancer = balancer_of(make("a"))

    with pytest.raises(ValueError, match="a is in the table already"):
        balancer.add(make("a"))


def test_the_heap_is_bounded() -> None:
    """spec 3.9: a million releases later the heap is no larger than a few entries for each replica."""
    balancer = balancer_of(*(make(f"r{n}") for n in range(10)))
    largest = 0
    for _ in range(3_000):
        leases = [balancer.acquire() for _ in range(7)]
        for lease in leases:
            lease.release()
        for replica in balancer.replicas.values():
            replica.pins += 1
        for replica in balancer.replicas.values():
            replica.pins -= 1
            balancer.lowered(replica)
        largest = max(largest, len(balancer._heap))

    assert largest <= 4 * 10 + 64


def test_phases() -> None:
    """spec 5.3, 5.5: draining, else ready while it is ready, else failed if a probe ever succeeded, else starting."""
    static, owned = make("static"), make("owned", ready=False, owned=True)
    balancer = balancer_of(static, owned)
    assert (static.phase, owned.phase) == (Phase.READY, Phase.STARTING)

    balancer.set_ready(static, True, 2.0, error="connection refused")
    assert (static.phase, static.ever_ready) == (Phase.READY, False)
    balancer.set_ready(static, False, 3.0, error="connection refused")
    assert (static.phase, static.since, static.last_error) == (Phase.STARTING, 3.0, "connection refused")

    balancer.set_ready(owned, True, 4.0)
    balancer.set_ready(owned, True, 5.0)
    assert (owned.phase, owned.since, owned.ever_ready) == (Phase.READY, 4.0, True)

    balancer.set_ready(owned, False, 6.0)
    assert (owned.phase, owned.since) == (Phase.FAILED, 6.0)

    balancer.drain(owned, 7.0)
    assert (owned.phase, owned.since) == (Phase.DRAINING, 7.0)
    assert repr(owned) == "<Replica owned draining: 0 outstanding, 0 pins>"


@pytest.mark.parametrize(
    ("host", "scheme", "url", "authority"),
    [
        ("10.0.0.2", "http", "http://10.0.0.2:8001", b"10.0.0.2:8001"),
        ("node02", "https", "https://node02:8001", b"node02:8001"),
        ("::1", "http", "http://[::1]:8001", b"[::1]:8001"),
    ],
)
def test_addresses(host: str, scheme: str, url: str, authority: bytes) -> None:
    """spec 2.2, 4.8 (S: M4): an IPv6 literal is bracketed in the URL and in the Host header."""
    replica = Replica(
        ReplicaId("r"), host, 8001, scheme=scheme, owned=True, slot=SlotId("s"), generation=3, ready=False
    )

    assert (replica.url, replica.authority) == (url, authority)
    assert (replica.slot, replica.generation, replica.available) == ("s", 3, False)
