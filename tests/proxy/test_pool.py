"""The pool: real connections on both event loops, and which of them are kept."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trustme
import uvloop
from tests.support.ports import refusing_port, swallowing_port
from tests.support.waiting import wait_until

from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.errors import ConnectFailed, OutOfDescriptors
from pypto_serving_router.proxy.connector import Connector
from pypto_serving_router.proxy.pool import ConnectionPool

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

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

    def settle(self) -> None:
        """Let what is under way on the loop come to its end."""

        async def turns() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        self.run(turns())


@pytest.fixture(params=LOOPS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Give a world on each kind of event loop, and see that no connection is left open."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        asyncio.Runner(loop_factory=LOOPS[request.param]) as runner,
    ):
        world = World(runner, listener)
        yield world
        world.pool.close()
        world.settle()
        left = list(world.pool._open)
        for connection in left:  # uvloop cannot be closed before them where warnings are errors
            connection.close()
        world.settle()
        assert not left


def give(world: World, *connections: UpstreamConnection) -> None:
    """Give connections back, as after an exchange."""
    for connection in connections:
        connection.release()
        world.pool.give(connection, world.time)


# --- connecting -----------------------------------------------------------------------------


def test_a_connection_is_counted_while_it_is_open(world: World) -> None:
    """spec 4.9, P9: open connections are counted, from when they are made until they have closed."""
    first, second = (world.connect(world.replica()) for _ in range(2))
    assert (world.pool.open, world.pool.idle) == (2, 0)
    give(world, first)
    assert repr(world.pool) == "<ConnectionPool 2 open, 1 idle>"

    second.close()
    world.settle()

    assert (world.pool.open, world.pool.idle) == (1, 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_refused_connection(world: World, host: str) -> None:
    """spec 4.6, 4.7: a refusal is told from other failures, at every address of a name: nothing was sent."""
    with refusing_port() as port:
        error = world.refusal(world.replica(host, port))

    assert (error.refused, error.sent) == (True, False)
    assert f"http://{host}:{port}" in str(error)


def test_a_connection_that_takes_too_long(world: World) -> None:
    """spec 1.2, 4.7: `--connect-timeout` bounds it; that is no refusal."""
    with swallowing_port() as port:
        error = world.refusal(world.replica(port=port))

    assert not error.refused
    assert "0.5 s" in str(error)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70 + ".example", "."])
def test_a_name_that_cannot_be_looked_up(world: World, host: str) -> None:
    """spec 4.7: a replica's name that is unknown, or is none, is a failed connection like any other."""
    assert not world.refusal(world.replica(host)).refused


def test_an_ipv6_address(world: World) -> None:
    """spec 4.8, M4: an IPv6 address is connected to, and written with brackets."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        replica = world.replica("::1", listener.getsockname()[1])
        connection = world.connect(replica)
        assert connection.transport.get_extra_info("peername")[0] == "::1"
        connection.close()
        world.settle()

    assert replica.url == f"http://[::1]:{replica.port}"


def test_no_descriptor_left(world: World) -> None:
    """spec 4.10: that this process can open no more sockets is not the replica's fault."""

    async def connect() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as probe:
            lowest = probe.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(OutOfDescriptors):
                await world.connector.connect(world.replica())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    world.run(connect())
    world.connect(world.replica()).close()
    world.settle()


@pytest.mark.interpreted
def test_who_gives_up_in_the_turn_of_the_connect_leaves_nothing(world: World) -> None:
    """spec 4.5, P4: a client that leaves in the very turn in which the replica is reached leaks no connection."""

    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        made = world.pool.made

        def made_too_late(connection: UpstreamConnection) -> None:
            made(connection)
            task.cancel()

        world.pool.made = made_too_late  # type: ignore[method-assign]
        await world.connector.connect(world.replica())

    with pytest.raises(asyncio.CancelledError):
        world.run(give_up())
    world.settle()

    assert world.pool.open == 0
    accepted, _ = world.listener.accept()
    with accepted:
        accepted.settimeout(5)
        assert accepted.recv(1) == b""


# --- TLS ------------------------------------------------------------------------------------


