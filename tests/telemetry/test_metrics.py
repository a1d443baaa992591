"""What is counted, read back by somebody else's parser."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from time import thread_time
from timeit import repeat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pypto_serving_router.core.balancer import Balancer, Placement, Replica
from pypto_serving_router.core.exchanged import Exchanged
from pypto_serving_router.core.ids import HostId, ReplicaId, SlotId
from pypto_serving_router.core.lease import Lease
from pypto_serving_router.core.routing import Routing
from pypto_serving_router.core.slot import Cause, Slot, SlotState
from pypto_serving_router.telemetry import families, metrics
from pypto_serving_router.telemetry.metrics import OUTCOMES, Metrics
from pypto_serving_router.telemetry.sources import Sources

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

P = families.PREFIX
SLOT = Slot(SlotId("node1-d0"), HostId("node1"), "h", 8001, (0,))


class World:
    """A routing table, a slot and the metrics over them."""

    def __init__(self) -> None:
        self.routing = Routing(slack=1, ttl=600, capacity=1000)
        self.slots = [SLOT]
        self.metrics = Metrics(
            Sources(
                balancer=self.routing.balancer,
                sessions=self.routing.sessions,
                client_connections=lambda: 7,
                tasks=lambda: 9,
                upstream_connections=lambda: 5,
                slots=lambda: self.slots,
                log_records_lost=lambda: 3,
            )
        )

    def add(self, name: str) -> Replica:
        replica = Replica(ReplicaId(name), "h", 1, ready=True)
        self.routing.balancer.add(replica)
        return replica

    def families(self) -> dict[str, Metric]:
        body, content_type = self.metrics.render()
        assert content_type == "text/plain; version=0.0.4; charset=utf-8"
        parsed = list(text_string_to_metric_families(body.decode()))
        assert len({family.name for family in parsed}) == len(parsed)
        return {family.name: family for family in parsed}

    def value(self, sample: str, **labels: str) -> float:
        found = [
            s.value
            for family in self.families().values()
            for s in family.samples
            if s.name == P + sample and s.labels == labels
        ]
        assert len(found) == 1, (sample, labels, found)
        return found[0]


@pytest.fixture
def world() -> World:
    return World()


def exchange(
    replica: str = "node0",
    *,
    status: int = 200,
    placement: Placement = Placement.NEW,
    outcome: str = "complete",
    ttfb: float = 0.03,
    own: float = 0.0001,
    relayed: int = 2000,
) -> Exchanged:
    """A request that has ended; it began at the hour zero."""
    lease = None
    if replica:
        lease = Lease(Balancer(slack=1), Replica(ReplicaId(replica), "h", 1, ready=True), placement)
    ended = Exchanged()
    ended.lease, ended.status, ended.outcome = lease, status, outcome
    ended.received, ended.relayed = 100, relayed
    ended.started, ended.placed, ended.sent, ended.first_byte, ended.ended = 0.0, 0.0, own, ttfb, 1.2
    return ended


def exercise(world: World) -> None:
    """Make every family have a sample."""
    world.add("node0")
    world.metrics.exchange_ended(exchange())
    world.metrics.refused(400)
    world.metrics.probed("node0", 0.01, ok=True)
    world.metrics.slot_changed(SLOT, replace(SLOT, state=SlotState.STOPPING, cause=Cause.OPERATOR), 1.0)
    world.metrics.slot_changed(replace(SLOT, state=SlotState.STOPPING), SLOT, 2.0)
    world.metrics.host_command("node1", "start", 0.3, "ok")


def test_every_family_is_shown_as_declared(world: World) -> None:
    """`/metrics` has each declared family, with its kind, labels and meaning, and no other (spec 6.7)."""
    exercise(world)

    shown = world.families()

    declared = {family.name.removesuffix("_total"): family for family in families.FAMILIES}
    assert set(shown) == set(declared)
    for name, family in declared.items():
        assert (shown[name].type, shown[name].documentation) == (family.kind, family.help)
        for sample in shown[name].samples:
            assert set(sample.labels) - {"le"} == set(family.labels)


def test_names() -> None:
    """Names have the prefix, base units, and `_total` just where something is counted (spec 9)."""
    for family in families.FAMILIES:
        assert family.name.startswith((P, "process_"))
        assert family.name.endswith("_total") is (family.kind == "counter")
        assert not family.name.removesuffix("_total").endswith(("_ms", "_milliseconds", "_kb", "_count", "_sum"))
        if family.kind in ("histogram", "summary"):
            assert family.name.endswith("_seconds")
        assert not {"session", "path", "client", "request_id"} & set(family.labels)
        assert family.help.endswith(".")


def test_requests(world: World) -> None:
    """Requests are counted by replica, code, placement and outcome, failed ones as well (spec 9, M6)."""
    ended = world.metrics.exchange_ended
    ended(exchange())
    ended(exchange())
    ended(exchange(placement=Placement.AFFINITY, outcome="upstream_cut"))
    ended(exchange("", status=503, outcome="no_replica", ttfb=0.0, own=0.0, relayed=0))
    ended(exchange(status=0, outcome="client_left", ttfb=0.0))

    requests = {tuple(s.labels.values()): s.value for s in world.families()[P + "requests"].samples}

    assert requests == {
        ("node0", "200", "new", "complete"): 2,
        ("node0", "200", "affinity", "upstream_cut"): 1,
        ("", "503", "", "no_replica"): 1,
        ("node0", "none", "new", "client_left"): 1,
    }
    assert world.value("request_body_bytes_total", replica="node0") == 400
    assert world.value("response_body_bytes_total", replica="node0") == 8000
    assert world.value("time_to_first_byte_seconds_count", placement="new") == 2
    assert world.value("time_to_first_byte_seconds_sum", placement="affinity") == 0.03
    assert world.value("replica_time_to_first_byte_seconds_count", replica="node0") == 3
    assert world.value("replica_time_to_first_byte_seconds_sum", replica="node0") == pytest.approx(0.09)
    assert world.value("overhead_seconds_count") == 4
    assert world.value("request_duration_seconds_count", outcome="complete") == 2


def test_moves(world: World) -> None:
    """It is counted why sessions moved (spec 9)."""
    for placement, count in ((Placement.MOVED_SLACK, 3), (Placement.MOVED_UNROUTABLE, 2), (Placement.AFFINITY, 9)):
        for _ in range(count):
            world.metrics.exchange_ended(exchange(placement=placement))

    assert world.value("session_moves_total", reason="slack") == 3
    assert world.value("session_moves_total", reason="unroutable") == 2


def test_routing(world: World) -> None:
    """Loads, phases, pins and the routing's own counts are those of this moment (spec 9)."""
    first, second = world.add("node0"), world.add("node1")
    world.routing.place("a", 0.0)
    world.routing.place("a", 0.0)
    world.routing.place("b", 0.0)
    world.routing.balancer.set_ready(second, False, 1.0)
    world.routing.drain(first, 2.0)

    assert world.value("routed_total") == 3
    assert world.value("affinity_hits_total") == 1
    assert world.value("rejected_total") == 0
    assert world.value("replica_outstanding", replica="node0") == 2
    assert world.value("replica_pins", replica="node1") == 1
    assert world.value("pins") == 1
    assert world.value("pins_ended_total", reason="dropped") == 1
    assert world.value("replica_phase", replica="node0", phase="draining") == 1
    assert world.value("replica_phase", replica="node0", phase="ready") == 0
    assert world.value("replica_phase", replica="node1", phase="starting") == 1
    assert world.value("client_connections") == 7
    assert world.value("tasks") == 9
    assert world.value("upstream_connections") == 5
    assert world.value("log_records_lost_total") == 3


