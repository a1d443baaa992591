"""A pool with its connector on an event loop of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.errors import ConnectFailed
from pypto_serving_router.proxy.connector import Connector
from pypto_serving_router.proxy.pool import ConnectionPool

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Coroutine

    from pypto_serving_router.proxy.upstream import UpstreamConnection

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


class World:
    """A pool on an event loop of its own, a clock, and a listener that never says anything."""

    def __init__(self, runner: asyncio.Runner, listener: socket.socket) -> None:
        self._runner = runner
        self.listener = listener
        self.time = 1000.0
        self.port: int = listener.getsockname()[1]
        self.tls: dict[str, ssl.SSLContext] = {}
        self.pool = ConnectionPool(now=lambda: self.time)
        self.connector = Connector(self.pool, timeout=0.5, tls=self.tls)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop."""
        return self._runner.run(work)

    def replica(self, host: str = "127.0.0.1", port: int | None = None, *, scheme: str = "http") -> Replica:
        """Describe a replica, at the listener's port if none is given."""
        return Replica(ReplicaId("r"), host, self.port if port is None else port, scheme=scheme, ready=True)

    def connect(self, replica: Replica) -> UpstreamConnection:
        """Connect to a replica."""
        connection: UpstreamConnection = self.run(self.connector.connect(replica))
        return connection

    def refusal(self, replica: Replica) -> ConnectFailed:
        """Connect to a replica in vain, and see that nothing is left of it."""
        with pytest.raises(ConnectFailed) as caught:
            self.connect(replica)
        self.settle()
        assert (self.pool.open, self.pool.idle) == (0, 0)
        return caught.value

    def give(self, *connections: UpstreamConnection) -> None:
        """Give connections back, as after an exchange."""
        for connection in connections:
            connection.release()
            self.pool.give(connection, self.time)

    def settle(self) -> None:
        """Let what is under way on the loop come to its end."""

        async def turns() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        self.run(turns())