@contextmanager
def tls_server(world: World, certificate: trustme.LeafCert) -> Iterator[tuple[int, list[str | None]]]:
    """Run a TLS server on the world's loop; give its port and the names it was asked for."""
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    context.sni_callback = lambda _socket, name, _context: names.append(name)

    async def start() -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)

    server = world.run(start())
    try:
        yield server.sockets[0].getsockname()[1], names
    finally:
        server.close()
        world.run(server.wait_closed())


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """Make the context that trusts an authority and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


def test_a_trusted_replica(world: World) -> None:
    """spec 4.9: over https the certificate is verified, and the name is sent so that the right one is shown."""
    authority = trustme.CA()
    world.tls["r"] = trusting(authority)
    with tls_server(world, authority.issue_cert("localhost")) as (port, names):
        connection = world.connect(world.replica("localhost", port, scheme="https"))
        assert connection.transport.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        connection.close()
        world.settle()

    assert names == ["localhost"]


@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_a_replica_that_is_not_to_be_trusted(world: World, wrong: str) -> None:
    """spec 4.9: a certificate of a strange authority, or for another name, is a failed connection."""
    authority = trustme.CA()
    world.tls["r"] = trusting(trustme.CA() if wrong == "authority" else authority)
    with tls_server(world, authority.issue_cert("other.example" if wrong == "name" else "localhost")) as (port, _):
        error = world.refusal(world.replica("localhost", port, scheme="https"))
        world.settle()

    assert not error.refused
    assert "certificate" in str(error).lower()


def test_a_replica_that_does_not_speak_tls(world: World) -> None:
    """spec 4.7, 4.9: a handshake that is never answered ends with the connect timeout."""
    world.tls["r"] = trusting(trustme.CA())

    assert "0.5 s" in str(world.refusal(world.replica("127.0.0.1", scheme="https")))


def test_a_replica_that_speaks_http_instead(world: World) -> None:
    """spec 4.9, 1.5: what is wrong is told in words, not in OpenSSL's."""
    world.tls["r"] = trusting(trustme.CA())

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(refuse, "127.0.0.1", 0)

    server = world.run(start())
    try:
        error = world.refusal(world.replica("127.0.0.1", server.sockets[0].getsockname()[1], scheme="https"))
    finally:
        server.close()
        world.run(server.wait_closed())

    assert str(error).endswith(": it does not speak https")


def test_https_is_never_spoken_in_the_clear(world: World) -> None:
    """spec 4.9: where it is not known whom to trust, nothing is connected to."""
    with pytest.raises(KeyError):
        world.connect(world.replica(scheme="https"))

    assert world.pool.open == 0


# --- keeping --------------------------------------------------------------------------------


def test_the_youngest_connection_is_used_first(world: World) -> None:
    """spec 4.9: what was used last is the least likely to have been closed, and the others may grow old."""
    replica = world.replica()
    connections = [world.connect(replica) for _ in range(3)]
    give(world, *connections)

    taken = [world.pool.take(replica) for _ in range(4)]

    assert taken == [*reversed(connections), None]
    for connection in connections:
        connection.close()
    world.settle()


def test_connections_are_kept_for_their_replica_only(world: World) -> None:
    """spec 7.10: a replica started anew at the same address is another one, and gets connections of its own."""
    old, new = world.replica(), world.replica()
    give(world, world.connect(old))

    assert world.pool.take(new) is None
    assert world.pool.idle == 1


def test_old_connections_are_let_go(world: World) -> None:
    """spec 4.9, P9: after a minute of idleness a connection is closed, the younger ones stay."""
    replica = world.replica()
    first, second = world.connect(replica), world.connect(replica)
    give(world, first)
    world.time += 30
    give(world, second)

    for passed, left in ((29, 2), (1, 1), (29, 1), (1, 0)):
        world.time += passed
        world.pool.sweep()
        world.settle()
        assert (world.pool.open, world.pool.idle) == (left, left)


def test_what_the_replica_closed_is_not_handed_out(world: World) -> None:
    """spec 4.6, P1: a connection that closed while it was kept is gone from the pool."""
    replica = world.replica()

    async def serve_once() -> None:
        closed = asyncio.Event()

        class Closing(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport.close()
                closed.set()

        server = await asyncio.get_running_loop().create_server(Closing, "127.0.0.1", 0)
        connection = await world.connector.connect(world.replica(port=server.sockets[0].getsockname()[1]))
        connection.release()
        world.pool.give(connection, world.time)
        await closed.wait()
        while world.pool.open:  # noqa: ASYNC110 - until the end has come here, too
            await asyncio.sleep(0)
        assert world.pool.take(connection.replica) is None
        server.close()
        await server.wait_closed()

    world.run(asyncio.wait_for(serve_once(), 10))
    assert world.pool.take(replica) is None
    assert world.pool.idle == 0


def test_a_replica_that_is_gone_is_forgotten(world: World) -> None:
    """spec 7.8: its idle connections are closed, and those that come back later, too."""
    replica = world.replica()
    kept, used = world.connect(replica), world.connect(replica)
    give(world, kept)
    world.pool.forget(replica)
    replica.removed = True

    give(world, used)
    world.settle()

    assert (world.pool.open, world.pool.take(replica)) == (0, None)


def test_the_end_of_a_connection_is_seen_in_time(world: World) -> None:
    """spec 4.6: the pool needs nobody's next request to notice that a connection has closed."""
    give(world, world.connect(world.replica()))
    accepted, _ = world.listener.accept()
    accepted.close()

    def gone() -> bool:
        world.settle()
        return not world.pool.open

    wait_until(gone, what="the end of the connection")
