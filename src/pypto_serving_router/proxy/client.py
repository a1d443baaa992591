"""The client's side: one connection, the requests found on it, and the limits it is held to.

Theory of operation. A `ClientConnection` is always in one of five states.

- *idle*: between requests; at most the start of a head has arrived.
- *body*: a request's handler has begun and more of the request's body is to come.
- *answering*: the request has arrived whole; its answer is under way. What arrives now is the next request, held back.
- *lingering*: the answer is given and the connection ends; what still arrives is thrown away, because closing with
  unread bytes would reset the connection and could destroy an answer the client has not read yet (RFC 9112 9.6).
- *closed*.

The handler (an `Exchange`, or a call of the router's own) gets the body as it comes, hears when the client leaves, and
ends with exactly one of `finish`, `answer` and `cut`.

Rules for editors.

1. The client is read on during an answer: its FIN is the only sign that a generation is no longer wanted (spec 4.5).
2. There is one deadline a connection, `due`, whatever it waits for. A sweep looks at all of them; no timer is made per
   request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

from pypto_serving_router.core import answer as answers
from pypto_serving_router.core.chunks import ChunkError, ChunkScanner
from pypto_serving_router.core.forms import judge_request
from pypto_serving_router.core.head import MAX_HEAD, RequestHead
from pypto_serving_router.errors import RequestError
from pypto_serving_router.proxy.flow import Piece, peer_has_left, reset

if TYPE_CHECKING:
    import asyncio

    from pypto_serving_router.core.answer import Answer
    from pypto_serving_router.core.forms import Form
    from pypto_serving_router.proxy.frontend import Frontend

NEVER: Final = float("inf")
MAX_PIPELINED: Final = 64 * 1024
"""Bytes of following requests held while one is answered (spec 4.5)."""

_LINGER: Final = 5.0  # seconds for a client to notice that its answer is there
_MAX_LINGER_BYTES: Final = 16 * 1024 * 1024
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)++")
_COPIED: Final = 16 * 1024  # bytes of a body that are copied rather than looked at where they lie
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_IDLE: Final = 0
_BODY: Final = 1
_ANSWERING: Final = 2
_LINGERING: Final = 3
_CLOSED: Final = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take; seconds and bytes (spec 4.10)."""

    head_timeout: float = 15.0
    body_timeout: float = 30.0
    idle_timeout: float = 75.0
    max_connections: int = 100_000


class Handler(Protocol):
    """What answers one request."""

    due: float
    """When `expire` is to be called; monotonic."""

    def begin(self, piece: Piece, *, complete: bool) -> None:
        """Start, with the part of the body that came with the head."""

    def body(self, piece: Piece, *, complete: bool) -> None:
        """Take more of the body, framed as the client framed it."""

    def body_failed(self, answer: Answer) -> None:
        """The body is malformed or too slow; `answer` says so, if no answer has begun."""

    def client_left(self) -> None:
        """The client is gone; nothing can be answered any more."""

    def client_full(self, *, full: bool) -> None:
        """The client reads more slowly than it is written to, or no longer does."""

    def expire(self) -> None:
        """`due` has passed."""


