"""Making connections: real ones on both event loops, over TLS as well."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trustme
from tests.support.ports import refusing_port, swallowing_port

from pypto_serving_router.errors import OutOfDescriptors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.connections import World

    from pypto_serving_router.proxy.upstream import UpstreamConnection


def test_a_connection_is_counted_while_it_is_open(world: World) -> None:
    """spec 4.9, P9: open connections are counted, from when they are made until they have closed."""
    first, second = (world.connect(world.replica()) for _ in range(2))
    assert (world.pool.open, world.pool.idle) == (2, 0)
    world.give(first)
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