def test_removed_replica(world: World) -> None:
    """A removed replica's gauges go, and its counters stay, so that they never go back (spec 9)."""
    replica = world.add("node0")
    world.metrics.exchange_ended(exchange())
    world.metrics.probed("node0", 0.01, ok=False)
    world.routing.remove(replica)

    shown = world.families()

    assert P + "replica_outstanding" not in shown
    assert world.value("requests_total", replica="node0", code="200", placement="new", outcome="complete") == 1
    assert world.value("probes_total", replica="node0", result="failed") == 1


def test_slots(world: World) -> None:
    """Launches, stops and replacements are counted with their cause, and timed (spec 9)."""

    def go(now: float, state: SlotState, cause: Cause) -> None:
        before = world.slots[0]
        world.slots[0] = replace(before, state=state, cause=cause)
        world.metrics.slot_changed(before, world.slots[0], now)

    go(100.0, SlotState.LAUNCHING, Cause.REPLACEMENT)
    go(101.0, SlotState.STARTING, Cause.LAUNCHED)
    go(230.0, SlotState.READY, Cause.ANSWERED)
    go(231.0, SlotState.READY, Cause.ANSWERED)
    go(300.0, SlotState.DRAINING, Cause.LOST)
    go(305.0, SlotState.STOPPING, Cause.DRAIN_TIMEOUT)
    go(312.0, SlotState.UNCONFIRMED, Cause.STOP_UNCONFIRMED)

    labels = {"host": "node1", "from": "free", "to": "launching", "cause": "replacement"}
    assert world.value("slot_transitions_total", **labels) == 1
    assert len(world.families()[P + "slot_transitions"].samples) == 6
    for step, seconds in (("launch", 130), ("drain", 5), ("stop", 7)):
        assert world.value("slot_step_seconds_count", host="node1", step=step) == 1
        assert world.value("slot_step_seconds_sum", host="node1", step=step) == seconds
    assert world.value("slot_state", host="node1", slot="node1-d0", state="unconfirmed") == 1
    assert world.value("slot_state", host="node1", slot="node1-d0", state="free") == 0


