"""The replica's side: one connection, one answer at a time, its bytes relayed as they come.

Theory of operation. A connection is idle in the pool, or serves one exchange. During an answer it reads the head, then
only *observes* the body, to know where it ends; the same bytes go to the client's transport in the same turn of the
event loop. There is no queue: when the client's transport is full, this one is not read (spec 4.4).

What a replica may do wrong ends in one of two ways: `Exchange.upstream_failed` before the answer's head has gone to
the client, or after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from pypto_serving_router.core.chunks import ChunkError, ChunkScanner
from pypto_serving_router.core.head import MAX_HEAD, Framing, ResponseHead, parse_response
from pypto_serving_router.errors import UpstreamClosed, UpstreamError, UpstreamProtocolError

if TYPE_CHECKING:
    import asyncio

    from pypto_serving_router.core.balancer import Replica
    from pypto_serving_router.proxy.exchange import Exchange
    from pypto_serving_router.proxy.pool import ConnectionPool

_LENGTH: Final = Framing.LENGTH
_CHUNKED: Final = Framing.CHUNKED
_CLOSE: Final = Framing.CLOSE
_MAX_INFORMATIONAL: Final = 16  # 1xx heads before an answer; a replica that sends more is broken


class UpstreamConnection:
    """One connection to a replica; a protocol of asyncio's in all but its base class, which is not compiled."""

    __slots__ = (
        "_buffer",
        "_content",
        "_framing",
        "_full",
        "_head",
        "_informational",
        "_left",
        "_pool",
        "_scanner",
        "exchange",
        "idle_since",
        "open",
        "replica",
        "transport",
        "used",
    )

    transport: asyncio.Transport

    def __init__(self, replica: Replica, pool: ConnectionPool) -> None:
        # for the life of the connection
        self.replica = replica
        self.open = False
        self.used = False  # has carried an exchange before this one
        self.idle_since = 0.0
        self._pool = pool
        self._full = False  # the replica takes less than it is given
        # for the exchange at hand
        self.exchange: Exchange | None = None
        self._framing: Framing | None = None  # of the body under way; None while its head is awaited
        self._buffer = b""
        self._left = 0
        self._informational = 0
        self._scanner: ChunkScanner | None = None
        self._content: list[bytes] | None = None  # where the client can't read chunks: their content
        self._head: ResponseHead | None = None

    # --- from the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be ready to serve."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none of asyncio's classes
        self.open = True
        self._pool.made(self)

    def data_received(self, data: bytes) -> None:
        """Relay what belongs to the answer; judge the rest."""
        exchange = self.exchange
        if exchange is None:
            self.close()  # bytes nobody asked for: the next answer could not be trusted
            return
        framing = self._framing
        if framing is _CHUNKED:
            scanner = self._scanner
            assert scanner is not None
            try:
                cut = scanner.feed(data)
            except ChunkError as error:
                self._fail(exchange, UpstreamProtocolError(str(error)))
                return
            if scanner.end < 0 and cut == len(data) and self._content is None:  # as events of a stream are
                exchange.relay(data)
                return
            exchange.relay(self._piece(data, cut))
            if scanner.end >= 0:
                self._complete(exchange, reusable=scanner.end == len(data))
        elif framing is _LENGTH:
            left = self._left - len(data)
            if left > 0:
                self._left = left
                exchange.relay(data)
            elif left == 0:
                exchange.relay(data)
                self._complete(exchange, reusable=True)
            else:
                exchange.relay(data[:left])
                self._complete(exchange, reusable=False)
        elif framing is _CLOSE:
            exchange.relay(data)
        else:
            self._read_head(exchange, data)

    def eof_received(self) -> bool:
        """The replica has said all it will say on this connection."""
        self.open = False
        exchange = self.exchange
        if exchange is not None and self._framing is _CLOSE:
            self._complete(exchange, reusable=False)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever used the connection."""
        self.open = False
        exchange = self.exchange
        if exchange is not None:
            self._fail(exchange, UpstreamClosed(f"the replica closed the connection: {exc or 'no reason given'}"))
        self._pool.lost(self)

    def pause_writing(self) -> None:
        """The replica takes the request's body more slowly than the client sends it."""
        self._full = True
        if self.exchange is not None:
            self.exchange.upstream_full(full=True)

    def resume_writing(self) -> None:
        """The replica takes more of the body."""
        self._full = False
        if self.exchange is not None:
            self.exchange.upstream_full(full=False)

    # --- for the exchange --------------------------------------------------------------------

    def start(self, exchange: Exchange) -> None:
        """Serve `exchange` next."""
        self.exchange = exchange
        self._framing = None
        self._informational = 0

    def release(self) -> bool:
        """Part from the exchange; return whether another could be served."""
        self.exchange = None
        self._buffer = b""
        self._scanner = None
        self._content = None
        self.used = True
        return self.open and not self._full

    def close(self) -> None:
        """Close at once: the only way a replica learns that its answer is no longer wanted (spec 4.5)."""
        self.exchange = None
        self._scanner = None
        self.open = False
        self.transport.abort()

    # --- inside ------------------------------------------------------------------------------

    def _read_head(self, exchange: Exchange, data: bytes) -> None:
        exchange.heard = True
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        while True:
            end = data.find(b"\r\n\r\n")
            if not 0 <= end <= MAX_HEAD - 4:
                if len(data) >= MAX_HEAD:
                    self._fail(exchange, UpstreamProtocolError(f"the answer's head is longer than {MAX_HEAD} bytes"))
                elif data[:5] != b"HTTP/"[: len(data)]:
                    self._fail(exchange, UpstreamProtocolError("the answer does not begin with HTTP/"))
                elif data.count(b"\n") != data.count(b"\r\n"):
                    self._fail(exchange, UpstreamProtocolError("a line of the answer's head does not end in CR LF"))
                else:
                    self._buffer = data
                return
            try:
                head = parse_response(data[:end])
            except UpstreamProtocolError as error:
                self._fail(exchange, error)
                return
            data = data[end + 4 :]
            if head.status >= 200:
                break
            self._informational += 1
            if head.status == 101 or self._informational > _MAX_INFORMATIONAL:
                self._fail(exchange, UpstreamProtocolError(f"an interim answer ({head.status}) too many"))
                return
            if head.status != 100:  # the router has answered Expect itself
                exchange.relay_interim(head)
            if not data:
                return
        self._begin_body(exchange, head, data)

    def _begin_body(self, exchange: Exchange, head: ResponseHead, data: bytes) -> None:
        self._head = head
        framing = Framing.NONE if exchange.head.method == b"HEAD" else head.framing
        if framing is Framing.NONE:
            exchange.answer_began(head, framing, b"")
            self._complete(exchange, reusable=not data)
            return
        self._framing = framing
        if framing is _LENGTH:
            left = self._left = head.length - len(data)
            exchange.answer_began(head, framing, data if left >= 0 else data[:left])
            if left <= 0:
                self._complete(exchange, reusable=left == 0)
        elif framing is _CLOSE:
            exchange.answer_began(head, framing, data)
        else:
            self._scanner = scanner = ChunkScanner()
            if not exchange.head.minor:
                self._content = scanner.content = []
            try:
                piece = self._piece(data, scanner.feed(data))
            except ChunkError as error:
                self._fail(exchange, UpstreamProtocolError(str(error)))
                return
            exchange.answer_began(head, framing, piece)
            if scanner.end >= 0:
                self._complete(exchange, reusable=scanner.end == len(data))

    def _piece(self, data: bytes, cut: int) -> bytes:
        """Return what of a scanned piece of a chunked body the client gets."""
        scanner = self._scanner
        assert scanner is not None
        if self._content is not None:
            piece = b"".join(self._content)
            self._content.clear()
            return piece
        if scanner.end < 0:
            return data[:cut]
        if cut + 2 == scanner.end:
            return data[: scanner.end]
        return data[:cut] + b"\r\n"

    def _complete(self, exchange: Exchange, *, reusable: bool) -> None:
        assert self._head is not None
        exchange.completed(reusable=reusable and self._head.keep_alive)

    def _fail(self, exchange: Exchange, error: UpstreamError) -> None:
        self.close()
        exchange.upstream_failed(error)

    def __repr__(self) -> str:
        state = "closed" if not self.open else "idle" if self.exchange is None else "busy"
        return f"<UpstreamConnection {self.replica.id} {state}>"
