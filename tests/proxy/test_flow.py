"""Ends of connections on real sockets: a reset is a reset, and a FIN is seen without reading."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from tests.support.waiting import wait_until

from pypto_serving_router.proxy.flow import peer_has_left, reset

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


class Ends:
    """Both ends of a connection: a transport, which is not reading, and a plain socket."""

    def __init__(self, runner: asyncio.Runner, server: socket.socket, client: socket.socket) -> None:
        self._runner = runner
        self.client = client

        async def adopt() -> asyncio.Transport:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, server)
            return transport

        self.transport: asyncio.Transport = self.run(adopt())
        self.transport.pause_reading()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine."""
        return self._runner.run(work)

    def settle(self) -> None:
        """Let what is under way come to its end."""
        self.run(asyncio.sleep(0))
        self.run(asyncio.sleep(0))


@pytest.fixture(params=[(loop, family) for loop in LOOPS for family in ("127.0.0.1", "::1")], ids="-".join)
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Give a connection on each kind of event loop and address."""
    loop, address = request.param
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        server, _ = listener.accept()
    client.settimeout(5)
    with client, asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        ends = Ends(runner, server, client)
        yield ends
        ends.transport.abort()
        ends.settle()


def test_a_reset_is_one(ends: Ends) -> None:
    """spec 4.6: the client sees ECONNRESET, where an orderly end would look like a whole answer."""
    ends.transport.write(b"x" * 10_000_000)  # much of it stays unsent
    reset(ends.transport)
    ends.settle()

    with pytest.raises(ConnectionResetError):
        list(iter(lambda: ends.client.recv(1 << 20), b""))


def test_a_reset_of_what_has_ended_already(ends: Ends) -> None:
    """spec 4.6: there may be nothing left to reset."""
    ends.transport.abort()
    ends.settle()

    reset(ends.transport)

    assert ends.client.recv(1) == b""


def test_a_client_that_is_there(ends: Ends) -> None:
    """spec 4.5: silence, or bytes that were not read, are no end."""
    assert not peer_has_left(ends.transport)
    ends.client.send(b"x")
    assert not peer_has_left(ends.transport)


@pytest.mark.parametrize("unread", [b"", b"x"])
@pytest.mark.parametrize("half", [False, True])
def test_a_client_that_has_left(ends: Ends, unread: bytes, half: bool) -> None:
    """spec 4.5: its FIN is seen on a connection that is not being read, unread bytes before it or not."""
    ends.client.send(unread)
    if half:
        ends.client.shutdown(socket.SHUT_WR)
    else:
        ends.client.close()

    wait_until(lambda: peer_has_left(ends.transport), what="the client's end")


def test_a_transport_without_an_internet_socket() -> None:
    """spec 4.5: where the kernel has no TCP state to tell, nobody is taken for gone."""

    async def look() -> bool:
        here, there = socket.socketpair()
        with there:
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=here)
            left = peer_has_left(transport)
            transport.close()
        return left

    assert not asyncio.run(look())
