"""What is counted, and how it is counted at next to no cost.

Theory of operation. Whatever the data path records is one method call that adds to plain numbers; names, labels and
text are made when somebody asks, in `render`. What another part knows already (loads, phases, pins) is not counted a
second time: it is read there and then.

Rules for editors.

1. `exchange_ended` and `chunk_gap` run for every request and every token: a microsecond in them is a microsecond of
   every stream. tests/telemetry/test_metrics.py bounds them.
2. The values of a label come from a fixed list or from the fleet file; never from a client.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeVar

from pypto_serving_router import __version__
from pypto_serving_router.core.balancer import Phase, Placement
from pypto_serving_router.core.slot import SlotState
from pypto_serving_router.telemetry import families, process_stats
from pypto_serving_router.telemetry.histogram import Bounds, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pypto_serving_router.core.exchanged import Exchanged
    from pypto_serving_router.core.ids import SlotId
    from pypto_serving_router.core.slot import Slot
    from pypto_serving_router.telemetry.sources import Sources

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

OUTCOMES: Final = {
    "complete": "the answer was relayed whole",
    "client_left": "the client closed the connection before its answer was complete",
    "upstream_failed": "the replica could not be reached, or broke before its answer began",
    "upstream_cut": "the replica broke during its answer",
    "timeout": "the request timeout passed",
    "refused": "the router refused the request, or the rest of its body",
    "no_replica": "no replica was routable",
}
"""How an exchange can end."""

# Buckets at most about double from one to the next, so that a quantile read off them is never wrong by more than that.

# A cached prompt is answered within tens of milliseconds, a long transcript's prefill takes seconds to a minute, and
# an answer that is not streamed begins when all of it has been generated: minutes.
FIRST_BYTE_BUCKETS: Bounds = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0, 200.0, 600.0,
)  # fmt: skip
# A token takes 5 to 100 ms. Below: several in one read. Above: the batch was held up by somebody's prefill.
CHUNK_GAP_BUCKETS: Bounds = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 10.0)
# From an embedding to an hour of reasoning, where the default request timeout ends it.
DURATION_BUCKETS: Bounds = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 3600.0)
# Some 50 µs where a connection is kept, a round trip more where one is opened, seconds where the network is broken.
OVERHEAD_BUCKETS: Bounds = (
    25e-6, 50e-6, 1e-4, 2e-4, 4e-4, 8e-4, 0.0015, 0.003, 0.006, 0.012, 0.025, 0.1, 0.5, 1.0, 5.0,
)  # fmt: skip
# A probe is a round trip on a local network; it is given up after the connect timeout, 5 s by default.
PROBE_BUCKETS: Bounds = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Loading a model takes two to twenty minutes, a stop some seconds, a drain up to five minutes by default.
SLOT_BUCKETS: Bounds = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 120.0, 180.0, 300.0, 450.0, 600.0, 900.0, 1800.0)
# 50 ms locally, 200 ms to log in over ssh, half a minute when a process is given its grace period.
COMMAND_BUCKETS: Bounds = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0)
# A token's time is tens of milliseconds: the first buckets go unnoticed, the last ones do not.
LOOP_DELAY_BUCKETS: Bounds = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


_MOVES: Final[Mapping[str, str]] = {Placement.MOVED_SLACK: "slack", Placement.MOVED_UNROUTABLE: "unroutable"}


class _Ended:
    """What the exchanges of one replica that were placed alike and ended alike add up to."""

    __slots__ = ("duration", "first_byte", "first_byte_sum", "first_bytes", "received", "relayed", "requests")

    def __init__(self, duration: Histogram, first_byte: Histogram) -> None:
        self.requests = 0
        self.received = 0
        self.relayed = 0
        self.first_bytes = 0
        self.first_byte_sum = 0.0
        self.duration = duration
        """Shared by all that ended alike."""
        self.first_byte = first_byte
        """Shared by all that were placed alike."""


class _Histograms(dict[_Key, Histogram]):
    """A histogram for each key, made when first asked for."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, key: _Key) -> Histogram:
        self[key] = made = Histogram(self._bounds)
        return made


