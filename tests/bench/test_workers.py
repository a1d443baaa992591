"""The spike of a router of several processes: it works, and no pin is ever read half written."""

from __future__ import annotations

from tests.support.bench import figures_of


def test_words_in_shared_memory_are_whole() -> None:
    """What the plan rests on: four processes write and read the same pins, and none sees what nobody wrote."""
    figures = figures_of("bench.workers")

    assert figures["four processes on the same words"] == {"look-ups": 800, "wrong answers": 0}
    assert figures["shared memory"]["pins lost to full sets, %"] < 5
    assert 0 < figures["shared memory"]["find and renew, ns"] < 100_000
    assert 0 < figures["messages"]["round trip to the owner of a pin, µs"] < 10_000
