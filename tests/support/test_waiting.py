"""The one place where tests wait."""

from __future__ import annotations

import itertools

import pytest
from tests.support.waiting import wait_until


def test_returns_the_first_true_value() -> None:
    """The harness waits for conditions, not for times (spec 10)."""
    values = itertools.chain([None, 0, ""], itertools.repeat("there"))

    assert wait_until(lambda: next(values)) == "there"


def test_says_what_did_not_come() -> None:
    """A deadline that passes fails with what was awaited and what was seen (spec 10)."""
    with pytest.raises(AssertionError, match=r"rain did not come about within 0\.01 s; last seen: 0"):
        wait_until(lambda: 0, timeout=0.01, what="rain")
