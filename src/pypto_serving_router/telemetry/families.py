"""What `/metrics` shows: each family's name, kind, labels and meaning, and the text it is written in.

The text is written here rather than by a client library because one takes 7 µs a sample: at a thousand replicas a
scrape would hold up every stream for a seventh of a second. Templates take a tenth of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    from pypto_serving_router.telemetry.histogram import Histogram

    Labels: TypeAlias = tuple[object, ...]

PREFIX: Final = "pypto_router_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: what it is called and what it means. `labels` are in the order of a sample's values."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    labels: tuple[str, ...] = ()

    def values(self, samples: Iterable[tuple[Labels, float]]) -> str:
        """Write counters or gauges: the values of the labels, and the number."""
        template = f"{self.name}{_selector(self.labels)} %s\n"
        return self._with_head(template % (*labels, value) for labels, value in samples)

    def summaries(self, samples: Iterable[tuple[Labels, int, float]]) -> str:
        """Write a count and a sum for each of the labels' values."""
        selector = _selector(self.labels)
        template = f"{self.name}_count{selector} %s\n{self.name}_sum{selector} %s\n"
        return self._with_head(template % (*labels, count, *labels, total) for labels, count, total in samples)

    def histograms(self, samples: Iterable[tuple[Labels, Histogram]]) -> str:
        """Write a histogram for each of the labels' values."""
        return self._with_head(line for labels, histogram in samples for line in self._histogram(labels, histogram))

    def _histogram(self, labels: Labels, histogram: Histogram) -> Iterator[str]:
        bucket = f"{self.name}_bucket{_selector((*self.labels, 'le'))} %s\n"
        total = 0
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            total += count
            yield bucket % (*labels, bound, total)
        selector = _selector(self.labels)
        ends = f"{self.name}_count{selector} %s\n{self.name}_sum{selector} %s\n"
        yield ends % (*labels, total, *labels, histogram.sum)

    def _with_head(self, samples: Iterable[str]) -> str:
        """Return the family with its samples, or nothing if it has none."""
        lines = "".join(samples)
        return lines and f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n{lines}"


def _selector(labels: Sequence[str]) -> str:
    """Write the labels of a sample, with a place for each value. No value has a character that needs escaping."""
    return "{" + ",".join(f'{name}="%s"' for name in labels) + "}" if labels else ""


# --- requests --------------------------------------------------------------------------------

REQUESTS = Family(
    PREFIX + "requests_total",
    "counter",
    "Requests under /v1/ that have ended. The code is what the client was given, none if it left before any; "
    "replica and placement are empty where no replica was chosen.",
    ("replica", "code", "placement", "outcome"),
)
REFUSED = Family(
    PREFIX + "malformed_requests_total",
    "counter",
    "Bytes from clients that were not a request the router understands, by the code they were refused with.",
    ("code",),
)
DURATION = Family(
    PREFIX + "request_duration_seconds",
    "histogram",
    "From the head of a request to the end of its answer.",
    ("outcome",),
)
FIRST_BYTE = Family(
    PREFIX + "time_to_first_byte_seconds",
    "histogram",
    "From the head of a request to the head of its answer; affinity pays off by this being lower.",
    ("placement",),
)
CHUNK_GAP = Family(
    PREFIX + "chunk_gap_seconds",
    "histogram",
    "Between two pieces of one answer as the replica sent them: for streamed answers, the time for each token.",
)
OVERHEAD = Family(
    PREFIX + "overhead_seconds",
    "histogram",
    "What the router itself added to a request before it was sent on.",
)
REQUEST_BYTES = Family(
    PREFIX + "request_body_bytes_total", "counter", "Bytes of request bodies, by the replica chosen.", ("replica",)
)
RESPONSE_BYTES = Family(
    PREFIX + "response_body_bytes_total", "counter", "Bytes of answers' bodies relayed from a replica.", ("replica",)
)
CLIENT_CONNECTIONS = Family(PREFIX + "client_connections", "gauge", "Open connections from clients.")
UPSTREAM_CONNECTIONS = Family(
    PREFIX + "upstream_connections", "gauge", "Open connections to replicas, the idle ones included."
)

# --- sessions and routing --------------------------------------------------------------------

ROUTED = Family(PREFIX + "routed_total", "counter", "POSTs that were given a replica.")
AFFINITY_HITS = Family(PREFIX + "affinity_hits_total", "counter", "POSTs that went to the replica of their session.")
REJECTED = Family(PREFIX + "rejected_total", "counter", "POSTs that found no routable replica.")
MOVES = Family(
    PREFIX + "session_moves_total",
    "counter",
    "Requests that left the replica of their session: it was too far behind (slack) or not routable (unroutable).",
    ("reason",),
)
PINS = Family(PREFIX + "pins", "gauge", "Sessions pinned to a replica.")
PINS_ENDED = Family(
    PREFIX + "pins_ended_total",
    "counter",
    "Pins forgotten: after the time to live (expired), at the cap (evicted), or with their replica (dropped).",
    ("reason",),
)

# --- replicas --------------------------------------------------------------------------------

