"""Waiting for a condition with a deadline: the one place where tests sleep."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, timeout: float = 30.0, what: str = "the condition") -> T:
    """Return the first true value of `condition`, asked more and more rarely.

    Raises:
        AssertionError: it wasn't true within `timeout` seconds; `what` says what was awaited.
    """
    deadline = time.monotonic() + timeout
    pause = 0.001
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about within {timeout:g} s; last seen: {value!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.025)
    return value
