"""A byte-exact upstream in the test's own process: records every byte it gets, answers with the bytes it was given."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.support.waiting import wait_until
from tests.support.wire import Ended, Wire

if TYPE_CHECKING:
    import ssl

Script = bytes | Callable[[Wire, bytes], None]
"""What answers one request: bytes, or a function that gets the connection and the request's bytes."""

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


_FOREVER = 3600.0
"""The upstream itself waits for nothing in particular: the test does, and ends it."""


def then_close(data: bytes) -> Script:
    """Answer with `data`, then a FIN."""

    def script(wire: Wire, _request: bytes) -> None:
        wire.send(data)
        wire.close()

    return script


def then_reset(data: bytes = b"") -> Script:
    """Answer with `data`, then a reset."""

    def script(wire: Wire, _request: bytes) -> None:
        wire.send(data)
        wire.reset()

    return script


def then_silence(data: bytes = b"") -> Script:
    """Answer with `data`, then wait until the other side ends."""

    def script(wire: Wire, _request: bytes) -> None:
        wire.send(data)
        wire.read_to_end()

    return script


class RawUpstream:
    """Listens on 127.0.0.1; the n-th request gets the n-th script, later ones the last.

    `GET /health` has a script of its own and isn't counted among `requests`; a request that ends halfway isn't either,
    but is in its connection's `received`. An error in a script is raised when the upstream is closed.
    """

    def __init__(self, *scripts: Script, health: Script = OK, tls: ssl.SSLContext | None = None) -> None:
        self.scripts = list(scripts) or [OK]
        self.health = health
        self.requests: list[bytes] = []
        self.probes = 0
        self.connections: list[Wire] = []
        self._tls = tls
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self.port = 0
        self._socket = self._bind()
        self.port = self._socket.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.listen()

    def __enter__(self) -> RawUpstream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def listen(self) -> None:
        """Accept connections, again after `refuse`."""
        self._socket.listen(512)
        self._start(self._accept, self._socket)

    def refuse(self) -> None:
        """Refuse new connections; the port stays ours, and those that were accepted stay open."""
        # shutdown wakes the accept, and ends the listening before the port is bound anew.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._socket = self._bind()

    def wait_requests(self, count: int, *, timeout: float = 30.0) -> list[bytes]:
        """Return the requests once there are `count` of them."""
        wait_until(lambda: len(self.requests) >= count, timeout=timeout, what=f"request {count} at {self.url}")
        return self.requests

    def close(self) -> None:
        """End everything; raise what went wrong in a script."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for wire in self.connections:
            with contextlib.suppress(OSError):
                wire.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        if self._errors:
            raise self._errors[0]

    def _bind(self) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", self.port))
        return bound

    def _start(self, target: Callable[[socket.socket], None], argument: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(argument,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            self._start(self._serve, accepted)

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            with Wire(sock, timeout=_FOREVER) as wire:
                self.connections.append(wire)
                while not wire.closed and (request := self._read_request(wire)):
                    script = self._script_for(request)
                    if callable(script):
                        script(wire, request)
                    else:
                        wire.send(script)
        except OSError:
            sock.close()  # the other side went, or `close` was called
        except Exception as error:  # noqa: BLE001 - handed to the test by `close`
            self._errors.append(error)

    def _read_request(self, wire: Wire) -> bytes:
        with contextlib.suppress(Ended):
            return wire.read_request()
        return b""

    def _script_for(self, request: bytes) -> Script:
        with self._lock:
            if request.startswith(b"GET /health "):
                self.probes += 1
                return self.health
            self.requests.append(request)
            return self.scripts[min(len(self.requests), len(self.scripts)) - 1]
