"""What the metrics read when somebody asks. It is not compiled: a dataclass that is looks up all its types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pypto_serving_router.core.balancer import Balancer
    from pypto_serving_router.core.sessions import SessionTable
    from pypto_serving_router.core.slot import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What another part knows already, and is not counted a second time."""

    balancer: Balancer
    sessions: SessionTable
    client_connections: Callable[[], int]
    tasks: Callable[[], int]
    upstream_connections: Callable[[], int]
    slots: Callable[[], Iterable[Slot]] = field(default=tuple)
    log_records_lost: Callable[[], int] = field(default=lambda: 0)
    compiled: bool = False
