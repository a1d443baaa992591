"""One request with its response: choose, connect, send, relay, finish.

Theory of operation. An exchange moves through these steps, in this order, driven by the two connections' callbacks:

1. *begin*: the head is here. The session id is in it, or is looked for in the body, which is then buffered.
2. *place*: the core chooses a replica and leases it: synchronous, so nothing can come between look-up and pin.
3. *send*: on an idle connection, or on a new one; only here does an exchange wait, for a coroutine of the connector's.
4. *answer_began*, *relay*, *completed*: bytes go from one transport to the other.
5. *end*: whatever happened, exactly once: the lease is released and the outcome recorded.

It is written as callbacks rather than as one coroutine because a task and the futures it would wait on cost as much
as everything else the router does for a request (measurements: docs/explanation/performance.md).

Rules for editors.

1. Every way out goes through `_end`, and leaves neither a lease nor an upstream connection behind.
2. Of a body at most `_HOLD` bytes are kept, and only until the replica has begun to answer (spec 4.6).
3. What says something about a replica's health is told to `proxy.on_fault`; the exchange draws no conclusion itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pypto_serving_router.core import answer as answers
from pypto_serving_router.core.chunks import dechunk
from pypto_serving_router.core.exchanged import Exchanged
from pypto_serving_router.core.head import Framing, RequestHead, ResponseHead, forward_request, forward_response
from pypto_serving_router.core.session_id import from_body, from_header
from pypto_serving_router.errors import (
    ConnectFailed,
    NoReplica,
    OutOfDescriptors,
    UpstreamClosed,
    UpstreamError,
    UpstreamTimeout,
)
from pypto_serving_router.proxy.connector import open_for

if TYPE_CHECKING:
    import asyncio

    from pypto_serving_router.core.answer import Answer
    from pypto_serving_router.core.balancer import Replica
    from pypto_serving_router.proxy.client import ClientConnection
    from pypto_serving_router.proxy.flow import Piece
    from pypto_serving_router.proxy.shared import Proxy
    from pypto_serving_router.proxy.upstream import UpstreamConnection

_HOLD: Final = 1024 * 1024  # bytes of a body that may be kept for a second try
_WAITING: Final = 64 * 1024  # bytes of a body read while the replica is being connected to
_SECOND_TRY: Final = 1.0  # seconds in which a kept connection may turn out to have been closed (spec 4.6)
_JOIN: Final = 16 * 1024  # up to here, one copy is cheaper than a second buffer to write
_POST: Final = b"POST"
# Bound once: looking a member up on its class takes longer than comparing it.
_CHUNKED: Final = Framing.CHUNKED
_CLOSE: Final = Framing.CLOSE
_LENGTH: Final = Framing.LENGTH


class Exchange(Exchanged):
    """A request on its way to a replica, and the answer on its way back.

    The public attributes are the record of it, complete when `proxy.record` gets it.
    """

    __slots__ = (
        "_body_complete",
        "_buffering",
        "_connecting",
        "_keep_alive",
        "_pieces",
        "_proxy",
        "_retries",
        "_upstream",
        "_upstream_paused",
        "client",
        "due",
        "framing",
        "head",
        "heard",
        "last_piece",
        "request_id",
        "session",
    )

    _buffering: bool  # the session id is looked for in the body
    _body_complete: bool
    _keep_alive: bool
    _pieces: list[Piece] | None  # of the body: not sent yet, or kept for a second try
    framing: Framing
    heard: bool  # a byte of an answer has come
    last_piece: float

    def __init__(self, proxy: Proxy, client: ClientConnection, head: RequestHead) -> None:
        self._proxy = proxy
        self.client = client
        self.head = head
        self.request_id = b"" if head.request_id is None else head.request_id
        self.session: str | None = None
        self.lease = None
        self.started = started = proxy.now()
        self.due = started + proxy.request_timeout
        self.placed = self.sent = self.first_byte = 0.0
        self.status = self.relayed = 0
        self.heard = self._upstream_paused = self._buffering = False
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._retries = proxy.connect_retries

    # --- from the client ---------------------------------------------------------------------

    def begin(self, piece: Piece, *, complete: bool) -> None:
        """Start; `piece` is the part of the body that came with the head."""
        head = self.head
        self._body_complete = complete
        self.received = received = len(piece)
        self._pieces = [piece] if received else []
        limit = self._proxy.max_body_size
        if head.length > limit or received > limit:
            self.body_failed(self._too_large())
            return
        if head.expect and not complete and not received:
            self.client.send_continue()
        if head.sessions is not None:
            self._place(head.session or from_header(head.sessions), self.started)
        elif (sources := self._proxy.sources) is not None and (session := sources.in_head(head.lines)) is not None:
            self._place(session, self.started)
        elif not complete:
            self._buffering = True
        elif received:
            self._identify()
        else:
            self._place(None, self.started)

    def body(self, piece: Piece, *, complete: bool) -> None:
        """Take more of the body."""
        self._body_complete = complete
        self.received += len(piece)
        if self.received > self._proxy.max_body_size:
            self.body_failed(self._too_large())
            return
        upstream = self._upstream
        if upstream is not None:
            upstream.transport.write(piece)
            if self._pieces is not None:
                self._pieces.append(piece)
            return
        assert self._pieces is not None
        self._pieces.append(piece)
        if self._buffering:
            if complete:
                self._identify()
        elif self.received > _WAITING and not complete:
            self.client.pause()

    def body_failed(self, answer: Answer) -> None:
        """Refuse the rest of the request's body."""
        self._leave_upstream()
        if self.status:
            self._end("refused")
            self.client.cut(hard=self._cut_is_invisible)
        else:
            self._answer(answer, "refused")

    def client_left(self) -> None:
        """Let the replica know, by closing its connection, that nobody waits for the answer."""
        self._leave_upstream()
        self._end("client_left")

    def client_full(self, *, full: bool) -> None:
        """Hold back the replica while the client takes nothing."""
        upstream = self._upstream
        if upstream is not None and full is not self._upstream_paused:
            self._upstream_paused = full
            if full:
                upstream.transport.pause_reading()
            else:
                upstream.transport.resume_reading()

    def expire(self) -> None:
        """The request timeout has passed (spec 4.7)."""
        lease = self.lease
        self._leave_upstream()
        if self.status:
            self._end("timeout")
            self.client.cut(hard=self._cut_is_invisible)
        elif lease is None:
            self._answer(answers.error(408, "request_timeout", "the request did not arrive in time"), "refused")
        else:
            waited = f"no answer from {lease.replica.id} within {self._proxy.request_timeout:g} s"
            self._proxy.on_fault(lease.replica, UpstreamTimeout(waited))
            self._answer(answers.error(504, "upstream_timeout", waited), "timeout")

    # --- choosing and sending ----------------------------------------------------------------

    def _identify(self) -> None:
        """Look for the session id in the whole body."""
        self._buffering = False
        assert self._pieces is not None
        first = self._pieces[0]
        whole = first if len(self._pieces) == 1 and isinstance(first, bytes) else b"".join(self._pieces)
        self._pieces = [whole]
        sources = self._proxy.sources
        find = from_body if sources is None else sources.in_body
        self._place(find(dechunk(whole) if self.head.chunked else whole), self._proxy.now())

    def _place(self, session: str | None, now: float) -> None:
        proxy = self._proxy
        size = self.received if self._body_complete else self.head.length
        try:
            if self.head.method == _POST:
                self.session = session = session or proxy.mint()
                self.lease = lease = proxy.routing.place(session, now, max(size, 0))
            else:
                self.lease = lease = proxy.routing.peek(session, now)
        except NoReplica as error:
            headers = {"Retry-After": str(error.retry_after)}
            self._answer(answers.error(503, "no_replica", str(error), headers=headers), "no_replica")
            return
        self.placed = now
        # What cannot be sent a second time must not go out on a connection the replica may have closed.
        upstream = proxy.pool.take(lease.replica) if 0 <= size <= _HOLD else None
        if upstream is None:
            self._connect()
        else:
            self._send(upstream)

    def _connect(self) -> None:
        """Open a connection to the replica; `connected` or `not_connected` follows, unless the exchange ends before."""
        assert self.lease is not None
        proxy = self._proxy
        self._connecting = proxy.spawn(open_for(self, self.lease.replica, proxy.connect))

    def connected(self, upstream: UpstreamConnection) -> None:
        """Send the request, now that there is a connection for it."""
        self._connecting = None
        self._send(upstream)

    def not_connected(self, error: Exception) -> None:
        """Try another replica where this one refused and retries are allowed; else say what is wrong."""
        self._connecting = None
        proxy = self._proxy
        assert self.lease is not None
        if isinstance(error, ConnectFailed):
            proxy.on_fault(self.lease.replica, error)
            if error.refused and self._retries > 0:
                self._retries -= 1
                try:
                    self.lease = proxy.routing.replace(self.lease, proxy.now())
                except NoReplica:
                    pass
                else:
                    self._connect()
                    return
            self._answer(answers.error(502, "upstream_unreachable", str(error)), "upstream_failed")
        elif isinstance(error, OutOfDescriptors):
            headers = {"Retry-After": "1"}
            self._answer(answers.error(503, "overloaded", str(error), headers=headers), "no_replica")
        else:  # a fault of the router's own, logged where the task ends
            answer = answers.error(500, "internal_error", "the router failed to connect; its log says why")
            self._answer(answer, "refused")

    def _send(self, upstream: UpstreamConnection) -> None:
        self._upstream = upstream
        upstream.start(self)
        self.request_id = self.request_id or self._proxy.mint().encode()
        head = forward_request(
            self.head, host=upstream.replica.authority, peer=self.client.peer, request_id=self.request_id
        )
        if not self._body_complete:
            self.client.resume()  # before writing, which may find the connection full and pause the client again
        pieces = self._pieces
        if not pieces:
            upstream.transport.write(head)
        elif len(pieces) == 1 and isinstance(piece := pieces[0], bytes) and len(piece) <= _JOIN:
            upstream.transport.write(head + piece)
        else:
            upstream.transport.writelines([head, *pieces])
        self.sent = self._proxy.now()
        if not upstream.used:
            self._pieces = None  # a fresh connection gets no second try
        if self.client.full:
            self.client_full(full=True)

    # --- from the replica --------------------------------------------------------------------

    def upstream_full(self, *, full: bool) -> None:
        """Hold back the client while the replica takes nothing."""
        if not self._body_complete:
            if full:
                self.client.pause()
            else:
                self.client.resume()

    def relay_interim(self, head: ResponseHead) -> None:
        """Pass a 1xx answer on to a client that can read it."""
        if self.head.minor:
            self.client.transport.write(head.block + b"\r\n")

    def answer_began(self, head: ResponseHead, framing: Framing, data: bytes) -> None:
        """Give the client the answer's head, and `data` of its body."""
        client = self.client
        request = self.head
        assert self.lease is not None
        self._pieces = None
        self.status = head.status
        self.framing = framing
        if framing is not _LENGTH:  # else the answer is mostly here already
            request.let_go()
        self.first_byte = self.last_piece = self._proxy.now()
        self.relayed = len(data)
        connection = None
        keep = client.keep_alive and framing is not _CLOSE and (framing is not _CHUNKED or request.minor == 1)
        self._keep_alive = keep
        if not keep:
            connection = b"close"
        elif not request.minor:
            connection = b"keep-alive"
        block = forward_response(
            head,
            session=None if self.session is None else self.session.encode(),
            request_id=self.request_id,
            extra=self._proxy.describe(self.lease),
            chunked=head.chunked and request.minor == 1 and head.status != 204,
            connection=connection,
        )
        if len(data) <= _JOIN:
            client.transport.write(block + data)
        else:
            client.transport.writelines([block, data])

    def relay(self, data: bytes) -> None:
        """Give the client more of the body, as it came."""
        self.client.transport.write(data)
        self.relayed += len(data)
        now = self._proxy.now()
        self._proxy.chunk_gap.observe(now - self.last_piece)
        self.last_piece = now

    def completed(self, *, reusable: bool) -> None:
        """The answer is whole."""
        upstream = self._upstream
        assert upstream is not None
        self._upstream = None
        if self._upstream_paused:
            upstream.transport.resume_reading()
        self._end("complete")
        if upstream.release() and reusable and self._body_complete:
            self._proxy.pool.give(upstream, self.ended)
        else:
            upstream.close()
        self.client.finish(self.ended, keep_alive=self._keep_alive)

    def upstream_failed(self, error: UpstreamError) -> None:
        """The replica's connection broke, or what came on it is not an answer."""
        upstream = self._upstream
        assert upstream is not None
        assert self.lease is not None
        replica = self.lease.replica
        self._upstream = None
        proxy = self._proxy
        if self.status:
            error.began = True
            proxy.on_fault(replica, error)
            self._end("upstream_cut")
            self.client.cut(hard=self._cut_is_invisible)
            return
        stale = (
            upstream.used
            and not self.heard
            and self._pieces is not None
            and isinstance(error, UpstreamClosed)
            and proxy.now() - self.sent <= _SECOND_TRY
        )
        if stale:
            self._upstream_paused = False
            self._connect()
            return
        proxy.on_fault(replica, error)
        message = f"{replica.id} failed before it answered: {error}"
        self._answer(answers.error(502, "upstream_failed", message), "upstream_failed")

    def replica_gone(self, replica: Replica) -> None:
        """End now, if it is `replica` that this waits for: it is being stopped."""
        if self.lease is None or self.lease.replica is not replica:
            return
        self._leave_upstream()
        if self.status:
            self._end("upstream_cut")
            self.client.cut(hard=self._cut_is_invisible)
        else:
            self._answer(answers.error(502, "upstream_stopped", f"{replica.id} is being stopped"), "upstream_failed")

    # --- ending ------------------------------------------------------------------------------

    @property
    def _cut_is_invisible(self) -> bool:
        """Whether a client would take the end of the connection for the end of the answer."""
        return self.framing is _CLOSE or (self.framing is _CHUNKED and not self.head.minor)

    def _too_large(self) -> Answer:
        limit = self._proxy.max_body_size
        return answers.error(413, "body_too_large", f"a request's body may have {limit} bytes")

    def _leave_upstream(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    def _answer(self, answer: Answer, outcome: str) -> None:
        """Answer in the replica's place, with the fields that its answer would have been given."""
        self.status = answer.status
        session = b""
        if self.head.method == _POST:
            if self.session is None:  # refused before its body was read
                self.session = self._named() or self._proxy.mint()
            session = b"X-Session-Id: %b\r\n" % self.session.encode()
        self.request_id = self.request_id or self._proxy.mint().encode()
        placed = b"" if self.lease is None else self._proxy.describe(self.lease)
        self._end(outcome)
        self.client.answer(answer, more=b"%bX-Request-Id: %b\r\n%b" % (session, self.request_id, placed))

    def _named(self) -> str | None:
        """Return the session id in the head."""
        head, sources = self.head, self._proxy.sources
        if head.sessions is not None:
            return from_header(head.sessions)
        return None if sources is None else sources.in_head(head.lines)

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self._pieces = None
        self.ended = now = self._proxy.now()
        if self.lease is not None:
            self._proxy.routing.finish(self.lease, now)
        self._proxy.record(self)

    def __repr__(self) -> str:
        where = "" if self.lease is None else f" on {self.lease.replica.id}"
        return f"<Exchange {self.head.method.decode()} {self.head.target.decode()}{where}, status {self.status}>"
