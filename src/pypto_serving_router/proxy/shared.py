"""What all exchanges share: the parts of the router they use, their limits, and what is written only once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from pypto_serving_router.core.balancer import Lease, Placement, Replica
    from pypto_serving_router.core.routing import Routing
    from pypto_serving_router.core.session_sources import SessionSources
    from pypto_serving_router.errors import UpstreamError
    from pypto_serving_router.proxy.exchange import Exchange
    from pypto_serving_router.proxy.pool import ConnectionPool

_MEMORY: Final = 8192  # descriptions of placements that are remembered


@dataclass(slots=True, kw_only=True)
class Proxy:
    """What all exchanges share."""

    routing: Routing
    pool: ConnectionPool
    now: Callable[[], float]
    mint: Callable[[], str]
    """Makes an id: 32 hex digits of OS randomness."""
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    on_fault: Callable[[Replica, UpstreamError], None]
    """A replica failed an exchange; `error.began` says whether its answer had begun."""
    record: Callable[[Exchange], None]
    """An exchange has ended."""
    chunk_gap: Callable[[float], None]
    """Seconds between two pieces of one answer."""
    request_timeout: float
    max_body_size: int
    connect_retries: int
    sources: SessionSources | None = None
    """Where else to look for a session's id, if anywhere."""
    _described: dict[tuple[Replica, Placement], bytes] = field(default_factory=dict)

    def describe(self, lease: Lease) -> bytes:
        """Return the header lines that tell a client which replica answered, and why that one."""
        key = (lease.replica, lease.placement)
        lines = self._described.get(key)
        if lines is None:
            if len(self._described) >= _MEMORY:  # replicas come and go
                self._described.clear()
            lines = f"X-Router-Replica: {lease.replica.id}\r\nX-Router-Placement: {lease.placement}\r\n".encode()
            self._described[key] = lines
        return lines
