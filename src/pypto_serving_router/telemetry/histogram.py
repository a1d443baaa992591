"""Counts of values by size."""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from typing import TypeAlias

Bounds: TypeAlias = tuple[float, ...]


class Histogram:
    """How many values fell between which bounds, and their sum.

    The bucket of the last value is tried first, since most values are like the one before.
    """

    __slots__ = ("_above", "_bucket", "_up_to", "bounds", "counts", "sum")

    def __init__(self, bounds: Bounds) -> None:
        """Take the upper bounds of all buckets but the last, rising."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._bucket = 0
        self._above = -inf
        self._up_to = bounds[0]

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound is not below it."""
        if not self._above < value <= self._up_to:
            self._turn_to(value)
        self.counts[self._bucket] += 1
        self.sum += value

    def _turn_to(self, value: float) -> None:
        bounds = self.bounds
        self._bucket = bucket = bisect_left(bounds, value)
        self._above = bounds[bucket - 1] if bucket else -inf
        self._up_to = bounds[bucket] if bucket < len(bounds) else inf

    def __repr__(self) -> str:
        return f"<Histogram {sum(self.counts)} values, sum {self.sum:g}>"
