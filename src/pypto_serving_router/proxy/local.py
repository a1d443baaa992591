"""A request the router answers itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pypto_serving_router.core import answer as answers
from pypto_serving_router.core.chunks import dechunk

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine

    from pypto_serving_router.core.answer import Answer
    from pypto_serving_router.core.head import RequestHead
    from pypto_serving_router.proxy.client import ClientConnection
    from pypto_serving_router.proxy.flow import Piece

MAX_BODY: Final = 64 * 1024
"""Bytes of a body; what the router's own endpoints take is short."""

_NEVER: Final = float("inf")  # a drain takes as long as it takes; the client may leave


class LocalCall:
    """Reads the request whole, then lets `serve` answer it.

    A call goes on when its client leaves: a retirement once asked for is carried out (spec 6.4).
    """

    __slots__ = ("_client", "_head", "_pieces", "_serve", "_size", "_spawn", "due")

    def __init__(
        self,
        client: ClientConnection,
        head: RequestHead,
        *,
        serve: Callable[[RequestHead, bytes], Awaitable[Answer]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.due = _NEVER
        self._client: ClientConnection | None = client
        self._head = head
        self._serve = serve
        self._spawn = spawn
        self._pieces: list[Piece] = []
        self._size = 0

    def begin(self, piece: Piece, *, complete: bool) -> None:
        """Start reading."""
        waits = self._head.expect and not complete and not piece and self._head.length <= MAX_BODY
        if waits and self._client is not None:
            self._client.send_continue()
        self.body(piece, complete=complete)

    def body(self, piece: Piece, *, complete: bool) -> None:
        """Read on; once the body is whole, answer."""
        self._size += len(piece)
        if self._size > MAX_BODY or self._head.length > MAX_BODY:
            self.body_failed(answers.error(413, "body_too_large", f"the body may have {MAX_BODY} bytes"))
            return
        self._pieces.append(piece)
        if complete:
            self._spawn(self._run())

    def body_failed(self, answer: Answer) -> None:
        """Refuse the rest of the body."""
        if self._client is not None:
            self._client.answer(answer)

    def client_left(self) -> None:
        """Nobody will read the answer."""
        self._client = None

    def client_full(self, *, full: bool) -> None:
        """Nothing to hold back: the answer is one piece."""

    def expire(self) -> None:
        """Never called: `due` is never."""

    async def _run(self) -> None:
        body = b"".join(self._pieces)
        answer = answers.error(500, "internal_error", "the router failed to answer; its log says why")
        try:
            answer = await self._serve(self._head, dechunk(body) if self._head.chunked else body)
        finally:  # whatever was raised is logged where the task ends
            if self._client is not None:
                self._client.answer(answer)
