"""The measures by name: what each is called, what it prints, and how it wants to be run."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from bench.measures.clients import leaving, slow_readers
from bench.measures.context import Context, Figures
from bench.measures.faults import faults
from bench.measures.requests import big, big_body, latency, request, request_body
from bench.measures.saturation import saturation
from bench.measures.streams import few, first_byte, idle, idle_many, spread_out, together
from bench.proxy import Proxy


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure."""

    run: Callable[[Context, Proxy], Awaitable[Figures]]
    title: str
    columns: tuple[str, ...]
    """The figures to print, the chief one first."""
    fresh: bool = False
    """Wants a proxy that has done nothing yet, alone on the machine."""
    repeated: bool = True
    """Is noise enough to be worth several rounds."""
    direct: bool = True
    """Says something of the path without a proxy."""
    added: tuple[str, ...] = ()
    """Figures that are compared after those of the direct path in the same round are taken off."""
    more_is_better: bool = False


_REQUEST = ("cpu_us", "user_us", "rps", "lat_p50", "lat_p99", "generator_us", "others_pct")
_EVENT = ("cpu_us", "user_us", "events_s", "merged", "gap_p99", "relay_p50", "relay_p99", "generator_us", "others_pct")
_IDLE = ("rss_kib_stream", "streams", "closed", "closed_after_s", "idle_cpu_pct", "rss_mib")

MEASURES: Mapping[str, Measure] = {
    "req": Measure(request, "A request of 2 KiB, session in the header, 32 connections", _REQUEST),
    "reqbody": Measure(request_body, "A request of 2 KiB, session in the body, 32 connections", _REQUEST),
    "big": Measure(big, "A request of 200 KiB, session in the header, 8 connections", _REQUEST),
    "bigbody": Measure(big_body, "A request of 200 KiB, session in the body, 8 connections", _REQUEST),
    "ssebatch": Measure(together, "An event of a stream: 200 streams, one each 20 ms, all at once", _EVENT),
    "sse": Measure(
        spread_out, "An event of a stream: 200 streams, one each 20 ms, spread out", _EVENT, added=("relay_p50",)
    ),
    "sselow": Measure(
        few, "An event of a stream: 20 streams, one each 20 ms, spread out", _EVENT, added=("relay_p50",)
    ),
    "lat": Measure(
        latency,
        "Latency at 200 requests/s over 4 connections, ms",
        ("lat_p50", "lat_p99", "cpu_us", "others_pct"),
        added=("lat_p50", "lat_p99"),
    ),
    "ttft": Measure(
        first_byte,
        "First body byte of a stream at 100 streams/s over 4 connections, ms",
        ("ttfb_p50", "ttfb_p99", "lat_p50", "cpu_us", "others_pct"),
        added=("ttfb_p50", "ttfb_p99"),
    ),
    "faults": Measure(faults, "Behaviour under faults", (), repeated=False, direct=False),
    "slow": Measure(
        slow_readers,
        "Clients that stop reading, 160 MB offered to each: memory grown, MiB a stream",
        ("grown_mib_stream", "readers"),
        repeated=False,
        direct=False,
    ),
    "leave": Measure(
        leaving,
        "Clients that leave: until the replica's connection is closed, ms",
        ("midway_p50", "midway_max", "quiet_p50", "quiet_max", "before_head_p50", "before_head_max"),
        repeated=False,
        direct=False,
    ),
    "idle": Measure(idle, "Open idle streams: memory of each, KiB", _IDLE, fresh=True, repeated=False, direct=False),
    "idle10k": Measure(
        idle_many,
        "Many open idle streams: memory of each, KiB",
        _IDLE,
        fresh=True,
        repeated=False,
        direct=False,
    ),
    "sat": Measure(
        saturation,
        "Saturation: requests a second of one core, 64 connections",
        ("rps", "cpu_us", "busy_pct", "lat_p50", "lat_p99", "by"),
        fresh=True,
        more_is_better=True,
    ),
}
