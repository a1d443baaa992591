"""What all exchanges share: the parts of the router they use, their limits, and what is written only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine

    from pypto_serving_router.core.balancer import Placement, Replica
    from pypto_serving_router.core.lease import Lease
    from pypto_serving_router.core.routing import Routing
    from pypto_serving_router.core.session_sources import SessionSources
    from pypto_serving_router.errors import UpstreamError
    from pypto_serving_router.proxy.exchange import Exchange
    from pypto_serving_router.proxy.pool import ConnectionPool
    from pypto_serving_router.proxy.upstream import UpstreamConnection
    from pypto_serving_router.telemetry.histogram import Histogram

_MEMORY: Final = 8192  # descriptions of placements that are remembered


class Proxy:
    """What all exchanges share."""

    __slots__ = (
        "_described", "chunk_gap", "connect", "connect_retries", "max_body_size", "mint", "now", "on_fault", "pool",
        "record", "request_timeout", "routing", "sources", "spawn",
    )  # fmt: skip

    def __init__(
        self,
        *,
        routing: Routing,
        pool: ConnectionPool,
        connect: Callable[[Replica], Awaitable[UpstreamConnection]],
        now: Callable[[], float],
        mint: Callable[[], str],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_fault: Callable[[Replica, UpstreamError], None],
        record: Callable[[Exchange], None],
        chunk_gap: Histogram,
        request_timeout: float,
        max_body_size: int,
        connect_retries: int,
        sources: SessionSources | None = None,
    ) -> None:
        self.routing = routing
        self.pool = pool
        self.connect = connect
        """Opens a connection; raises ConnectFailed or OutOfDescriptors."""
        self.now = now
        self.mint = mint
        """Makes an id: 32 hex digits of OS randomness."""
        self.spawn = spawn
        self.on_fault = on_fault
        """A replica failed an exchange; `error.began` says whether its answer had begun."""
        self.record = record
        """An exchange has ended."""
        self.chunk_gap = chunk_gap
        """Seconds between two pieces of one answer."""
        self.request_timeout = request_timeout
        self.max_body_size = max_body_size
        self.connect_retries = connect_retries
        self.sources = sources
        """Where else to look for a session's id, if anywhere."""
        self._described: dict[tuple[Replica, Placement], bytes] = {}

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
