"""One end of a TCP connection, byte by byte: every wait has a deadline, and a reset is told from an end."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import h11

if TYPE_CHECKING:
    import ssl

Ending = Literal["fin", "rst"]


class Ended(AssertionError):
    """The other side ended before what was awaited had come."""


@dataclass(frozen=True, slots=True)
class WireAnswer:
    """One HTTP answer as a strict parser reads it, with the interim answers' statuses before it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    interim: list[int]

    def header(self, name: str) -> str | None:
        """Return the only field of that name, or None.

        Raises:
            AssertionError: there are several.
        """
        values = [value.decode("latin-1") for key, value in self.headers if key.lower() == name.lower().encode()]
        assert len(values) <= 1, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None


class Wire:
    """A connected socket.

    `received` is all that ever came; `ending` is how the other side ended, once a read has seen it.
    """

    def __init__(self, sock: socket.socket, *, timeout: float = 30.0) -> None:
        self.sock = sock
        self.timeout = timeout
        self.received = bytearray()
        self.ending: Ending | None = None
        self.closed = False
        self._unread = bytearray()

    @classmethod
    def connect(
        cls,
        target: str | int,
        *,
        timeout: float = 30.0,
        receive_buffer: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Wire:
        """Connect to a URL, or to a port on 127.0.0.1; a small `receive_buffer` makes a slow reader."""
        parts = urlsplit(target if isinstance(target, str) else f"http://127.0.0.1:{target}")
        host, port = parts.hostname or "", parts.port or 0
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.settimeout(timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.connect((host, port))
            if tls is not None:
                sock = tls.wrap_socket(sock, server_hostname=host)
        except BaseException:
            sock.close()
            raise
        return cls(sock, timeout=timeout)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing ---

    def send(self, data: bytes) -> None:
        """Send all of `data`."""
        self.sock.settimeout(self.timeout)
        self.sock.sendall(data)

    def trickle(self, data: bytes, interval: float, *, step: int = 1) -> None:
        """Send `data` in pieces of `step` bytes, `interval` seconds apart."""
        clock = threading.Event()
        for start in range(0, len(data), step):
            self.send(data[start : start + step])
            clock.wait(interval)

    def shut_writing(self) -> None:
        """Send a FIN; reading goes on."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close; the other side sees an end, or a reset if it had sent something unread."""
        self.closed = True
        self.sock.close()

    def reset(self) -> None:
        """Close with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    # --- reading ---

    def read_some(self) -> bytes:
        """Return what is there, or comes next; nothing once the other side has ended."""
        if not self._unread:
            self._fill(time.monotonic() + self.timeout, "more bytes")
        return self._take(len(self._unread))

    def read_exactly(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        deadline = time.monotonic() + self.timeout
        while len(self._unread) < count:
            if not self._fill(deadline, f"{count} bytes"):
                raise Ended(self._told(f"ended ({self.ending}) before {count} bytes had come"))
        return self._take(count)

    def read_until(self, pattern: bytes) -> bytes:
        """Return everything up to `pattern`, inclusive."""
        deadline = time.monotonic() + self.timeout
        searched = 0
        while (at := self._unread.find(pattern, searched)) < 0:
            searched = max(0, len(self._unread) - len(pattern))
            if not self._fill(deadline, repr(pattern)):
                raise Ended(self._told(f"ended ({self.ending}) before {pattern!r} had come"))
        return self._take(at + len(pattern))

    def read_to_end(self) -> bytes:
        """Return everything until the other side ends; `ending` then says how."""
        deadline = time.monotonic() + self.timeout
        while self._fill(deadline, "the end"):
            pass
        return self._take(len(self._unread))

    def read_ending(self) -> Ending:
        """Throw away what still comes, and return how the other side ends."""
        self.read_to_end()
        assert self.ending
        return self.ending

    def is_silent(self, seconds: float) -> bool:
        """Tell whether nothing came, no end either, for that long."""
        if self._unread or self.ending:
            return False
        self.sock.settimeout(seconds)
        try:
            self._store(self.sock.recv(65536))
        except TimeoutError:
            return True
        except ConnectionError:
            self.ending = "rst"
        return False

    def read_answer(self, method: str = "GET") -> WireAnswer:
        """Return the next HTTP answer, as h11 reads it.

        Raises:
            h11.RemoteProtocolError: it is malformed, or ended too early.
            ConnectionResetError: it was reset.
        """
        deadline = time.monotonic() + self.timeout
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        interim: list[int] = []
        response: h11.Response | None = None
        body = bytearray()
        while True:
            event = parser.next_event()
            match event:
                case h11.NEED_DATA:
                    if self._unread or self._fill(deadline, "the whole answer"):
                        parser.receive_data(self._take(len(self._unread)))
                    elif self.ending == "rst":
                        raise ConnectionResetError("the answer was reset")
                    else:
                        parser.receive_data(b"")
                case h11.InformationalResponse():
                    interim.append(event.status_code)
                case h11.Response():
                    response = event
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    assert response
                    self._unread[:0] = parser.trailing_data[0]
                    return WireAnswer(
                        status=response.status_code,
                        headers=[(bytes(name), bytes(value)) for name, value in response.headers.raw_items()],
                        body=bytes(body),
                        interim=interim,
                    )

    def read_request(self) -> bytes:
        """Return the bytes of the next HTTP request, head and body; nothing when the other side ends instead.

        Waits for its first byte without a deadline.
        """
        if not self._unread and not self._fill(None, "a request"):
            return b""
        head = self.read_until(b"\r\n\r\n")
        if re.search(rb"\r\ntransfer-encoding:[ \t]*chunked", head, re.IGNORECASE):
            body = b""
            size = -1
            while size:
                line = self.read_until(b"\r\n")
                size = int(line.split(b";")[0], 16)
                body += line + (self.read_exactly(size + 2) if size else self.read_until(b"\r\n"))
            return head + body
        length = re.search(rb"\r\ncontent-length:[ \t]*(\d+)", head, re.IGNORECASE)
        return head + self.read_exactly(int(length[1]) if length else 0)

    def _fill(self, deadline: float | None, wanted: str) -> bool:
        if self.ending:
            return False
        self.sock.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
        try:
            return self._store(self.sock.recv(65536))
        except TimeoutError:
            raise AssertionError(self._told(f"did not bring {wanted} within {self.timeout:g} s")) from None
        except ConnectionError:
            self.ending = "rst"
        return False

    def _store(self, data: bytes) -> bool:
        if not data:
            self.ending = "fin"
        self.received += data
        self._unread += data
        return bool(data)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._unread[:count])
        del self._unread[:count]
        return taken

    def _told(self, what: str) -> str:
        return f"the connection {what}; unread: {bytes(self._unread[-500:])!r}"
