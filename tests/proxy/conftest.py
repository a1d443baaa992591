"""Fixtures of the data path's tests: a rig whose books are checked when the test is over."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.connections import LOOPS, World
from tests.support.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    """Make a rig: `Rig`'s options."""
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rig = Rig(**options)
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        rig.check()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """Give a rig with one replica and the usual limits."""
    return make_rig()


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
