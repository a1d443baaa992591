"""Letting one of a flood of like records through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_MEMORY: Final = 1024  # keys; the ones let through longest ago are forgotten first


class Floodgate:
    """Says which of many like events are worth a record, and counts the rest."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._open_at: dict[Hashable, float] = {}
        self._held_back: dict[Hashable, int] = {}

    def once_per(self, key: Hashable, seconds: float) -> int | None:
        """Return how many of `key` were held back since the last that was let through; None to hold this one back."""
        now = self._now()
        if self._open_at.get(key, now) > now:
            self._held_back[key] += 1
            return None
        self._open_at.pop(key, None)
        self._open_at[key] = now + seconds
        held_back = self._held_back.get(key, 0)
        self._held_back[key] = 0
        if len(self._open_at) > _MEMORY:
            forgotten = next(iter(self._open_at))
            del self._open_at[forgotten], self._held_back[forgotten]
        return held_back
