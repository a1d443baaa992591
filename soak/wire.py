"""The soak's client: raw bytes out, answers read by a strict parser of somebody else's (h11)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import h11

if TYPE_CHECKING:
    from collections.abc import Callable

_READ = 65536


class Cut(Exception):
    """The connection ended before the answer was whole, and the client could tell."""


@dataclass(slots=True)
class Answer:
    """What has come of one answer."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = False

    def header(self, name: bytes) -> str:
        """Return a field, or nothing."""
        return self.headers.get(name, b"").decode("latin-1")


class Connection:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._left_over = b""

    @classmethod
    async def open(cls, port: int, *, limit: int = _READ) -> Connection:
        """Connect to the router; a small `limit` makes a reader that takes little at a time."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit))

    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            Cut: the router has ended the connection.
        """
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Cut(str(error)) from None

    async def answer(
        self, into: Answer, *, pause: float = 0.0, enough: Callable[[Answer], bool] | None = None
    ) -> Answer:
        """Read one answer into `into`, `pause` seconds between two reads, until it is whole or `enough`.

        Raises:
            Cut: it ended early.
            h11.RemoteProtocolError: what came is no answer.
        """
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 17)
        parser.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        data, self._left_over = self._left_over, b""
        if data:
            parser.receive_data(data)
        ended = False
        while True:
            try:
                event = parser.next_event()
            except h11.RemoteProtocolError as error:
                if ended:
                    raise Cut("the connection ended in the answer") from error
                raise
            match event:
                case h11.NEED_DATA:
                    if pause:
                        await asyncio.sleep(pause)
                    data = await self._read()
                    ended = not data
                    parser.receive_data(data)
                case h11.Response():
                    into.status = event.status_code
                    into.headers = dict(event.headers)
                case h11.Data():
                    into.body += event.data
                    if enough is not None and enough(into):
                        return into
                case h11.EndOfMessage():
                    self._left_over = parser.trailing_data[0]
                    into.keep_alive = not ended and into.headers.get(b"connection", b"").lower() != b"close"
                    return into
                case h11.InformationalResponse():
                    pass
                case _:
                    raise Cut("the connection ended before the answer")

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(_READ)
        except OSError as error:
            raise Cut(str(error)) from None

    async def rest(self) -> bytes:
        """Return what still comes until the router ends the connection."""
        try:
            return self._left_over + await self._reader.read(-1)
        except OSError:
            return self._left_over

    def leave(self, *, hard: bool = False) -> None:
        """Close, or reset."""
        if hard:
            self._writer.transport.abort()
        else:
            self._writer.close()
