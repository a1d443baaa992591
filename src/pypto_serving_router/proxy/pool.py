"""Connections to replicas that wait for their next exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypto_serving_router.core.balancer import Replica
    from pypto_serving_router.proxy.upstream import UpstreamConnection

_KEEP_IDLE: Final = 60.0  # seconds; engines close idle connections themselves, most after 5 to 75


class ConnectionPool:
    """Idle connections by replica, the youngest used first: the oldest are then let go.

    There is no limit on connections in use.
    """

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self._idle: dict[Replica, dict[UpstreamConnection, None]] = {}
        self._open: set[UpstreamConnection] = set()

    def take(self, replica: Replica) -> UpstreamConnection | None:
        """Return an idle connection to `replica`, if there is one."""
        idle = self._idle.get(replica)
        while idle:
            connection, _ = idle.popitem()
            if connection.open:
                return connection
        return None

    def give(self, connection: UpstreamConnection, now: float) -> None:
        """Keep a connection that has served its exchange."""
        connection.idle_since = now
        idle = self._idle.get(connection.replica)
        if idle is None:
            if connection.replica.removed:
                connection.close()
                return
            idle = self._idle[connection.replica] = {}
        idle[connection] = None

    def forget(self, replica: Replica) -> None:
        """Close the idle connections of a replica that has gone."""
        for connection in self._idle.pop(replica, {}):
            connection.close()

    def sweep(self) -> None:
        """Close connections that have been idle for long, the oldest first."""
        oldest = self._now() - _KEEP_IDLE
        for replica, idle in list(self._idle.items()):
            for connection in list(idle):
                if connection.idle_since > oldest:
                    break
                del idle[connection]
                connection.close()
            if not idle:
                del self._idle[replica]

    def close(self) -> None:
        """Close every idle connection."""
        for replica in list(self._idle):
            self.forget(replica)

    def made(self, connection: UpstreamConnection) -> None:
        """Count a connection that is open."""
        self._open.add(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        """Forget a connection that has closed; a second call does nothing."""
        self._open.discard(connection)
        idle = self._idle.get(connection.replica)
        if idle is not None:
            idle.pop(connection, None)

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """How many connections are idle."""
        return sum(map(len, self._idle.values()))

    def __repr__(self) -> str:
        return f"<ConnectionPool {self.open} open, {self.idle} idle>"
