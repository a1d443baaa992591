"""The benchmark of the routing core: a short run of it, and the bounds that hold on any machine."""

from __future__ import annotations

from tests.support.bench import figures_of


def test_routing_stays_within_generous_bounds() -> None:
    """spec 3.7, 3.9, 8: a placement costs microseconds however many the replicas, a pin is small, nothing stalls."""
    figures = figures_of("bench.routing")

    placement = figures["placement, µs"]
    assert all(0 < value < 100 for value in placement.values()), placement
    few, many = (placement[f"{count} replicas, known session"] for count in (10, 1000))
    assert many < 10 * few  # a scan of the replicas would cost forty times as much

    assert 0 < figures["memory, bytes a pin"]["tracemalloc, in long use"] < 300
    assert all(value < 50 for value in figures["stalls, ms"].values())
    assert figures["session id in a body"]["µs, 2 KB"] < 200
    assert figures["health checks"]["µs of CPU a probe"] < 10_000
