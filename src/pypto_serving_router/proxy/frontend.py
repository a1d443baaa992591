"""Every client connection, and the sweep that holds them to their deadlines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from pypto_serving_router.proxy.client import ClientConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypto_serving_router.core.head import RequestHead
    from pypto_serving_router.proxy.client import Handler, Limits


class Frontend:
    """Every client connection, and the sweep that holds them to their deadlines.

    `open` makes the handler of a request; `on_refused` is told the status of what was not a request.
    """

    def __init__(
        self,
        *,
        open: Callable[[ClientConnection, RequestHead], Handler],  # noqa: A002 - the verb of its use
        limits: Limits,
        now: Callable[[], float],
        on_refused: Callable[[int], None],
    ) -> None:
        self.open = open
        self.limits = limits
        self.idle_timeout = limits.idle_timeout
        self.now = now
        self.on_refused = on_refused
        self.connections: set[ClientConnection] = set()
        self.closing = False
        self.refused = 0
        self.empty = asyncio.Event()
        """Set when the last connection of a closing frontend has gone."""

    def connect(self) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        return cast("asyncio.Protocol", ClientConnection(self))

    def sweep(self) -> None:
        """Act on every deadline that has passed. To be called a few times a second."""
        now = self.now()
        for connection in [c for c in self.connections if c.due <= now]:
            connection.expire(now)
        for connection in [c for c in self.connections if c.paused]:
            connection.check_paused()

    def forget(self, connection: ClientConnection) -> None:
        """Drop a connection that has closed."""
        self.connections.discard(connection)
        if self.closing and not self.connections:
            self.empty.set()

    def handlers(self) -> list[Handler]:
        """Return the handlers of all requests under way."""
        return [c.handler for c in self.connections if c.handler is not None]

    def close(self) -> None:
        """Take no more requests; let those under way end."""
        self.closing = True
        if not self.connections:
            self.empty.set()
        for connection in list(self.connections):
            connection.close_idle()

    def abort(self) -> None:
        """Drop every connection."""
        for connection in list(self.connections):
            connection.transport.abort()

    def __repr__(self) -> str:
        return f"<Frontend {len(self.connections)} connections{' closing' if self.closing else ''}>"
