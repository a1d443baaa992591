"""The data path without sockets: both protocols on transports that record, a clock that is set, turns that are counted.

The transports are stricter than any real one: what asyncio or uvloop would forgive here, the other may not.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tests.support.witness import read_response

from pypto_serving_router.core.balancer import Replica
from pypto_serving_router.core.ids import ReplicaId
from pypto_serving_router.core.routing import Routing
from pypto_serving_router.proxy.client import ClientConnection, Handler, Limits
from pypto_serving_router.proxy.exchange import Exchange
from pypto_serving_router.proxy.frontend import Frontend
from pypto_serving_router.proxy.pool import ConnectionPool
from pypto_serving_router.proxy.shared import Proxy
from pypto_serving_router.proxy.upstream import UpstreamConnection
from pypto_serving_router.telemetry.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable

    from pypto_serving_router.core.head import RequestHead
    from pypto_serving_router.errors import UpstreamError

HIGH_WATER = 64 * 1024
LOW_WATER = 16 * 1024
_RESET = struct.pack("ii", 1, 0)
_ESTABLISHED, _CLOSE_WAIT = 1, 8  # include/net/tcp_states.h


class Socket:
    """What the router asks of a socket."""

    family = socket.AF_INET

    def __init__(self) -> None:
        self.state = _ESTABLISHED
        self.resets = False

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        """Remember that closing is to reset."""
        assert (level, option, value) == (socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.resets = True

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Tell the state of the connection."""
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        return bytes([self.state])[:size]


class Wire(asyncio.Transport):
    """A transport, and the other end of it.

    `got` is what the other end has received. While it is `stalled` it takes nothing, and what is written stays
    unsent. `ended` says how the router ended the connection: "fin" (all was sent), "cut" (what was unsent is lost) or
    "rst"; `half_closed`, that it has said its last word and still listens.
    """

    def __init__(self, turns: Turns, protocol: asyncio.Protocol, peer: tuple[str, int] | None) -> None:
        super().__init__({"peername": peer, "socket": Socket()})
        self.socket = cast("Socket", self.get_extra_info("socket"))
        self.protocol = protocol
        self.got = b""
        self.writes: list[bytes] = []
        self.wasted = 0  # bytes written after the other end had gone
        self.stalled = False
        self.ended: str | None = None
        self.half_closed = False
        self.reading = True
        self.lost = False
        self._turns = turns
        self._unsent = b""
        self._inbound: deque[bytes | None] = deque()
        self._closing = False
        self._own_end = False  # closed by the router, rather than because the other end did
        self._eof = False
        self._full = False

    # --- the other end ---

    def send(self, data: bytes) -> None:
        """Send to the router; it sees the bytes at once if it reads."""
        self._inbound.append(data)
        self._deliver()

    def end(self) -> None:
        """Send a FIN."""
        self.socket.state = _CLOSE_WAIT
        self._inbound.append(None)
        self._deliver()

    def reset(self) -> None:
        """Break the connection: the router sees it in its next turn, whether it reads or not."""
        self._lose(ConnectionResetError("reset by peer"))

    def drain(self) -> None:
        """Take everything that was not taken."""
        self.stalled = False
        self._flush()

    def trickle(self, count: int) -> None:
        """Take some of what was not taken."""
        self.got += self._unsent[:count]
        self._unsent = self._unsent[count:]
        if self._full and len(self._unsent) <= LOW_WATER:
            self._full = False
            self.protocol.resume_writing()

    @property
    def unsent(self) -> int:
        """How many bytes wait for the other end."""
        return len(self._unsent)

    @property
    def held(self) -> int:
        """How many bytes the other end has sent that the router has not read."""
        return sum(len(piece) for piece in self._inbound if piece is not None)

    def take(self) -> bytes:
        """Give what was received since the last time."""
        taken, self.got = self.got, b""
        return taken

    # --- the router's end ---

    def write(self, data: Any) -> None:
        """Send, or keep what the other end does not take."""
        assert not self.lost, "written after connection_lost"
        assert not self._eof, "written after write_eof"
        assert not self._own_end, "written after it was closed"
        if self._closing:
            self.wasted += len(data)
            return
        self.writes.append(bytes(data))
        self._unsent += bytes(data)
        if not self.stalled:
            self._flush()
        elif len(self._unsent) > HIGH_WATER and not self._full:
            self._full = True
            self.protocol.pause_writing()

    def writelines(self, pieces: Iterable[Any]) -> None:
        """Send several pieces."""
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        """Say the last word."""
        assert not self.lost
        self._eof = True
        self._flush()

    def can_write_eof(self) -> bool:
        """Tell that it can."""
        return True

    def pause_reading(self) -> None:
        """Read no more."""
        if not self._closing:
            assert self.reading, "paused twice"
            self.reading = False

    def resume_reading(self) -> None:
        """Read again; what waited is delivered in the next turn."""
        if not self._closing:
            assert not self.reading, "resumed twice"
            self.reading = True
            self._turns.call_soon(self._deliver)

    def is_reading(self) -> bool:
        """Tell whether it reads."""
        return self.reading and not self._closing

    def is_closing(self) -> bool:
        """Tell whether it is closed, or about to be."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """Tell how much is unsent."""
        return len(self._unsent)

    def close(self) -> None:
        """Close once everything is sent."""
        if not self._closing:
            self._closing = self._own_end = True
            self._flush()

    def abort(self) -> None:
        """Close at once."""
        self._own_end = True
        if not self.ended:
            self.ended = "rst" if self.socket.resets else "cut" if self._unsent else "fin"
            self._unsent = b""
            self._lose(None)

    # --- inside ---

    def _flush(self) -> None:
        if self.stalled or self.ended:
            return
        self.got += self._unsent
        self._unsent = b""
        if self._full:
            self._full = False
            self.protocol.resume_writing()
        if self._eof:
            self.half_closed = True
        if self._closing and not self._unsent:
            self.ended = "fin"
            self._lose(None)

    def _deliver(self) -> None:
        while self._inbound and self.reading and not self._closing:
            piece = self._inbound.popleft()
            if piece is not None:
                self.protocol.data_received(piece)
            elif not self.protocol.eof_received():
                self._closing = True
                self._flush()

    def _lose(self, error: Exception | None) -> None:
        self._closing = True
        self._turns.call_soon(lambda: self._tell_lost(error))

    def _tell_lost(self, error: Exception | None) -> None:
        if not self.lost:
            self.protocol.connection_lost(error)
            self.lost = True
            self.ended = self.ended or "lost"


class Turns:
    """An event loop reduced to its turns."""

    def __init__(self) -> None:
        self._ready: deque[Callable[[], object]] = deque()

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call in the next turn."""
        self._ready.append(call)

    def run(self) -> None:
        """Run turns until nothing is left to do."""
        while self._ready:
            for _ in range(len(self._ready)):
                self._ready.popleft()()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine that waits for nothing but `Attempt`s and `Gate`s."""
        return cast("asyncio.Task[None]", _Task(self, coroutine))


class Gate:
    """Something to wait for until it is opened."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._open = False
        self._waiter: Callable[[], object] | None = None

    def __await__(self) -> Generator[Gate, None, None]:
        if not self._open:
            yield self

    def open(self) -> None:
        """Let whoever waits go on, in the next turn."""
        self._open = True
        if self._waiter is not None:
            self._turns.call_soon(self._waiter)

    def wait(self, waiter: Callable[[], object]) -> None:
        """Note who waits."""
        self._waiter = waiter


