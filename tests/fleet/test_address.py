"""Is the address silent? Asked of real sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.core.slot import Slot
from pypto_serving_router.fleet import address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        yield server


class Loop(asyncio.SelectorEventLoop):
    """Names stand for what a test says; so does what the network answers, if it says anything."""

    names: Sequence[tuple[str, int]] = ()
    errors: Sequence[int] = ()
    own_port = False

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if not self.names:
            return await super().getaddrinfo(host, port, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", name) for name in self.names]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        if self.errors:
            error, *self.errors = self.errors
            raise OSError(error, os.strerror(error))
        if self.own_port:
            sock.bind(address)
        await super().sock_connect(sock, address)


def silent(
    host: str, port: int, patience: float = address.PATIENCE, loop: Callable[[], asyncio.AbstractEventLoop] = Loop
) -> bool | None:
    slot = Slot(SlotId("node-d0"), HostId("node"), host, port, (0,))
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(address.silent(slot, patience=patience))


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.SelectorEventLoop])
def test_a_refused_connection_is_silence(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Spec 7.4, 7.7: nobody listens."""
    with socket.socket() as bound:  # bound, so that nobody else takes the port; not listening
        bound.bind(("127.0.0.1", 0))
        assert silent("127.0.0.1", bound.getsockname()[1], loop=loop) is True


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.SelectorEventLoop])
def test_an_accepted_connection_is_not(loop: Callable[[], asyncio.AbstractEventLoop], listener: socket.socket) -> None:
    """Spec 7.4, 7.7: whether it speaks or not."""
    assert silent("127.0.0.1", listener.getsockname()[1], loop=loop) is False


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.SelectorEventLoop])
def test_what_neither_accepts_nor_refuses_proves_nothing(
    loop: Callable[[], asyncio.AbstractEventLoop], listener: socket.socket
) -> None:
    """Spec 7.7: it is looked at for as long as there is patience, and then it can't be told."""
    with ExitStack() as full:
        for _ in range(4):  # more than its queue takes: the next is not answered at all
            knock = full.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(listener.getsockname())
        began = time.monotonic()
        assert silent("127.0.0.1", listener.getsockname()[1], patience=0.3, loop=loop) is None
        assert time.monotonic() - began < 5


def test_a_name_is_silent_only_if_all_its_addresses_are() -> None:
    """Spec 7.4: a replica that listens on one of two is there."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]

        class Both(Loop):
            names = (("127.0.0.1", port), ("127.0.0.2", port))

        assert silent("127.0.0.1", port) is True
        assert silent("node", port, loop=Both) is False


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([errno.ECONNREFUSED, errno.ENETUNREACH], True),
        ([errno.ECONNREFUSED, errno.EADDRNOTAVAIL], True),
        ([errno.ENETUNREACH], None),
        ([errno.EHOSTUNREACH], None),
        ([errno.ECONNREFUSED, errno.EHOSTUNREACH], None),
        ([errno.ECONNREFUSED, errno.ETIMEDOUT], None),
    ],
)
def test_only_refusal_is_silence(told: list[int], expected: bool | None) -> None:
    """Spec 7.7: an address that this machine has no way to says nothing; one that it can't reach leaves it open."""

    class Told(Loop):
        names = (("127.0.0.1", 1),) * len(told)
        errors = tuple(told)

    assert silent("node", 1, loop=Told) is expected


def test_a_name_that_does_not_resolve_proves_nothing() -> None:
    """Spec 7.7: who can't be found may still be there."""

    class Nowhere(Loop):
        async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    assert silent("nowhere.invalid", 1, loop=Nowhere) is None


def test_a_connection_that_meets_itself_is_no_answer() -> None:
    """Spec 7.4: the kernel may lend the very port that is asked for to the connection that asks."""

    class OwnPort(Loop):
        own_port = True

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert silent("127.0.0.1", port, loop=OwnPort) is True
