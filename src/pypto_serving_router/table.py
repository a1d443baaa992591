"""Keeps the routing table in step with the slots, the probes and the exchanges.

It is where the three paths meet: what the fleet publishes, what probes find and how exchanges fail all end in the same
few calls on the balancer. Everything here is synchronous and idempotent: it is told how things are, not what changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.health import Health
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.core.slot import SlotState
from pypto_serving_router.errors import UpstreamError, UpstreamTimeout

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from pypto_serving_router.config.model import ReplicaSpec
    from pypto_serving_router.core.ids import SlotId
    from pypto_serving_router.core.routing import Routing
    from pypto_serving_router.core.slot import Slot
    from pypto_serving_router.probe.monitor import Monitor
    from pypto_serving_router.telemetry.floodgate import Floodgate

_QUIET = 10.0  # seconds between two records of one replica's failed exchanges
_LEAVING = (SlotState.DRAINING, SlotState.STOPPING)


class Table:
    """The replicas there are, static and owned, with the judgement on their health.

    `on_health` tells the fleet what a probe found of an owned replica; `let_go` ends whatever still uses a replica.
    """

    def __init__(
        self,
        routing: Routing,
        *,
        now: Callable[[], float],
        log: FilteringBoundLogger,
        floodgate: Floodgate,
        let_go: Callable[[Replica], None],
    ) -> None:
        self._routing = routing
        self._now = now
        self._log = log
        self._floodgate = floodgate
        self._let_go = let_go
        self._health: dict[Replica, Health] = {}
        self._owned: dict[SlotId, Replica] = {}
        self.monitor: Monitor
        self.on_health: Callable[[SlotId, int, bool, int | None], None] = lambda *_: None

    # --- replicas come and go ----------------------------------------------------------------

    def add_static(self, spec: ReplicaSpec, tls: ssl.SSLContext | None) -> None:
        """Take in a replica that runs already: routable until probes say otherwise (spec 5.3)."""
        replica = Replica(ReplicaId(spec.name), spec.host, spec.port, scheme=spec.scheme, ready=True, since=self._now())
        self._enter(replica, tls)
        self._routing.balancer.add(replica)

    def publish(self, slot: Slot) -> None:
        """Follow a slot to the state it is in now."""
        replica = self._owned.get(slot.id)
        if replica is not None and (replica.generation != slot.generation or not (slot.present or slot.probed)):
            self._leave(replica)
            replica = None
        if replica is None and (slot.present or slot.probed):
            replica = self._enter_owned(slot)
        if replica is None:
            return
        if slot.present and replica.id not in self._routing.balancer.replicas:
            self._routing.balancer.add(replica)
        if slot.state in _LEAVING:
            self._routing.drain(replica, self._now())
        if slot.state is SlotState.STOPPING:
            self.monitor.remove(replica)
            self._let_go(replica)

    def outstanding(self, slot: SlotId) -> int:
        """Count the requests in flight to a slot's replica."""
        replica = self._owned.get(slot)
        return 0 if replica is None else replica.outstanding

    def is_loading(self, replica: Replica) -> bool:
        """Whether the replica is listed, was launched and has never been ready: its first good probe is waited for."""
        return replica.owned and not replica.ever_ready and replica.id in self._routing.balancer.replicas

    def _enter_owned(self, slot: Slot) -> Replica:
        replica = Replica(
            ReplicaId(slot.id),
            slot.address,
            slot.port,
            owned=True,
            slot=slot.id,
            generation=slot.generation,
            ready=slot.state is SlotState.READY,  # adopted, and just seen to be well
            since=self._now(),
        )
        replica.ever_ready = replica.ready
        self._owned[slot.id] = replica
        self._enter(replica)
        return replica

    def _enter(self, replica: Replica, tls: ssl.SSLContext | None = None) -> None:
        self._health[replica] = Health(healthy=replica.ready)
        self.monitor.add(replica, tls)

    def _leave(self, replica: Replica) -> None:
        del self._health[replica]
        if replica.slot is not None:
            del self._owned[replica.slot]
        self.monitor.remove(replica)
        self._routing.remove(replica)
        self._let_go(replica)

    # --- what is found out about them --------------------------------------------------------

    def on_probe(self, replica: Replica, healthy: bool, status: int | None, error: str | None) -> None:  # noqa: FBT001 - a callback
        """Take a probe's result (spec 5.2), and pass the judgement on an owned replica to the fleet."""
        health = self._health.get(replica)
        if health is None:
            return
        changed = health.record(success=healthy)
        if replica.owned and not replica.ever_ready:
            error = None  # it is loading: its silence is no error
        self._routing.balancer.set_ready(replica, health.healthy, self._now(), error=error)
        if changed:
            self._tell(replica, health, error)
        if replica.slot is not None:
            self.on_health(replica.slot, replica.generation, health.healthy, status)

    def on_fault(self, replica: Replica, error: UpstreamError) -> None:
        """Take note that an exchange failed on the replica's side (spec 5.4)."""
        suppressed = self._floodgate.once_per((replica.id, type(error)), _QUIET)
        if suppressed is not None:
            self._log.warning("exchange failed", replica=replica.id, error=str(error), suppressed=suppressed)
        health = self._health.get(replica)
        if health is None or isinstance(error, UpstreamTimeout):
            return  # a slow answer is the application's
        changed = health.record(success=False) if error.began else health.down()
        self._routing.balancer.set_ready(replica, health.healthy, self._now(), error=str(error))
        if changed:
            self._tell(replica, health, str(error))
            if replica.slot is not None:
                self.on_health(replica.slot, replica.generation, health.healthy, None)
        self.monitor.trigger(replica)

    def _tell(self, replica: Replica, health: Health, error: str | None) -> None:
        if health.healthy:
            self._log.info("replica is routable", replica=replica.id, url=replica.url)
        else:
            self._log.warning("replica is not routable", replica=replica.id, url=replica.url, error=error)
