"""Which connections are kept, and for how long: real ones on both event loops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.connections import World


def test_the_youngest_connection_is_used_first(world: World) -> None:
    """spec 4.9: what was used last is the least likely to have been closed, and the others may grow old."""
    replica = world.replica()
    connections = [world.connect(replica) for _ in range(3)]
    world.give(*connections)

    taken = [world.pool.take(replica) for _ in range(4)]

    assert taken == [*reversed(connections), None]
    for connection in connections:
        connection.close()
    world.settle()


def test_connections_are_kept_for_their_replica_only(world: World) -> None:
    """spec 7.10: a replica started anew at the same address is another one, and gets connections of its own."""
    old, new = world.replica(), world.replica()
    world.give(world.connect(old))

    assert world.pool.take(new) is None
    assert world.pool.idle == 1


def test_old_connections_are_let_go(world: World) -> None:
    """spec 4.9, P9: after a minute of idleness a connection is closed, the younger ones stay."""
    replica = world.replica()
    first, second = world.connect(replica), world.connect(replica)
    world.give(first)
    world.time += 30
    world.give(second)

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
    world.give(kept)
    world.pool.forget(replica)
    replica.removed = True

    world.give(used)
    world.settle()

    assert (world.pool.open, world.pool.take(replica)) == (0, None)


def test_the_end_of_a_connection_is_seen_in_time(world: World) -> None:
    """spec 4.6: the pool needs nobody's next request to notice that a connection has closed."""
    world.give(world.connect(world.replica()))
    accepted, _ = world.listener.accept()
    accepted.close()

    def gone() -> bool:
        world.settle()
        return not world.pool.open

    wait_until(gone, what="the end of the connection")
