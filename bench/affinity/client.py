"""The client: one conversation's turns, streamed, over a connection that is kept."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bench.affinity.workload import Conversation
from bench.wire import post, read_head

_TURN_WITHIN = 120.0
_TRIES = 3
_PAUSE = 0.2  # seconds before a failed turn is tried again, as a client would


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answered or failed turn; times in seconds, `sent` on the clock of the run."""

    conversation: int
    heavy: bool
    turn: int
    sent: float
    error: str = ""
    server: str = ""
    first_token: float = 0.0
    total: float = 0.0
    prompt: int = 0
    cached: int = 0

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


@dataclass(slots=True)
class _Stream:
    """What one streamed answer brought."""

    text: str = ""
    first_token: float = 0.0
    server: str = ""
    prompt: int = -1
    cached: int = 0
    done: bool = False

    def take(self, line: bytes, now: float) -> None:
        if line == b"data: [DONE]":
            self.done = True
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[6:])
        self.server = event.get("model") or self.server
        if usage := event.get("usage"):
            self.prompt = usage["prompt_tokens"]
            self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        for choice in event.get("choices") or []:
            if content := choice["delta"].get("content"):
                self.first_token = self.first_token or now
                self.text += content


class Link:
    """One keep-alive connection, for one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def ask(self, body: bytes, session: str | None) -> tuple[_Stream, Mapping[str, str]]:
        """Send one request; return its answer and the answer's headers.

        Raises:
            OSError, EOFError: the connection failed.
            ValueError: the answer is not a whole good one.
        """
        request = post(body, [f"X-Session-Id: {session}"] if session else [])
        status, headers = await self._send(request)
        stream, rest, raw = _Stream(), b"", b""
        async for piece in self._body(headers):
            raw = raw or piece[:200]
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                stream.take(line.strip(), time.perf_counter())
        if headers.get("connection", "").lower() == "close":
            self.close()
        if status != 200 or not stream.done or stream.prompt < 0:
            raise ValueError(f"status {status}, {'whole' if stream.done else 'cut'}: {raw.decode(errors='replace')}")
        return stream, headers

    async def _send(self, request: bytes) -> tuple[int, Mapping[str, str]]:
        """Send the request, twice where the kept connection turns out to have been closed meanwhile."""
        while True:
            fresh = self._writer is None
            if fresh:
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
            assert self._reader is not None
            assert self._writer is not None
            try:
                self._writer.write(request)
                return await read_head(self._reader)
            except (OSError, EOFError):
                self.close()
                if fresh:
                    raise

    async def _body(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        assert self._reader is not None
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readuntil(b"\r\n")
        elif "content-length" in headers:
            yield await self._reader.readexactly(int(headers["content-length"]))
        else:
            while piece := await self._reader.read(65536):
                yield piece
            self.close()


def request_body(model: str, messages: list[dict[str, str]], max_tokens: int) -> bytes:
    """Return a streamed chat request as JSON."""
    fields = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
    return json.dumps({**fields, "stream": True, "stream_options": {"include_usage": True}}).encode()


async def replay(
    conversation: Conversation, port: int, *, model: str, mint: bool, start: float, note: list[Turn]
) -> None:
    """Hold one conversation; with `mint`, the router names it in its first answer."""
    await asyncio.sleep(conversation.starts_at)
    link = Link(port)
    messages = [{"role": "system", "content": conversation.system}]
    session = None if mint else conversation.session
    for number, user in enumerate(conversation.users):
        messages.append({"role": "user", "content": user})
        body = request_body(model, messages, conversation.answers[number])
        for _ in range(_TRIES):
            sent = time.perf_counter()
            facts: dict[str, Any] = {"conversation": conversation.index, "heavy": conversation.heavy}
            facts |= {"turn": number + 1, "sent": sent - start}
            try:
                stream, headers = await asyncio.wait_for(link.ask(body, session), _TURN_WITHIN)
            except (OSError, EOFError, ValueError, TimeoutError) as error:
                link.close()
                note.append(Turn(**facts, error=repr(error)))
                await asyncio.sleep(_PAUSE)
                continue
            break
        else:
            break
        total = time.perf_counter() - sent
        first = stream.first_token - sent if stream.first_token else total
        facts |= {"first_token": first, "total": total, "server": stream.server}
        note.append(Turn(**facts, prompt=stream.prompt, cached=stream.cached))
        if mint:
            session = headers.get("x-session-id", session)
        messages.append({"role": "assistant", "content": stream.text})
        if number + 1 < len(conversation.users):
            await asyncio.sleep(conversation.thinks[number])
    link.close()
