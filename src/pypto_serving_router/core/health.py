"""Whether a replica is healthy: judged from its probes and from how its exchanges fail."""

from __future__ import annotations

from typing import Final

FALL: Final = 2
"""Failures in a row that take a replica out of rotation: one alone may be a lost packet."""

RISE: Final = 1
"""Successes in a row that bring it back: a replica that answers 200 has its engine running."""


class Health:
    """The judgement on one replica.

    A probe's result goes to `record`, and so does, as a failure, an exchange whose connection broke during its
    answer. A refused or timed-out connect, or a connection broken before its answer began, goes to `down`.
    An answer of whatever status is the application's and goes nowhere.
    """

    __slots__ = ("_against", "healthy")

    def __init__(self, *, healthy: bool) -> None:
        """Begin healthy (a static replica) or not (an owned one)."""
        self.healthy = healthy
        self._against = 0  # results in a row that contradict the judgement

    def record(self, *, success: bool) -> bool:
        """Take one result into account; return whether it changed the judgement."""
        if success is self.healthy:
            self._against = 0
            return False
        self._against += 1
        if self._against < (FALL if self.healthy else RISE):
            return False
        self.healthy = success
        self._against = 0
        return True

    def down(self) -> bool:
        """Take the replica for unhealthy at once; return whether that changed the judgement."""
        changed = self.healthy
        self.healthy = False
        self._against = 0
        return changed

    def __repr__(self) -> str:
        state = "healthy" if self.healthy else "unhealthy"
        return f"<Health {state}, {self._against} against>"
