"""What a moment on the monotonic clock was on the wall."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SET: Final = 0.5  # seconds; by more than that, the system's clock was set, and not merely read between two ticks


class WallClock:
    """Translates, so that one moment reads the same every time, unless the system's clock is set."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        """`now` is monotonic, `wall` gives the seconds since the epoch."""
        self._now = now
        self._wall = wall
        self._offset = wall() - now()

    def __call__(self, moment: float) -> str:
        """Return the time of day of a monotonic moment."""
        offset = self._wall() - self._now()
        if abs(offset - self._offset) > _SET:
            self._offset = offset
        return iso(moment + self._offset)


def iso(epoch: float) -> str:
    """Return seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
