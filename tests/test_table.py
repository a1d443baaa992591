"""The table in which slots, probes and exchanges meet: told how things are, it keeps balancer and probes in step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import CapturingLogger

from pypto_serving_router.config.model import ReplicaSpec
from pypto_serving_router.core.balancer import Phase
from pypto_serving_router.core.ids import HostId, ReplicaId, SlotId
from pypto_serving_router.core.routing import Routing
from pypto_serving_router.core.slot import Cause, Slot, SlotState
from pypto_serving_router.errors import ConnectFailed, NoReplica, UpstreamClosed, UpstreamTimeout
from pypto_serving_router.table import Table
from pypto_serving_router.telemetry.floodgate import Floodgate

if TYPE_CHECKING:
    from pypto_serving_router.core.balancer import Replica

SLOT = Slot(SlotId("n-d0"), HostId("n"), "127.0.0.1", 8001, (0,), generation=7)


class Probes:
    """Stands in for the monitor: who is probed, and who was to be probed at once."""

    def __init__(self) -> None:
        self.watched: dict[Replica, Any] = {}
        self.triggered: list[Replica] = []

    def add(self, replica: Replica, tls: Any = None) -> None:
        assert replica not in self.watched
        self.watched[replica] = tls

    def remove(self, replica: Replica) -> None:
        self.watched.pop(replica, None)

    def trigger(self, replica: Replica) -> None:
        self.triggered.append(replica)


class Stage:
    """A table with everything it is joined to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.routing = Routing(slack=8, ttl=600.0, capacity=100)
        self.log = CapturingLogger()
        self.let_go: list[Replica] = []
        self.judged: list[tuple[str, int, bool, int | None]] = []
        self.probes = Probes()
        clock = lambda: self.now  # noqa: E731
        self.table = Table(
            self.routing, now=clock, log=self.log, floodgate=Floodgate(clock), let_go=self.let_go.append
        )  # fmt: skip
        self.table.monitor = self.probes  # type: ignore[assignment]
        self.table.on_health = lambda *judgement: self.judged.append(judgement)

    def static(self, name: str = "static", **fields: Any) -> Replica:
        self.table.add_static(ReplicaSpec(name=name, host="127.0.0.1", port=8000, **fields), None)
        return self.routing.balancer.replicas[ReplicaId(name)]

    def publish(self, state: SlotState, **fields: Any) -> Replica | None:
        self.table.publish(replace(SLOT, state=state, **fields))
        return self.listed()

    def listed(self) -> Replica | None:
        return self.routing.balancer.replicas.get(ReplicaId("n-d0"))

    def owned(self) -> Replica:
        replica = self.publish(SlotState.STARTING)
        assert replica
        return replica

    def told(self) -> list[str]:
        return [call.args[0] for call in self.log.calls]

    def place(self, session: str = "s") -> Replica:
        return self.routing.place(session, self.now).replica


@pytest.fixture
def stage() -> Stage:
    return Stage()


# --- replicas come and go ------------------------------------------------------------------------


def test_a_static_replica_is_routable_and_probed(stage: Stage) -> None:
    """It is routable before its first probe, and never looked at by the fleet (spec 5.3)."""
    replica = stage.static()

    assert (replica.phase, replica.owned, stage.place()) == (Phase.READY, False, replica)
    assert set(stage.probes.watched) == {replica}
    stage.table.on_probe(replica, False, None, "connection refused")
    assert not stage.table.is_loading(replica)
    assert stage.judged == []


def test_an_owned_replica_is_there_from_its_promise_and_routable_from_its_first_probe(stage: Stage) -> None:
    """It is listed while it is launched, probed, and promoted by the first success (spec 7.2, 5.3, 5.5)."""
    replica = stage.publish(SlotState.LAUNCHING)
    assert replica
    assert (replica.phase, replica.available) == (Phase.STARTING, False)
    assert stage.publish(SlotState.STARTING) is replica
    stage.table.on_probe(replica, False, None, "connection refused")
    assert (replica.phase, replica.last_error) == (Phase.STARTING, None), "its silence is no error"
    assert stage.table.is_loading(replica)
    with pytest.raises(NoReplica):
        stage.place()

    stage.table.on_probe(replica, True, 200, None)

    assert (replica.phase, stage.place()) == (Phase.READY, replica)
    assert not stage.table.is_loading(replica)
    assert stage.judged == [("n-d0", 7, False, None), ("n-d0", 7, True, 200)]
    assert stage.told() == ["replica is routable"]


def test_an_adopted_replica_that_is_well_is_routable_at_once(stage: Stage) -> None:
    """It was seen to be well a moment ago (spec 7.13)."""
    replica = stage.publish(SlotState.READY, cause=Cause.ADOPTED)

    assert replica
    assert (replica.phase, replica.ever_ready, stage.place()) == (Phase.READY, True, replica)


def test_a_drained_replica_loses_its_pins_at_once_and_its_requests_when_it_is_stopped(stage: Stage) -> None:
    """Draining takes it out of rotation; only the stop ends probes and what is in flight (spec 3.8, 7.8)."""
    replica = stage.owned()
    stage.table.on_probe(replica, True, 200, None)
    lease = stage.routing.place("s", stage.now)

    stage.publish(SlotState.DRAINING)
    assert (replica.phase, replica.pins, stage.table.outstanding(SLOT.id)) == (Phase.DRAINING, 0, 1)
    assert (set(stage.probes.watched), stage.let_go) == ({replica}, [])
    with pytest.raises(NoReplica):
        stage.place()

    stage.publish(SlotState.STOPPING)
    assert (stage.probes.watched, stage.let_go) == ({}, [replica])
    assert stage.listed() is replica, "it is there until it is gone"
    stage.publish(SlotState.FREE)
    assert stage.listed() is None
    stage.routing.finish(lease, stage.now)
    assert stage.table.outstanding(SLOT.id) == 0