class ClientConnection:
    """One connection from a client; a protocol of asyncio's in all but its base class, which is not compiled."""

    __slots__ = (
        "_buffer",
        "_discarded",
        "_form",
        "_frontend",
        "_left",
        "_partial",
        "_running",
        "_scanner",
        "_state",
        "_unsent",
        "due",
        "full",
        "handler",
        "head",
        "paused",
        "peer",
        "transport",
    )

    transport: asyncio.Transport
    head: RequestHead

    def __init__(self, frontend: Frontend) -> None:
        # for the life of the connection
        self._frontend = frontend
        self._form: Form | None = None  # what this client's heads look like
        self.peer = b""
        self.due = NEVER
        self._state = _IDLE
        self._buffer = b""  # the start of a head, or requests that came early
        self._partial = False  # a head has begun, and its deadline runs
        self._running = False  # `_run` is on the stack
        self._discarded = 0
        self._unsent = 0  # bytes the client had not taken when last looked at
        self.paused = False  # not being read
        self.full = False  # takes less than it is given
        # for the request at hand
        self.handler: Handler | None = None
        self._left = 0  # bytes of a fixed-length body still to come
        self._scanner: ChunkScanner | None = None

    # --- from the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock on a client that may never speak."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none of asyncio's classes
        frontend = self._frontend
        if len(frontend.connections) >= frontend.limits.max_connections or frontend.closing:
            self._state = _CLOSED
            frontend.refused += 1
            self.transport.abort()
            return
        frontend.connections.add(self)
        name = transport.get_extra_info("peername")
        self.peer = name[0].encode() if name else b"unknown"
        self.due = frontend.now() + frontend.limits.head_timeout

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        state = self._state
        if state == _IDLE:
            if self._buffer:
                data = self._buffer + data
                self._buffer = b""
            rest = self._start(data)
            if rest:
                self._run(rest)
        elif state == _BODY:
            self._take_body(data)
        elif state == _ANSWERING:
            self._hold(self._buffer + data)
        elif state == _LINGERING:
            self._discarded += len(data)
            if self._discarded > _MAX_LINGER_BYTES:
                self.transport.abort()

    def eof_received(self) -> bool:
        """A client that has stopped sending has left (spec 4.5)."""
        if self.handler is not None:
            self._client_left()
            self.transport.abort()
        return False  # closes, once what was written has been sent

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the connection."""
        self._client_left()
        self._frontend.forget(self)

    def pause_writing(self) -> None:
        """Stop whoever feeds this client."""
        self.full = True
        if self.handler is not None:
            self.handler.client_full(full=True)

    def resume_writing(self) -> None:
        """Go on feeding this client."""
        self.full = False
        if self.handler is not None:
            self.handler.client_full(full=False)

    # --- for the handler ---------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading: whatever takes this client's bytes is full."""
        if not self.paused and self._state < _LINGERING:
            self.paused = True
            self.transport.pause_reading()
            if self._state == _BODY and self.handler is not None:
                self.due = self.handler.due  # the client is not to blame for the wait

    def resume(self) -> None:
        """Read again."""
        if self.paused and self._state != _CLOSED:
            self.paused = False
            self.transport.resume_reading()
            if self._state == _BODY:
                self._await_body()

    def send_continue(self) -> None:
        """Tell a client that asked to go on and send its body."""
        self.transport.write(_CONTINUE)

    @property
    def keep_alive(self) -> bool:
        """Whether the connection can carry another request after this one."""
        return self._state == _ANSWERING and self.head.keep_alive and not self._frontend.closing

    def answer(self, answer: Answer, *, more: bytes = b"") -> None:
        """Answer the request with a whole answer of the router's own; `more` is added to its head."""
        keep = self.keep_alive
        connection = None if keep and self.head.minor else "keep-alive" if keep else "close"
        block = answer.head(connection=connection, more=more)
        self.transport.write(block if self.head.method == b"HEAD" else block + answer.body)
        self.finish(self._frontend.now(), keep_alive=keep)

    def finish(self, now: float, *, keep_alive: bool) -> None:
        """The answer has been written whole; go on to the next request, or end."""
        self.handler = None
        self._scanner = None
        if self._state == _CLOSED:
            return
        if not keep_alive or self._state != _ANSWERING or self._frontend.closing:
            self._linger()
            return
        self._state = _IDLE
        self.due = now + self._frontend.idle_timeout
        if self.paused:
            self.resume()
        if self._buffer and not self._running:
            data, self._buffer = self._buffer, b""
            self._run(data)

    def cut(self, *, hard: bool) -> None:
        """End the connection in the middle of an answer; `hard` where only a reset shows that it is cut."""
        self.handler = None
        if hard:
            self._state = _CLOSED
            reset(self.transport)
        else:
            self._close()

    # --- from the frontend's sweep -----------------------------------------------------------

    def expire(self, now: float) -> None:
        """`due` has passed: act on whatever was waited for."""
        state = self._state
        handler = self.handler
        if handler is not None:
            if now >= handler.due:
                handler.expire()
            elif state == _BODY:
                gap = f"nothing of the request's body came for {self._frontend.limits.body_timeout:g} s"
                handler.body_failed(answers.error(408, "request_timeout", gap))
        elif state == _IDLE and self._partial:
            late = f"the request's head was not whole after {self._frontend.limits.head_timeout:g} s"
            self._refuse(RequestError(408, "request_timeout", late))
        else:
            unsent = self.transport.get_write_buffer_size()
            if unsent and unsent != self._unsent:  # it is slow, but it reads
                self._unsent = unsent
                self.due = now + self._frontend.limits.idle_timeout
                return
            self._state = _CLOSED
            self.transport.abort()

    def check_paused(self) -> None:
        """Notice a client that left while it was not being read."""
        if peer_has_left(self.transport):
            self._client_left()
            self.transport.abort()

    def close_idle(self) -> None:
        """Close if no request is under way; else the connection ends with its answer."""
        if self._state == _IDLE:
            self._close()

    # --- inside ------------------------------------------------------------------------------

    def _run(self, data: bytes) -> None:
        """Start every request found in `data`, as long as each is answered on the spot."""
        self._running = True
        while data and self._state == _IDLE:
            data = self._start(data)
        self._running = False
        if data:
            self._hold(data)

    def _start(self, data: bytes) -> bytes:
        """Start the request at the beginning of `data`; return what follows it, or all of it if the head is short."""
        form = self._form
        head = None if form is None else form.fill(data, self.head)
        if head is None:
            if data[:2] == b"\r\n":  # RFC 9112 2.2: empty lines before a request line are passed over
                data = _EMPTY_LINES.sub(b"", data, count=1)
            end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
            if end < 0:
                self._await_head(data)
                return b""
            try:
                head, self._form = judge_request(data[:end], form)
            except RequestError as error:
                self._refuse(error)
                return b""
        self.head = head
        self._partial = False
        end = head.size
        self.handler = handler = self._frontend.open(self, head)
        if head.length > 0:
            stop = end + head.length
            if len(data) >= stop:
                self._state = _ANSWERING
                self.due = handler.due
                handler.begin(_part(data, end, stop), complete=True)
                return data[stop:]
            self._left = stop - len(data)
        elif head.chunked:
            self._scanner = scanner = ChunkScanner()
            try:
                cut = scanner.feed(data, end)
            except ChunkError as error:
                self._state = _BODY
                handler.begin(b"", complete=False)
                handler.body_failed(answers.error(400, "malformed_request", str(error)))
                return b""
            if scanner.end >= 0:
                self._state = _ANSWERING
                self.due = handler.due
                handler.begin(data[end:cut] + b"\r\n", complete=True)
                return data[scanner.end :]
            self._state = _BODY
            self._await_body()
            handler.begin(data[end:cut], complete=False)
            return b""
        else:
            self._state = _ANSWERING
            self.due = handler.due
            handler.begin(b"", complete=True)
            return data[end:]
        self._state = _BODY
        self._await_body()
        handler.begin(_part(data, end, len(data)), complete=False)
        return b""

    def _hold(self, data: bytes) -> None:
        """Keep what came early."""
        self._buffer = data
        if len(data) >= MAX_PIPELINED and self._state == _ANSWERING:
            self.pause()

    def _await_head(self, data: bytes) -> None:
        """Keep the start of a head, unless it is beyond hope already."""
        if len(data) >= MAX_HEAD:
            self._refuse(RequestError(431, "head_too_large", f"a request's head may have {MAX_HEAD} bytes"))
        elif data.count(b"\n") != data.count(b"\r\n"):
            self._refuse(RequestError(400, "malformed_request", "a line of the head does not end in CR LF"))
        elif data and not 0x21 <= data[0] < 0x7F and data != b"\r":
            self._refuse(RequestError(400, "malformed_request", "this is not an HTTP/1.1 request"))
        else:
            self._buffer = data
            if data and not self._partial:
                self._partial = True
                self.due = self._frontend.now() + self._frontend.limits.head_timeout

    def _await_body(self) -> None:
        assert self.handler is not None
        self.due = min(self.handler.due, self._frontend.now() + self._frontend.limits.body_timeout)

    def _take_body(self, data: bytes) -> None:
        handler = self.handler
        assert handler is not None
        scanner = self._scanner
        if scanner is None:
            size = len(data)
            if size < self._left:
                self._left -= size
                if not self.paused:
                    self._await_body()
                handler.body(data, complete=False)
                return
            piece, rest = (data, b"") if size == self._left else (data[: self._left], data[self._left :])
        else:
            try:
                cut = scanner.feed(data)
            except ChunkError as error:
                handler.body_failed(answers.error(400, "malformed_request", str(error)))
                return
            if scanner.end < 0:
                if not self.paused:
                    self._await_body()
                if cut:
                    handler.body(data[:cut], complete=False)
                return
            piece, rest = data[:cut] + b"\r\n", data[scanner.end :]
        self._state = _ANSWERING
        self.due = handler.due
        if rest:
            self._hold(rest)
        handler.body(piece, complete=True)

    def _refuse(self, error: RequestError) -> None:
        """Answer what is not a request, and end: nothing after it can be trusted."""
        self.handler = None
        self._scanner = None
        self._buffer = b""
        answer = answers.error(error.status, error.code, str(error))
        self._frontend.on_refused(error.status)
        self.transport.write(answer.head(connection="close") + answer.body)
        self._linger()

    def _linger(self) -> None:
        self._state = _LINGERING
        self._buffer = b""
        self._left = 0
        self.due = self._frontend.now() + _LINGER
        if self.paused:
            self.paused = False
            self.transport.resume_reading()
        if not self.transport.is_closing():
            self.transport.write_eof()

    def _close(self) -> None:
        """End once what was written has been taken; `expire` bounds the wait."""
        self._state = _CLOSED
        self.due = self._frontend.now() + _LINGER
        self.transport.close()

    def _client_left(self) -> None:
        handler, self.handler = self.handler, None
        self._scanner = None
        self._buffer = b""
        self._state = _CLOSED
        if handler is not None:
            handler.client_left()

    def __repr__(self) -> str:
        state = ("idle", "body", "answering", "lingering", "closed")[self._state]
        return f"<ClientConnection {self.peer.decode()} {state}{' paused' if self.paused else ''}>"


def _part(data: bytes, start: int, stop: int) -> Piece:
    return data[start:stop] if stop - start <= _COPIED else memoryview(data)[start:stop]
