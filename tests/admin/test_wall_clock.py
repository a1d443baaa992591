"""Monotonic moments on the wall's clock."""

from pypto_serving_router.admin.wall_clock import WallClock, iso


def test_steady() -> None:
    """One moment reads the same however often it is asked for, though two clocks are never read at once (spec 6.2)."""
    monotonic, wall = 100.0, 1_700_000_000.0
    clock = WallClock(lambda: monotonic, lambda: wall)
    first = clock(90.0)
    for jitter in (0.0004, -0.002, 0.1, -0.4):
        monotonic += 10
        wall = 1_700_000_000.0 + monotonic - 100.0 + jitter

        assert clock(90.0) == first == "2023-11-14T22:13:10.000Z"


def test_set() -> None:
    """When the system's clock is set, times follow it (spec 6.2)."""
    wall = 1_700_000_000.0
    clock = WallClock(lambda: 100.0, lambda: wall)
    wall += 3600

    assert clock(100.0) == iso(wall) == "2023-11-14T23:13:20.000Z"
