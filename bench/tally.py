"""What a load generator counts, and what it makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Spread:
    """A sample of durations, in milliseconds."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float


def spread(nanoseconds: Sequence[int]) -> Spread:
    """Return the percentiles of a sample; of an empty one, zeros."""
    ordered = sorted(nanoseconds)
    if not ordered:
        return Spread(0, 0.0, 0.0, 0.0, 0.0)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6

    return Spread(len(ordered), at(0.5), at(0.9), at(0.99), ordered[-1] / 1e6)


@dataclass(frozen=True, slots=True)
class Report:
    """What came back."""

    seconds: float
    requests: int
    opened: int
    """Streams held open (only of `hold_streams`)."""
    events: int
    reads: int
    """Reads that carried events; fewer than events means that events came merged."""
    latency: Spread
    first_byte: Spread
    gap: Spread
    relay: Spread
    short: int
    """Streams that ended without their number of events."""
    broken: int
    """Connections that were lost during an answer."""
    refused: int
    """Answers other than 200."""
    anonymous: int
    """Answers without a session id."""
    errors: tuple[str, ...]

    @property
    def bad(self) -> int:
        """Answers that were not what they should be; any voids the figures."""
        return self.short + self.broken + self.refused + len(self.errors)

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Tally:
    """What the clients of one run note down."""

    started: int = 0
    answered: int = 0
    opened: int = 0
    events: int = 0
    reads: int = 0
    short: int = 0
    broken: int = 0
    lost: int = 0
    refused: int = 0
    anonymous: int = 0
    latency: list[int] = field(default_factory=list)
    first_byte: list[int] = field(default_factory=list)
    gap: list[int] = field(default_factory=list)
    relay: list[int] = field(default_factory=list)
    errors: set[str] = field(default_factory=set)

    def report(self, seconds: float) -> Report:
        return Report(
            seconds=seconds,
            requests=self.answered,
            opened=self.opened,
            events=self.events,
            reads=self.reads,
            latency=spread(self.latency),
            first_byte=spread(self.first_byte),
            gap=spread(self.gap),
            relay=spread(self.relay),
            short=self.short,
            broken=self.broken,
            refused=self.refused,
            anonymous=self.anonymous,
            errors=tuple(sorted(self.errors)[:5]),
        )
