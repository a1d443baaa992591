"""Connections to replicas, made when there is none to take from the pool.

All that waits on the way of a request is here, and is not compiled: mypyc's coroutines and Python's differ in how they
are cancelled.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from typing import TYPE_CHECKING, cast

from pypto_serving_router.errors import ConnectFailed, OutOfDescriptors
from pypto_serving_router.proxy.upstream import UpstreamConnection
from pypto_serving_router.telemetry.tls import tls_trouble

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from pypto_serving_router.core.balancer import Replica
    from pypto_serving_router.proxy.exchange import Exchange
    from pypto_serving_router.proxy.pool import ConnectionPool


class Connector:
    """Opens connections, which are then the pool's to count; `timeout` is in seconds for each.

    `tls` holds the contexts of the replicas reached over https.
    """

    def __init__(self, pool: ConnectionPool, *, timeout: float, tls: Mapping[str, ssl.SSLContext]) -> None:
        self._pool = pool
        self._timeout = timeout
        self._tls = tls

    async def connect(self, replica: Replica) -> UpstreamConnection:
        """Open a connection to `replica`.

        Raises:
            ConnectFailed: it was refused, timed out, or the replica's certificate is not to be trusted.
            OutOfDescriptors: this process has none left; the replica is not to blame.
        """
        context = self._tls[replica.id] if replica.scheme == "https" else None
        connection = UpstreamConnection(replica, self._pool)
        established = False
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.get_running_loop().create_connection(
                    lambda: cast("asyncio.Protocol", connection),
                    replica.host,
                    replica.port,
                    ssl=context,
                    server_hostname=replica.host if context is not None else None,
                )
            established = True
        except TimeoutError:
            raise ConnectFailed(f"no connection to {replica.url} within {self._timeout:g} s") from None
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
                self._pool.lost(connection)  # uvloop does not say so
        return connection


async def open_for(
    exchange: Exchange, replica: Replica, connect: Callable[[Replica], Awaitable[UpstreamConnection]]
) -> None:
    """Open a connection to `replica` and tell the exchange what came of it."""
    try:
        upstream = await connect(replica)
    except (ConnectFailed, OutOfDescriptors) as error:
        exchange.not_connected(error)
    except Exception as error:  # the last resort: whoever watches the task logs it
        exchange.not_connected(error)
        raise
    else:
        exchange.connected(upstream)
