"""Connections to replicas: made when needed, kept while idle."""

from __future__ import annotations

import asyncio
import errno
import ssl
from typing import TYPE_CHECKING, Final, cast

from pypto_serving_router.errors import ConnectFailed, OutOfDescriptors
from pypto_serving_router.proxy.upstream import UpstreamConnection
from pypto_serving_router.telemetry.tls import tls_trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pypto_serving_router.core.balancer import Replica

_KEEP_IDLE: Final = 60.0  # seconds; engines close idle connections themselves, most after 5 to 75


class ConnectionPool:
    """Idle connections by replica, the youngest used first: the oldest are then let go.

    There is no limit on connections in use. `tls` holds the contexts of the replicas reached over https.
    """

    def __init__(self, *, connect_timeout: float, now: Callable[[], float], tls: Mapping[str, ssl.SSLContext]) -> None:
        self._connect_timeout = connect_timeout
        self._now = now
        self._tls = tls
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

    async def connect(self, replica: Replica) -> UpstreamConnection:
        """Open a connection to `replica`.

        Raises:
            ConnectFailed: it was refused, timed out, or the replica's certificate is not to be trusted.
            OutOfDescriptors: this process has none left; the replica is not to blame.
        """
        context = self._tls[replica.id] if replica.scheme == "https" else None
        connection = UpstreamConnection(replica, self)
        established = False
        try:
            async with asyncio.timeout(self._connect_timeout):
                await asyncio.get_running_loop().create_connection(
                    lambda: cast("asyncio.Protocol", connection),
                    replica.host,
                    replica.port,
                    ssl=context,
                    server_hostname=replica.host if context is not None else None,
                )
            established = True
        except TimeoutError:
            raise ConnectFailed(f"no connection to {replica.url} within {self._connect_timeout:g} s") from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise OutOfDescriptors("this router has no file descriptor left for a connection") from error
            refused = isinstance(error, ConnectionRefusedError)
            why = tls_trouble(error) if isinstance(error, ssl.SSLError) else error
            raise ConnectFailed(f"no connection to {replica.url}: {why}", refused=refused) from error
        except UnicodeError as error:  # a part of the name is empty or too long
            raise ConnectFailed(f"no connection to {replica.url}: {error}") from error
        finally:
            if connection.open and not established:  # it was made in the very turn in which it was given up
                connection.close()
                self.lost(connection)  # uvloop does not say so
        return connection

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