@pytest.mark.parametrize("state", [SlotState.FREE, SlotState.ABANDONED, SlotState.UNCONFIRMED])
def test_what_is_no_replica_any_more_leaves_nothing_behind(stage: Stage, state: SlotState) -> None:
    """A slot without a replica has no row, no probes and no connections, and what comes late is dropped (spec 7.10)."""
    replica = stage.owned()

    stage.publish(state, cause=Cause.STOP_UNCONFIRMED)

    assert (stage.listed(), stage.probes.watched, stage.let_go) == (None, {}, [replica])
    stage.table.on_probe(replica, True, 200, None)
    stage.table.on_fault(replica, ConnectFailed("no"))
    assert (stage.judged, replica.available) == ([], False)


def test_a_reserved_slot_is_probed_and_not_listed(stage: Stage) -> None:
    """While it is unreachable it is no replica; once adopted it is one, with what was known of it (spec 7.13)."""
    assert stage.publish(SlotState.UNCONFIRMED, cause=Cause.UNREACHABLE_AT_STARTUP) is None
    (awaited,) = stage.probes.watched
    assert not stage.table.is_loading(awaited), "that may last for ever, and each answer is a command on its host"

    stage.table.on_probe(awaited, False, 503, "answered 503")
    assert stage.judged == [("n-d0", 7, False, 503)]
    stage.table.on_probe(awaited, True, 200, None)
    assert stage.publish(SlotState.READY, cause=Cause.ADOPTED) is awaited
    assert stage.place() is awaited


def test_the_next_replica_of_a_slot_is_another_one(stage: Stage) -> None:
    """Another generation begins anew, whatever was published in between (spec 7.10)."""
    first = stage.owned()
    stage.table.on_probe(first, True, 200, None)

    second = stage.publish(SlotState.STARTING, generation=8)

    assert second is not first
    assert second
    assert (second.generation, second.phase, first.removed) == (8, Phase.STARTING, True)
    assert set(stage.probes.watched) == {second}
    stage.table.on_probe(first, False, None, "connection refused")
    assert stage.judged == [("n-d0", 7, True, 200)], "late news about the first is dropped"


def test_publishing_the_same_again_changes_nothing(stage: Stage) -> None:
    """It is told how things are, not what changed (spec 7.10)."""
    for state in (SlotState.LAUNCHING, SlotState.STARTING, SlotState.DRAINING, SlotState.FREE):
        stage.publish(state)
        listed = stage.listed()
        assert stage.publish(state) is listed


# --- what is found out about them ----------------------------------------------------------------


def test_two_failed_probes_and_one_success(stage: Stage) -> None:
    """Two in a row take it out, one brings it back, and only changes are logged (spec 5.2)."""
    replica = stage.static()
    seen = []
    for healthy in (True, False, True, False, False, False, True):
        stage.table.on_probe(replica, healthy, None, None if healthy else "connection refused")
        seen.append(replica.available)

    assert seen == [True, True, True, True, False, False, True]
    assert stage.told() == ["replica is not routable", "replica is routable"]
    assert replica.phase is Phase.READY


def test_a_static_replica_that_was_never_well_is_starting(stage: Stage) -> None:
    """A first failed probe leaves it in rotation, and is no success (spec 5.5)."""
    replica = stage.static()

    for _ in range(2):
        stage.table.on_probe(replica, False, None, "connection refused")

    assert (replica.phase, replica.last_error) == (Phase.STARTING, "connection refused")


def test_a_fault_before_the_answer_is_enough(stage: Stage) -> None:
    """It takes the replica out at once, tells the fleet, and has it probed (spec 5.4)."""
    replica = stage.owned()
    stage.table.on_probe(replica, True, 200, None)

    stage.table.on_fault(replica, ConnectFailed("no connection: refused", refused=True))

    assert (replica.phase, replica.available, replica.last_error) == (Phase.FAILED, False, "no connection: refused")
    assert stage.probes.triggered == [replica]
    assert stage.judged[-1] == ("n-d0", 7, False, None)
    stage.table.on_fault(replica, UpstreamClosed("closed"))
    assert len(stage.judged) == 2, "it is out already"
    assert stage.told() == [
        "replica is routable",
        "exchange failed",
        "replica is not routable",
        "exchange failed",
    ]


def test_a_fault_during_the_answer_is_a_failed_probe(stage: Stage) -> None:
    """One takes nobody out; a second, or a failed probe, does (spec 5.4)."""
    replica = stage.static()
    cut = UpstreamClosed("cut")
    cut.began = True

    stage.table.on_fault(replica, cut)
    assert (replica.available, stage.probes.triggered) == (True, [replica])
    stage.table.on_probe(replica, True, 200, None)
    stage.table.on_fault(replica, cut)
    assert replica.available
    stage.table.on_fault(replica, cut)
    assert not replica.available


def test_a_timeout_is_the_applications(stage: Stage) -> None:
    """A slow answer says nothing about health, and triggers nothing (spec 5.4)."""
    replica = stage.static()

    for _ in range(3):
        stage.table.on_fault(replica, UpstreamTimeout("slow"))

    assert (replica.available, stage.probes.triggered) == (True, [])


def test_failing_exchanges_do_not_flood_the_log(stage: Stage) -> None:
    """Of one replica's failures of one kind, one in ten seconds is logged, with the number held back (spec 9)."""
    replica = stage.static()
    for _ in range(5):
        stage.table.on_fault(replica, UpstreamTimeout("slow"))
    stage.now += 10.0
    stage.table.on_fault(replica, UpstreamTimeout("slow"))

    assert [call.kwargs["suppressed"] for call in stage.log.calls] == [0, 4]
