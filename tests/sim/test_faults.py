"""The faults of a simulated replica."""

from __future__ import annotations

import re

import pytest

from pypto_serving_router.sim.faults import BEFORE_HEAD, Faults, parse


def test_the_default_is_a_sound_replica() -> None:
    """Without faults a replica is well (spec 10)."""
    assert Faults() == Faults(health="ok", break_with=None, break_after=BEFORE_HEAD, ignore_sigterm=False)


def test_changes_leave_the_rest() -> None:
    """Only the named faults change (spec 10)."""
    assert parse({"break_with": "rst"}, Faults(health="hang")) == Faults(health="hang", break_with="rst")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"brake_with": "rst"}, "brake_with"),
        ({"break_with": "axe"}, "axe"),
        ({"break_after": -2}, ">= -1"),
        ({"status": 200}, ">= 400"),
        ({"trickle": -1}, ">= 0"),
    ],
)
def test_wrong_changes_are_refused(changes: dict[str, object], told: str) -> None:
    """An unknown fault or a value out of range is refused with a reason (spec 10)."""
    with pytest.raises(ValueError, match=re.escape(told)):
        parse(changes, Faults())
