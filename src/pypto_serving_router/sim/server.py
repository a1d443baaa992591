"""The HTTP side of the simulated replica: an asyncio protocol on httptools.

The router has a parser of its own; this one is a second, independent reader of what it sends.

One connection answers its requests one after the other, each in a task. A connection that goes away, its FIN
included, cancels the task: that is how a generation ends when its client leaves.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn, cast

import httptools

if TYPE_CHECKING:
    from pypto_serving_router.sim.faults import Break

SERVER = "pypto-serving-sim (simulation)"

Serve = Callable[["Exchange"], Coroutine[Any, Any, None]]
Field = tuple[str, str]


class BrokenOff(Exception):
    """The answer was broken by a fault, on purpose; nothing more may be written."""


@dataclass(slots=True)
class Request:
    """One request, whole; `raw_head` is empty when it was pipelined behind another one."""

    method: str = ""
    target: str = ""
    version: str = "1.1"
    keep_alive: bool = True
    headers: list[Field] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    raw_head: bytes = b""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """Return the first field of that (lower-case) name."""
        return next((value for key, value in self.headers if key.lower() == name), None)


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, serve: Serve, connections: set[Connection], keep_alive: Callable[[], float]) -> None:
        # Per process
        self._serve = serve
        self._connections = connections
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()

        # Per connection
        self.transport: asyncio.Transport
        self.writable = asyncio.Event()
        self.writable.set()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._stopping = False

        # Per request
        self._request = Request()
        self._raw = b""  # what was read of a request before its head was complete
        self._pipelined = False

    def stop(self) -> asyncio.Task[None] | None:
        """Close, after the request in hand, if any, has been answered by the task that is returned."""
        self._stopping = True
        if self._task is None:
            self.transport.close()
        return self._task

    # --- the transport's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection in."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Let the parser read on."""
        self._raw += data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stopping = True
        except httptools.HttpParserError as error:
            self._waiting.clear()
            message = f"not an HTTP request: {error}".encode()
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n")
            self.transport.write(b"content-length: %d\r\n\r\n%b" % (len(message), message))
            self.transport.close()

    def eof_received(self) -> bool:
        """Take a half-closed connection for a closed one, as pypto-serving's server does."""
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Cancel the request in hand."""
        self._connections.discard(self)
        self._leave()

    def pause_writing(self) -> None:
        """Make writers wait."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Let writers go on."""
        self.writable.set()

    # --- the parser's side ---

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._request = Request()
        self._pipelined = not self._raw
        self._end_idling()

    def on_url(self, url: bytes) -> None:
        """Take the target; it may come in pieces."""
        self._request.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """Take one field."""
        self._request.headers.append((name.decode("latin-1"), (value or b"").decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Take the head, and answer an Expect."""
        request = self._request
        request.method = self._parser.get_method().decode("latin-1")
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        if not self._pipelined:
            head, end, _ = self._raw.partition(b"\r\n\r\n")
            request.raw_head = head + end
        self._raw = b""
        if (request.header("expect") or "").lower() == "100-continue" and self._task is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._request.body += body
        self._raw = b""

    def on_message_complete(self) -> None:
        """Queue the request for its answer."""
        self._raw = b""
        self._waiting.append(self._request)
        self._next()

    # --- one request after the other ---

    def _next(self) -> None:
        self._end_idling()
        if self._task is not None or self.transport.is_closing():
            return
        if self._waiting:
            self._task = self._loop.create_task(self._serve(Exchange(self, self._waiting.popleft())))
            self._task.add_done_callback(self._answered)
        elif self._stopping:
            self.transport.close()
        else:
            self._idle = self._loop.call_later(self._keep_alive(), self.transport.close)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BrokenOff):
            self._loop.call_exception_handler({"message": "a request could not be served", "exception": error})
            self.transport.abort()
        self._next()

    def _end_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _leave(self) -> None:
        self._end_idling()
        self.writable.set()
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()


class Exchange:
    """One request with its response, and the ways to give that or to break it."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self.request = request
        self.trickle = 0.0
        self._connection = connection
        self._transport = connection.transport
        self._chunked = False
        self._keep_alive = request.keep_alive

    async def answer(
        self, status: int, body: bytes, *, content_type: str = "application/json", extra: Sequence[Field] = ()
    ) -> None:
        """Send a whole answer."""
        await self.begin(status, content_type, length=len(body), extra=extra)
        await self.send(body)
        await self.end()

    async def begin(
        self, status: int, content_type: str, *, length: int | None = None, extra: Sequence[Field] = ()
    ) -> None:
        """Send the head; without a length the body is chunked, or ends with the connection for HTTP/1.0."""
        fields = [("date", formatdate(usegmt=True)), ("server", SERVER), ("content-type", content_type), *extra]
        if length is not None:
            fields.append(("content-length", str(length)))
        elif self.request.version == "1.1":
            self._chunked = True
            fields.append(("transfer-encoding", "chunked"))
        else:
            self._keep_alive = False
        if not self._keep_alive:
            fields.append(("connection", "close"))
        elif self.request.version == "1.0":
            fields.append(("connection", "keep-alive"))
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in fields)]
        await self._write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def send(self, data: bytes) -> None:
        """Send a piece of the body: one chunk, one write. Waits while the client reads too slowly."""
        if data and self.request.method != "HEAD":
            await self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def end(self) -> None:
        """End the body."""
        if self._chunked and self.request.method != "HEAD":
            await self._write(b"0\r\n\r\n")
        if not self._keep_alive:
            self._transport.close()

    async def break_off(self, how: Break) -> NoReturn:
        """Break the answer here.

        Raises:
            BrokenOff: always, unless the process ends or the exchange falls silent.
        """
        await asyncio.sleep(0)  # what was written before leaves first
        match how:
            case "hang":
                await asyncio.Event().wait()
            case "exit":
                os._exit(os.EX_SOFTWARE)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "rst":
                # A linger time of 0 makes the close a reset.
                connection: socket.socket = self._transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._transport.abort()
            case "garbage":
                self._transport.write(b"\x00\xffthis is no HTTP\r\n\r\n")
                self._transport.close()
            case "fin":
                self._transport.close()
        raise BrokenOff

    async def _write(self, data: bytes) -> None:
        if self.trickle:
            for byte in data:
                self._transport.write(bytes((byte,)))
                await asyncio.sleep(self.trickle)
        else:
            self._transport.write(data)
        await self._connection.writable.wait()
