"""A TCP relay that notes every byte of either direction: what a router and a replica really said to one another."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Talk:
    """One connection: what was sent to the target, and what came back."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)


class Tee:
    """Listens on 127.0.0.1 and relays to `port`, until `close`."""

    def __init__(self, port: int) -> None:
        self.talks: list[Talk] = []
        self._target = port
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        """End everything."""
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type] # any callable
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            talk = Talk()
            self.talks.append(talk)
            self._sockets += [client, server]
            self._start(self._copy, client, server, talk.sent)
            self._start(self._copy, server, client, talk.received)

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket, note: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                note += data
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
