"""What a soak has seen: counts, latencies, and everything that should not have been."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BOUNDS = [0.0005 * 1.1**step for step in range(120)]  # 0.5 ms to 46 s, each a tenth above the last


class Latencies:
    """Durations in seconds, kept as counts so that an hour takes no more memory than a minute."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self.count = 0
        self.worst = 0.0

    def add(self, seconds: float) -> None:
        """Take one more."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self.count += 1
        self.worst = max(self.worst, seconds)

    def quantile(self, share: float) -> float:
        """Return a duration that `share` of all did not exceed, at most a tenth too high; 0 where there are none."""
        wanted = share * self.count
        seen = 0
        for bound, count in zip(_BOUNDS, self._counts, strict=False):
            seen += count
            if seen >= wanted:
                return min(bound, self.worst)
        return self.worst


class Ledger:
    """Counts by kind and outcome; a finding is written down at once."""

    def __init__(self, findings: Path) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.faults: Counter[str] = Counter()
        self.placements: Counter[str] = Counter()
        self.calm = Latencies()
        """What short requests took beyond the replica's own time for their tokens, where no replica was in trouble."""
        self.troubled = Latencies()
        """The same for the others."""
        self.findings = 0
        self._path = findings

    def count(self, kind: str, outcome: str) -> None:
        """One request of a kind has ended."""
        self.outcomes[kind, outcome] += 1

    def finding(self, what: str) -> None:
        """Something that must not happen has happened."""
        self.findings += 1
        if self.findings <= 1000:
            with self._path.open("a") as out:
                out.write(what + "\n")

    @property
    def requests(self) -> int:
        """How many requests have ended."""
        return self.outcomes.total()
