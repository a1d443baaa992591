"""The last things that happened to replicas and slots, for the dashboard."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT = 256


class Recent:
    """Remembers the records that name a replica or a slot, whatever level is logged."""

    def __init__(self, kept: int = KEPT) -> None:
        self._records: deque[tuple[int, dict[str, Any]]] = deque(maxlen=kept)
        self._last = 0

    def note(self, record: Mapping[str, Any]) -> None:
        """Remember a record, if it is about a replica or a slot."""
        if "replica" in record or "slot" in record:
            self._last += 1
            self._records.append((self._last, {name: _plain(value) for name, value in record.items()}))

    def latest(self, count: int) -> list[dict[str, Any]]:
        """Return up to `count` records, the latest last, each with its `number` since the start of the router."""
        records = list(self._records)[-count:] if count > 0 else []
        return [{"number": number, **record} for number, record in records]


def _plain(value: object) -> str | float | None:
    """Return a value as JSON can hold it."""
    return value if value is None or isinstance(value, str | int | float) else str(value)