OUTSTANDING = Family(PREFIX + "replica_outstanding", "gauge", "Requests in flight to a replica.", ("replica",))
REPLICA_PINS = Family(PREFIX + "replica_pins", "gauge", "Sessions pinned to a replica.", ("replica",))
PHASE = Family(
    PREFIX + "replica_phase", "gauge", "1 for the phase a replica is in, 0 for the others.", ("replica", "phase")
)
REPLICA_FIRST_BYTE = Family(
    PREFIX + "replica_time_to_first_byte_seconds",
    "summary",
    "From the head of a request to the head of its answer, by replica.",
    ("replica",),
)
PROBES = Family(PREFIX + "probes_total", "counter", "Health probes, by result (ok or failed).", ("replica", "result"))
PROBE_DURATION = Family(PREFIX + "probe_duration_seconds", "histogram", "How long health probes took.", ("result",))

# --- the fleet -------------------------------------------------------------------------------

SLOT_STATE = Family(
    PREFIX + "slot_state", "gauge", "1 for the state a slot is in, 0 for the others.", ("host", "slot", "state")
)
SLOT_TRANSITIONS = Family(
    PREFIX + "slot_transitions_total",
    "counter",
    "Slots that went from one state to another, and why: launches end in launching (replacements with the cause "
    "replacement), losses are the cause lost, stops that could not be confirmed end in unconfirmed.",
    ("host", "from", "to", "cause"),
)
SLOT_DURATION = Family(
    PREFIX + "slot_step_seconds",
    "histogram",
    "How long a launch took to become ready (launch), a drain to end (drain), a stop to be settled (stop).",
    ("host", "step"),
)
HOST_COMMAND = Family(
    PREFIX + "host_command_seconds",
    "histogram",
    "How long the commands on a host took (start, inspect, inspect-all, stop, log), over ssh or locally; "
    "the outcome is error for one that did not demonstrably run to its end.",
    ("host", "action", "outcome"),
)

# --- the router itself -----------------------------------------------------------------------

LOOP_DELAY = Family(
    PREFIX + "loop_delay_seconds",
    "histogram",
    "How late the event loop was, sampled a few times a second: every stream waits that long.",
)
TASKS = Family(
    PREFIX + "tasks",
    "gauge",
    "Tasks of the event loop: a steady number, one for each probe and each connect under way, and some for the fleet.",
)
LOG_LOST = Family(PREFIX + "log_records_lost_total", "counter", "Log records dropped because stderr did not take them.")
BUILD = Family(
    PREFIX + "build_info", "gauge", "Always 1; which version this is, and whether its data path is compiled.",
    ("version", "python", "compiled"),
)  # fmt: skip
CPU = Family("process_cpu_seconds_total", "counter", "User and system CPU time spent.")
RESIDENT = Family("process_resident_memory_bytes", "gauge", "Resident memory size.")
OPEN_FDS = Family("process_open_fds", "gauge", "Open file descriptors.")
MAX_FDS = Family("process_max_fds", "gauge", "The most file descriptors this process may open.")
START_TIME = Family("process_start_time_seconds", "gauge", "When the process started, in seconds since the epoch.")

FAMILIES: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))
"""Every family, in the order in which they are shown."""


QUESTIONS: Final = {
    "Does affinity work?": f"rate({AFFINITY_HITS.name}[5m]) / rate({ROUTED.name}[5m])",
    "What is it worth?": f"histogram_quantile(0.5, sum by (le, placement) (rate({FIRST_BYTE.name}_bucket[5m])))",
    "Why do sessions move?": f"sum by (reason) (rate({MOVES.name}[5m]))",
    "Which replica fails requests?": f'sum by (replica, outcome) (rate({REQUESTS.name}{{outcome!="complete"}}[5m]))',
    "Which replica is slow?": f"rate({REPLICA_FIRST_BYTE.name}_sum[5m]) / rate({REPLICA_FIRST_BYTE.name}_count[5m])",
    "Are replicas being lost?": f'sum by (host) (increase({SLOT_TRANSITIONS.name}{{cause="lost"}}[1h]))',
    "Does a slot need an operator?": f'{SLOT_STATE.name}{{state=~"unconfirmed|abandoned"}} == 1',
    "Is the router itself the brake?": f"histogram_quantile(0.99, rate({LOOP_DELAY.name}_bucket[5m]))",
}
"""What operators ask, and the PromQL that answers it."""


def reference() -> str:
    """Return the reference page of the metrics, in Markdown."""
    lines = [
        "# Metrics",
        "",
        "<!-- Generated from src/pypto_serving_router/telemetry/families.py. -->",
        "",
        "`GET /metrics` answers in Prometheus' text format.",
        "Counters start at 0 with the router, and a replica's are kept when it goes:",
        "its name is that of a static replica or of a slot, so there are no more names than the fleet file has,",
        "and a counter never goes back.",
        "Gauges are there for the replicas in the table.",
        "",
        "Counting costs a request 0.7 µs and each piece of an answer 0.14 µs, both on the data path;",
        "text is made only when somebody asks.",
        "",
        "| Metric | Kind | Labels | Meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{family.name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels) or 'none'} "
        f"| {family.help} |"
        for family in FAMILIES
    ]
    lines += ["", "## Questions, and the query that answers each", "", "| Question | PromQL |", "|---|---|"]
    lines += [f"| {question} | `{query.replace('|', chr(92) + '|')}` |" for question, query in QUESTIONS.items()]
    return "\n".join(lines) + "\n"