class _Task:
    def __init__(self, turns: Turns, coroutine: Coroutine[Any, Any, None]) -> None:
        self._turns = turns
        self._coroutine = coroutine
        self._cancelled = self._done = False
        turns.call_soon(self._step)

    def cancel(self) -> bool:
        if self._done or self._cancelled:
            return False
        self._cancelled = True
        self._turns.call_soon(self._step)
        return True

    def _step(self) -> None:
        if self._done:
            return
        try:
            if self._cancelled:
                self._done = True
                self._coroutine.throw(asyncio.CancelledError())
                raise AssertionError("a cancelled coroutine went on")
            self._coroutine.send(None).wait(self._step)
        except StopIteration:
            self._done = True
        except asyncio.CancelledError:
            self._done = True


class Attempt(Gate):
    """An attempt to connect to a replica, which the test decides."""

    def __init__(self, turns: Turns, replica: Replica) -> None:
        super().__init__(turns)
        self.replica = replica
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Let it fail."""
        self.error = error
        self.open()


class Rig:
    """A frontend, exchanges, a pool and replicas.

    `clients` and `upstreams` are their connections in the order they were made; `attempts` are all attempts to
    connect, which the test decides while the rig is `holding`. With `stalling`, new upstream connections take
    nothing. `records` are the exchanges that have ended, `faults` what was found wrong with replicas.
    """

    def __init__(
        self,
        *,
        replicas: int = 1,
        slack: int = 8,
        limits: Limits | None = None,
        request_timeout: float = 3600.0,
        max_body_size: int = 1 << 20,
        connect_retries: int = 0,
        open: Callable[[ClientConnection, RequestHead], Handler] | None = None,  # noqa: A002 - as Frontend's
    ) -> None:
        self.time = 1000.0
        self.turns = Turns()
        self.holding = self.stalling = False
        self.clients: list[Wire] = []
        self.upstreams: list[Wire] = []
        self.attempts: list[Attempt] = []
        self.records: list[Exchange] = []
        self.faults: list[tuple[str, str, bool]] = []
        self.refused: list[int] = []
        self.gaps = Histogram((1.0,))
        self._minted = 0
        self.routing = Routing(slack=slack, ttl=600.0, capacity=1000)
        self.replicas = [
            Replica(ReplicaId(f"r{number}"), "127.0.0.1", 8000 + number, ready=True)
            for number in range(1, replicas + 1)
        ]
        for replica in self.replicas:
            self.routing.balancer.add(replica)
        self.pool = ConnectionPool(now=self.now)
        self.proxy = Proxy(
            routing=self.routing,
            pool=self.pool,
            connect=self._connect,
            now=self.now,
            mint=self._mint,
            spawn=self.turns.spawn,
            on_fault=self._on_fault,
            record=self.records.append,
            chunk_gap=self.gaps,
            request_timeout=request_timeout,
            max_body_size=max_body_size,
            connect_retries=connect_retries,
        )
        self.frontend = Frontend(
            open=open or partial(Exchange, self.proxy),
            limits=limits or Limits(),
            now=self.now,
            on_refused=self.refused.append,
        )

    def now(self) -> float:
        """Tell the time."""
        return self.time

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and the frontend look at its deadlines; its sweeps come at least twice a second."""
        self.time += seconds
        self.frontend.sweep()
        self.turns.run()

    def connect(self, *, peer: tuple[str, int] | None = ("192.0.2.7", 50000)) -> Wire:
        """Make a client's connection."""
        protocol = self.frontend.connect()
        client = Wire(self.turns, protocol, peer)
        self.clients.append(client)
        protocol.connection_made(client)
        return client

    def ask(self, data: bytes, client: Wire | None = None) -> tuple[Wire, Wire]:
        """Send a request to a replica, on a new connection if none is given; give both connections."""
        client = client or self.connect()
        client.send(data)
        self.turns.run()
        return client, self.serving(client)

    def serving(self, client: Wire) -> Wire:
        """Give the replica's connection that serves a client's request."""
        for wire in self.upstreams:
            exchange = cast("UpstreamConnection", wire.protocol).exchange
            if exchange is not None and exchange.client is cast("object", client.protocol):
                return wire
        raise LookupError("no replica's connection serves this client")

    @property
    def outcomes(self) -> list[tuple[str, int]]:
        """How the exchanges ended: the outcome and the status the client was given."""
        return [(record.outcome, record.status) for record in self.records]

    def check(self) -> None:
        """Fail if anything is out of balance: leases, connections, what is paused."""
        self.turns.run()
        under_way = [handler for handler in self.frontend.handlers() if isinstance(handler, Exchange)]
        leases = [handler.lease.replica for handler in under_way if handler.lease is not None]
        assert [replica.outstanding for replica in self.replicas] == [
            leases.count(replica) for replica in self.replicas
        ]
        assert len({id(record) for record in self.records}) == len(self.records), "an exchange ended twice"
        assert not {id(record) for record in self.records} & {id(handler) for handler in under_way}
        assert len(self.frontend.connections) == sum(not client.lost for client in self.clients)
        open_wires = [wire for wire in self.upstreams if not wire.lost]
        assert self.pool.open == len(open_wires)
        busy = [wire for wire in open_wires if cast("UpstreamConnection", wire.protocol).exchange is not None]
        assert {id(cast("UpstreamConnection", wire.protocol).exchange) for wire in busy} <= set(map(id, under_way))
        idle = [wire for wire in open_wires if wire not in busy]
        assert len(idle) == self.pool.idle, "a connection is neither used nor kept"
        assert all(wire.is_reading() for wire in idle), "a kept connection is not read"
        assert all(wire.unsent <= HIGH_WATER for wire in idle), "a kept connection is full"

    async def _connect(self, replica: Replica) -> UpstreamConnection:
        attempt = Attempt(self.turns, replica)
        self.attempts.append(attempt)
        if not self.holding:
            attempt.open()
        await attempt
        if attempt.error is not None:
            raise attempt.error
        connection = UpstreamConnection(replica, self.pool)
        wire = Wire(self.turns, cast("asyncio.Protocol", connection), (replica.host, replica.port))
        connection.connection_made(wire)
        wire.stalled = self.stalling
        self.upstreams.append(wire)
        return connection

    def _mint(self) -> str:
        self._minted += 1
        return f"{self._minted:032x}"

    def _on_fault(self, replica: Replica, error: UpstreamError) -> None:
        self.faults.append((replica.id, type(error).__name__, error.began))


def codes(client: Wire) -> list[int]:
    """Give the statuses of the answers a client got, and nothing else may have come."""
    found, rest = [], client.got
    while rest:
        seen = read_response(rest, ended=client.ended is not None or client.half_closed)
        assert seen.whole
        found.append(seen.status)
        rest = seen.rest
    return found
