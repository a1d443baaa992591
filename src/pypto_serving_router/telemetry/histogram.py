"""Counts of values by size."""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from typing import TypeAlias

from mypy_extensions import i64  # noqa: TC002 - mypyc has to see it

Bounds: TypeAlias = tuple[float, ...]


class Histogram:
    """How many values fell between which bounds, and their sum.

    The bucket of the last value is tried first, since most values are like the one before, and is counted apart.
    """

    __slots__ = ("_above", "_bucket", "_counts", "_here", "_up_to", "bounds", "sum")

    def __init__(self, bounds: Bounds) -> None:
        """Take the upper bounds of all buckets but the last, rising."""
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)
        self._bucket = 0
        self._here: i64 = 0  # counted in that bucket, and not yet in the list
        self._above = -inf
        self._up_to = bounds[0]

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound is not below it."""
        if not self._above < value <= self._up_to:
            self._turn_to(value)
        self._here += 1
        self.sum += value

    @property
    def counts(self) -> list[int]:
        """How many values each bucket holds."""
        self._counts[self._bucket] += self._here
        self._here = 0
        return self._counts

    def _turn_to(self, value: float) -> None:
        self._counts[self._bucket] += self._here
        self._here = 0
        bounds = self.bounds
        self._bucket = bucket = bisect_left(bounds, value)
        self._above = bounds[bucket - 1] if bucket else -inf
        self._up_to = bounds[bucket] if bucket < len(bounds) else inf

    def __repr__(self) -> str:
        return f"<Histogram {sum(self.counts)} values, sum {self.sum:g}>"