class Metrics:
    """Everything the router counts."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._ended: dict[tuple[str, int, str, str], _Ended] = {}
        self._refused: defaultdict[int, int] = defaultdict(int)
        self._duration: _Histograms[str] = _Histograms(DURATION_BUCKETS)
        self._first_byte: _Histograms[str] = _Histograms(FIRST_BYTE_BUCKETS)
        self._overhead = Histogram(OVERHEAD_BUCKETS)
        self.chunk_gap = Histogram(CHUNK_GAP_BUCKETS)
        """The seconds between two pieces of one answer."""
        self._probes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._probe_duration: _Histograms[str] = _Histograms(PROBE_BUCKETS)
        self._transitions: defaultdict[tuple[str, str, str, str], int] = defaultdict(int)
        self._steps: _Histograms[tuple[str, str]] = _Histograms(SLOT_BUCKETS)
        self._entered: dict[SlotId, float] = {}
        self._launched: dict[SlotId, float] = {}
        self._commands: _Histograms[tuple[str, str, str]] = _Histograms(COMMAND_BUCKETS)
        self._loop_delay = Histogram(LOOP_DELAY_BUCKETS)
        self.loop_delay: Callable[[float], None] = self._loop_delay.observe
        """Count the seconds by which the event loop was late."""

    # --- from the data path ------------------------------------------------------------------

    def exchange_ended(self, exchange: Exchanged) -> None:
        """Count a request that has ended."""
        lease = exchange.lease
        replica, placement = ("", "") if lease is None else (lease.replica.id, lease.placement)
        key = (replica, exchange.status, placement, exchange.outcome)
        try:
            ended = self._ended[key]
        except KeyError:
            ended = self._ended[key] = _Ended(self._duration[exchange.outcome], self._first_byte[placement])
        ended.requests += 1
        ended.received += exchange.received
        ended.relayed += exchange.relayed
        started = exchange.started
        ended.duration.observe(exchange.ended - started)
        if exchange.first_byte:
            seconds = exchange.first_byte - started
            ended.first_bytes += 1
            ended.first_byte_sum += seconds
            ended.first_byte.observe(seconds)
        if exchange.sent:
            self._overhead.observe(exchange.sent - exchange.placed)

    def refused(self, status: int) -> None:
        """Count what a client sent that was not even a request."""
        self._refused[status] += 1

    # --- from the control path ---------------------------------------------------------------

    def probed(self, replica: str, seconds: float, *, ok: bool) -> None:
        """Count a health probe."""
        result = "ok" if ok else "failed"
        self._probes[replica, result] += 1
        self._probe_duration[result].observe(seconds)

    def slot_changed(self, before: Slot, after: Slot, now: float) -> None:
        """Count a slot that went from one state to another, at `now` in monotonic seconds."""
        if after.state is before.state:
            return
        slot, host = after.id, after.host
        self._transitions[host, before.state, after.state, after.cause or ""] += 1
        entered = self._entered.get(slot, now)
        self._entered[slot] = now
        if before.state is SlotState.DRAINING:
            self._steps[host, "drain"].observe(now - entered)
        elif before.state is SlotState.STOPPING:
            self._steps[host, "stop"].observe(now - entered)
        if after.state is SlotState.LAUNCHING:
            self._launched[slot] = now
        elif after.state is SlotState.READY and slot in self._launched:  # not adopted
            self._steps[host, "launch"].observe(now - self._launched.pop(slot))

    def host_command(self, host: str, action: str, seconds: float, outcome: str) -> None:
        """Count a command run on a host: start, inspect, stop or log; the outcome is ok or error."""
        self._commands[host, action, outcome].observe(seconds)

    # --- for whoever asks --------------------------------------------------------------------

    def first_bytes(self) -> dict[str, tuple[int, float]]:
        """Return how many answers of each replica have begun, and the seconds which that took in sum."""
        begun: dict[str, tuple[int, float]] = {}
        for (replica, *_), ended in self._ended.items():
            if replica:
                answers, seconds = begun.get(replica, (0, 0.0))
                begun[replica] = answers + ended.first_bytes, seconds + ended.first_byte_sum
        return begun

    def render(self) -> tuple[bytes, str]:
        """Return everything in Prometheus' text format, and its content type."""
        return "".join(self.pieces()).encode(), families.CONTENT_TYPE

    def pieces(self) -> Iterator[str]:
        """Give what `render` returns a family at a time, so that a large fleet's streams can go on in between."""
        yield from self._requests()
        yield from self._routing()
        yield from self._replicas_now()
        yield from self._fleet()
        yield from self._router()

    def _requests(self) -> Iterator[str]:
        received: defaultdict[str, int] = defaultdict(int)
        relayed: defaultdict[str, int] = defaultdict(int)
        for (replica, *_), ended in self._ended.items():
            if replica:
                received[replica] += ended.received
                relayed[replica] += ended.relayed
        yield families.REQUESTS.values(
            ((replica, status or "none", placement, outcome), ended.requests)
            for (replica, status, placement, outcome), ended in self._ended.items()
        )
        yield families.REFUSED.values(_labelled(self._refused))
        yield families.DURATION.histograms(_labelled(self._duration))
        yield families.FIRST_BYTE.histograms(_labelled(self._first_byte))
        yield families.CHUNK_GAP.histograms([((), self.chunk_gap)])
        yield families.OVERHEAD.histograms([((), self._overhead)])
        yield families.REQUEST_BYTES.values(_labelled(received))
        yield families.RESPONSE_BYTES.values(_labelled(relayed))
        yield families.REPLICA_FIRST_BYTE.summaries(
            ((replica,), answers, seconds) for replica, (answers, seconds) in self.first_bytes().items()
        )
        yield families.CLIENT_CONNECTIONS.values([((), self._sources.client_connections())])
        yield families.UPSTREAM_CONNECTIONS.values([((), self._sources.upstream_connections())])

    def _routing(self) -> Iterator[str]:
        balancer = self._sources.balancer
        sessions = self._sources.sessions
        yield families.ROUTED.values([((), balancer.routed)])
        yield families.AFFINITY_HITS.values([((), balancer.affinity_hits)])
        yield families.REJECTED.values([((), balancer.rejected)])
        moves: dict[str, int] = dict.fromkeys(_MOVES, 0)
        for (_, _, placement, _), ended in self._ended.items():
            if placement in moves:
                moves[placement] += ended.requests
        yield families.MOVES.values(((_MOVES[placement],), count) for placement, count in moves.items())
        yield families.PINS.values([((), len(sessions))])
        yield families.PINS_ENDED.values(
            [(("expired",), sessions.expired), (("evicted",), sessions.evicted), (("dropped",), sessions.dropped)]
        )

    def _replicas_now(self) -> Iterator[str]:
        replicas = list(self._sources.balancer.replicas.values())
        yield families.OUTSTANDING.values(((replica.id,), replica.outstanding) for replica in replicas)
        yield families.REPLICA_PINS.values(((replica.id,), replica.pins) for replica in replicas)
        yield families.PHASE.values(
            ((replica.id, phase), int(phase is replica.phase)) for replica in replicas for phase in Phase
        )
        yield families.PROBES.values(self._probes.items())
        yield families.PROBE_DURATION.histograms(_labelled(self._probe_duration))

    def _fleet(self) -> Iterator[str]:
        yield families.SLOT_STATE.values(
            ((slot.host, slot.id, state), int(state is slot.state))
            for slot in self._sources.slots()
            for state in SlotState
        )
        yield families.SLOT_TRANSITIONS.values(self._transitions.items())
        yield families.SLOT_DURATION.histograms(self._steps.items())
        yield families.HOST_COMMAND.histograms(self._commands.items())

    def _router(self) -> Iterator[str]:
        yield families.LOOP_DELAY.histograms([((), self._loop_delay)])
        yield families.TASKS.values([((), self._sources.tasks())])
        yield families.LOG_LOST.values([((), self._sources.log_records_lost())])
        compiled = "yes" if self._sources.compiled else "no"
        yield families.BUILD.values([((__version__, platform.python_version(), compiled), 1)])
        stats = process_stats.read()
        yield families.CPU.values([((), stats.cpu_seconds)])
        yield families.RESIDENT.values([((), stats.resident_bytes)])
        yield families.OPEN_FDS.values([((), stats.open_fds)])
        yield families.MAX_FDS.values([((), stats.max_fds)])
        yield families.START_TIME.values([((), stats.started_at)])


def _labelled(values: Mapping[_Key, _Value]) -> Iterator[tuple[tuple[_Key], _Value]]:
    """Make each key a sample's only label."""
    return (((key,), value) for key, value in values.items())
