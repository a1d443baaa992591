"""One of a flood of like records."""

from pypto_serving_router.telemetry.floodgate import Floodgate


def test_once_per_key() -> None:
    """The first of a kind is let through, then one each period, with the number held back (spec 9)."""
    time = 0.0
    gate = Floodgate(lambda: time)

    assert gate.once_per("a", 10) == 0
    assert gate.once_per("a", 10) is None
    assert gate.once_per("b", 10) == 0
    time = 9.9
    assert gate.once_per("a", 10) is None
    time = 10.0
    assert gate.once_per("a", 10) == 2
    assert gate.once_per("a", 10) is None
    time = 20.0
    assert gate.once_per("a", 10) == 1


def test_bounded() -> None:
    """However many keys there are, memory is bounded (spec 9)."""
    gate = Floodgate(lambda: 0.0)

    for key in range(10_000):
        assert gate.once_per(key, 60) == 0

    assert len(gate._open_at) == len(gate._held_back) <= 1024
    assert gate.once_per(9_999, 60) is None