def test_adoption_is_no_launch(world: World) -> None:
    """A replica that was adopted while it loaded says nothing about how long a launch takes (spec 7.13)."""
    world.metrics.slot_changed(replace(SLOT, state=SlotState.UNCONFIRMED), replace(SLOT, state=SlotState.STARTING), 5.0)
    world.metrics.slot_changed(replace(SLOT, state=SlotState.STARTING), replace(SLOT, state=SlotState.READY), 9.0)

    assert P + "slot_step_seconds" not in world.families()


def test_host_commands(world: World) -> None:
    """Commands on hosts are timed by what they were and how they ended (spec 9)."""
    world.metrics.host_command("node1", "start", 0.2, "ok")
    world.metrics.host_command("node1", "start", 10.0, "error")

    assert world.value("host_command_seconds_sum", host="node1", action="start", outcome="ok") == 0.2
    assert world.value("host_command_seconds_count", host="node1", action="start", outcome="error") == 1


def test_hot_instruments(world: World) -> None:
    """The gaps between pieces and the delays of the loop are histograms (spec 9)."""
    world.metrics.chunk_gap.observe(0.03)
    world.metrics.loop_delay(0.3)

    assert world.value("chunk_gap_seconds_bucket", le="0.025") == 0
    assert world.value("chunk_gap_seconds_bucket", le="0.04") == 1
    assert world.value("loop_delay_seconds_bucket", le="0.5") == 1
    assert world.value("loop_delay_seconds_sum") == 0.3


@given(st.lists(st.floats(0, 1e6, exclude_min=True) | st.sampled_from(metrics.FIRST_BYTE_BUCKETS)))
def test_histogram(values: list[float]) -> None:
    """Each bucket counts the values up to and including its bound; the last counts all (spec 9)."""
    world = World()
    for value in values:
        world.metrics.exchange_ended(exchange(ttfb=value))

    samples = world.families().get(P + "time_to_first_byte_seconds")

    buckets = {s.labels["le"]: s.value for s in samples.samples if s.name.endswith("_bucket")} if samples else {}
    bounds = {str(bound): bound for bound in metrics.FIRST_BYTE_BUCKETS} | {"+Inf": math.inf}
    assert buckets == ({le: sum(v <= bound for v in values) for le, bound in bounds.items()} if values else {})


@pytest.mark.parametrize("name", [name for name in vars(metrics) if name.endswith("_BUCKETS")])
def test_bounds(name: str) -> None:
    """Buckets rise, and few of them are wide (spec 9)."""
    bounds = getattr(metrics, name)

    assert list(bounds) == sorted(set(bounds))
    ratios = [upper / lower for lower, upper in pairwise(bounds)]
    assert sum(ratio > 2.51 for ratio in ratios) <= 4
    assert len(bounds) <= 16


def test_cost(world: World) -> None:
    """What the data path counts costs it next to nothing (spec 8)."""
    ended, one = world.metrics.exchange_ended, exchange()
    gap = world.metrics.chunk_gap.observe

    assert min(repeat(lambda: ended(one), number=1000, repeat=20, timer=thread_time)) / 1000 < 8e-6
    assert min(repeat(lambda: gap(0.03), number=1000, repeat=20, timer=thread_time)) / 1000 < 2e-6


def test_scrape_of_a_large_fleet(world: World) -> None:
    """With a thousand replicas no piece of a scrape holds up the streams for long (spec 8)."""
    world.slots = [replace(SLOT, id=SlotId(f"node{n}-d0"), host=HostId(f"node{n}")) for n in range(1000)]
    for n in range(1000):
        world.add(f"node{n}-d0")
        for outcome in OUTCOMES:
            world.metrics.exchange_ended(exchange(replica=f"node{n}-d0", outcome=outcome))

    def slowest() -> float:
        pieces = world.metrics.pieces()
        times: list[float] = []
        while True:
            before = thread_time()
            if next(pieces, None) is None:
                return max(times)
            times.append(thread_time() - before)

    assert min(slowest() for _ in range(5)) < 0.1
