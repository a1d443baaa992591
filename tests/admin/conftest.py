"""A router's own endpoints over a real routing table and a fleet that does as it is told."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pypto_serving_router.admin.routes import Admin
from pypto_serving_router.admin.wall_clock import WallClock
from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.head import parse_request
from pypto_serving_router.core.ids import HostId, ReplicaId, SlotId
from pypto_serving_router.core.routing import Routing
from pypto_serving_router.core.slot import Cause, Slot, SlotState
from pypto_serving_router.fleet.controller import LaunchResult, RetireResult
from pypto_serving_router.fleet.pool import Capacity, Reserved
from pypto_serving_router.telemetry.floodgate import Floodgate
from pypto_serving_router.telemetry.metrics import Metrics
from pypto_serving_router.telemetry.recent import Recent
from pypto_serving_router.telemetry.sources import Sources

if TYPE_CHECKING:
    from pypto_serving_router.core.answer import Answer
    from pypto_serving_router.errors import RouterError

EPOCH = 1_700_000_000.0  # 2023-11-14T22:13:20Z
SLOT = Slot(SlotId("node1-d0"), HostId("node1"), "10.0.0.1", 8001, (0,), state=SlotState.STARTING)


class FakeFleet:
    """Records what is asked of it, and answers what the test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error: RouterError | None = None
        self.launched = SLOT
        self.retired = RetireResult(replace(SLOT, state=SlotState.FREE, cause=Cause.STOPPED), confirmed=True)
        self.text = b"loading\n"
        self.left = Capacity(
            ceiling=3,
            owned=2,
            free_slots=(SlotId("node1-d3"), SlotId("node1-d4")),
            cooling=(Reserved(SlotId("node1-d4"), "lost its replica", EPOCH + 1, "exit status 3", due=12.0),),
            unconfirmed=(Reserved(SlotId("node1-d1"), "stop-unconfirmed", EPOCH, "still answers"),),
            abandoned=(Reserved(SlotId("node1-d2"), "lost 3 replicas in a row", EPOCH + 0.5, "exit status 1"),),
            last_errors={SlotId("node1-d2"): "exit status 1", SlotId("node1-d4"): "exit status 3"},
        )

    def capacity(self) -> Capacity:
        return self.left

    async def launch(self, *, slot: SlotId | None = None, host: HostId | None = None) -> LaunchResult:
        self._note("launch", slot, host)
        return LaunchResult(self.launched)

    async def retire(self, slot: SlotId, *, force: bool = False) -> RetireResult:
        self._note("retire", slot, force)
        return self.retired

    async def log(self, slot: SlotId, lines: int) -> bytes:
        self._note("log", slot, lines)
        return self.text

    def _note(self, *call: Any) -> None:
        self.asked.append(call)
        if self.error is not None:
            raise self.error


class FakeLog:
    """Keeps warnings."""

    def __init__(self) -> None:
        self.warnings: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.warnings.append({"event": event, **fields})


class Router:
    """The endpoints and what they look at."""

    def __init__(self, *, token: str | None = None) -> None:
        self.time = 100.0
        self.routing = Routing(slack=8, ttl=600, capacity=1000)
        self.balancer = self.routing.balancer
        self.fleet = FakeFleet()
        self.recent = Recent()
        self.log = FakeLog()
        self.metrics = Metrics(
            Sources(
                balancer=self.balancer,
                sessions=self.routing.sessions,
                client_connections=lambda: 1,
                tasks=lambda: 9,
                upstream_connections=lambda: 1,
            )
        )
        self.admin = Admin(
            balancer=self.balancer,
            sessions=self.routing.sessions,
            decisions=self.routing.decisions,
            fleet=self.fleet,
            token=token,
            metrics=self.metrics,
            recent=self.recent,
            now=lambda: self.time,
            wall_time=WallClock(lambda: self.time, lambda: EPOCH + self.time - 100.0),
            floodgate=Floodgate(lambda: self.time),
            log=self.log,  # type: ignore[arg-type] # as much of one as is used
        )

    def add(self, name: str, *, owned: bool = False, ready: bool = True) -> Replica:
        replica = Replica(
            ReplicaId(name),
            "10.0.0.1",
            8001,
            owned=owned,
            slot=SlotId(name) if owned else None,
            ready=ready,
            since=self.time,
        )
        self.balancer.add(replica)
        return replica

    def call(self, method: str, target: str, body: bytes = b"", **fields: str) -> Answer:
        """Ask with header fields named with underscores."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in ({"host": "router:8000"} | fields).items()]
        head = parse_request("\r\n".join([f"{method} {target} HTTP/1.1", *lines]).encode())
        return asyncio.run(self.admin.handle(head, body))

    def json(self, method: str, target: str, body: bytes = b"", **fields: str) -> tuple[int, Any]:
        answer = self.call(method, target, body, **fields)
        assert answer.content_type == "application/json"
        return answer.status, json.loads(answer.body)


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def guarded() -> Router:
    return Router(token="s3cret")
