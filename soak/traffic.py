"""The kinds of requests, and what each demands of its answer."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import h11

from pypto_serving_router.sim.completion import answer_pieces, parse
from soak.wire import Answer, Connection, Cut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from soak.ledger import Ledger

DECODE_RATE = 400.0
"""Tokens a second of one answer; the replicas are started with it."""

_TURNS = 6
_PATIENCE = 10.0  # seconds for what takes milliseconds, unless this process itself is starved
_MALFORMED = [
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    b"GET /v1/models HTTP/1.1\nHost: x\n\n",
    b"GET /v1/models HTTP/1.1\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nBad Name: 1\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
]


class Wrong(Exception):
    """An answer is not the one to its request."""


@dataclass(eq=False, slots=True)
class Conversation:
    """One session: its transcript and, after the first answer, its id."""

    turns: list[str] = field(default_factory=list)
    session: str = ""
    busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation asked for, and the text that only this request can be answered with."""

    data: bytes
    text: str
    session: str
    tokens: int
    stream: bool


class Traffic:
    """Sends requests of all kinds to one port; each method is a kind, and says how it ended."""

    def __init__(self, port: int, ledger: Ledger, seed: int, disturbed_since: Callable[[float], bool]) -> None:
        self._port = port
        self._ledger = ledger
        self._disturbed_since = disturbed_since
        self._random = random.Random(seed)
        self._idle: list[tuple[float, Connection]] = []
        self._conversations = [Conversation() for _ in range(300)]
        self.kinds: dict[str, tuple[float, Callable[[], Awaitable[str]]]] = {
            "short": (40, self.short),
            "conversation": (25, self.conversation),
            "streamed": (12, self.streamed),
            "long": (2, self.long),
            "cancelled": (6, self.cancelled),
            "large": (1.5, self.large),
            "chunked": (3, self.chunked),
            "pipelined": (3, self.pipelined),
            "slow reader": (0.5, self.slow_reader),
            "old": (1, self.old),
            "broken replica": (2, self.broken_replica),
            "malformed": (3, self.malformed),
            "reading": (3, self.reading),
        }

    def pick(self) -> str:
        """Return the kind of the next request."""
        return self._random.choices(list(self.kinds), [weight for weight, _ in self.kinds.values()])[0]

    def close(self) -> None:
        """Close the connections that are kept for later."""
        for _, connection in self._idle:
            connection.leave()
        self._idle.clear()

    # --- kinds ---

    async def short(self) -> str:
        """A small request with a whole answer."""
        request = self._request(tokens=self._random.randint(1, 16))
        began = time.monotonic()
        answer = await self._exchange(request)
        took = time.monotonic() - began
        outcome = self._check_whole(request, answer)
        if outcome == "complete":
            latencies = self._ledger.troubled if self._disturbed_since(began) else self._ledger.calm
            latencies.add(max(0.0, took - request.tokens / DECODE_RATE))
        return outcome

    async def conversation(self) -> str:
        """The next turn of a conversation, which keeps its id."""
        free = [one for one in self._conversations if not one.busy]
        talk = self._random.choice(free) if free else Conversation()
        talk.busy = True
        try:
            said = self._word()
            if len(talk.turns) >= 2 * _TURNS:
                talk.turns, talk.session = [], ""
            request = self._request(
                tokens=self._random.randint(2, 12), turns=[*talk.turns, said], session=talk.session, stream=True
            )
            answer = await self._exchange(request)
            outcome = self._check_stream(request, answer)
            if outcome == "complete":
                talk.session = answer.header(b"x-session-id")
                talk.turns += [said, request.text]
            return outcome
        finally:
            talk.busy = False

    async def streamed(self) -> str:
        """A streamed answer."""
        request = self._request(tokens=self._random.randint(10, 80), stream=True)
        return self._check_stream(request, await self._exchange(request))

    async def long(self) -> str:
        """A stream of some seconds."""
        request = self._request(tokens=self._random.randint(800, 2400), stream=True)
        return self._check_stream(request, await self._exchange(request))

    async def cancelled(self) -> str:
        """A client that leaves: before the answer, or in it."""
        stream = self._random.random() < 0.7
        request = self._request(tokens=self._random.randint(40, 400), stream=stream)
        connection = await Connection.open(self._port)
        answer = Answer()
        after = self._random.randint(0, 2000)
        try:
            await connection.send(request.data)
            if after > 1000 and stream:
                await connection.answer(answer, enough=lambda seen: len(seen.body) >= after)
                self._check_beginning(request, answer)
            else:
                await asyncio.sleep(after / 20_000)
        finally:
            connection.leave(hard=self._random.random() < 0.5)
        return "left" if answer.status in (0, 200) else self._refused(answer)

    async def large(self) -> str:
        """Megabytes both ways."""
        size = self._random.randint(1, 4) << 20
        padding = self._random.randbytes(size // 2).hex()
        request = self._request(
            tokens=self._random.randint(1, 40),
            turns=[padding + self._word()],
            answer_bytes=self._random.randint(1, 4) << 20,
            stream=self._random.random() < 0.5,
        )
        answer = await self._exchange(request)
        return (self._check_stream if request.stream else self._check_whole)(request, answer)

    async def chunked(self) -> str:
        """A body in chunks that come one by one."""
        request = self._request(tokens=self._random.randint(1, 16))
        head, _, body = request.data.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
        connection = await Connection.open(self._port)
        try:
            await connection.send(b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b""]))
            while body:
                size = self._random.randint(1, 60)
                piece, body = body[:size], body[size:]
                await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                await asyncio.sleep(0.002)
            await connection.send(b"0\r\n\r\n")
            return self._check_whole(request, await connection.answer(Answer()))
        finally:
            connection.leave()

    async def pipelined(self) -> str:
        """Requests that do not wait for each other's answers."""
        requests = [self._request(tokens=self._random.randint(1, 12)) for _ in range(self._random.randint(2, 5))]
        connection = await Connection.open(self._port)
        outcome = "complete"
        try:
            await connection.send(b"".join(request.data for request in requests))
            for request in requests:
                answer = await connection.answer(Answer())
                outcome = self._check_whole(request, answer)
                if not answer.keep_alive:
                    break
        finally:
            connection.leave()
        return outcome

    async def slow_reader(self) -> str:
        """A client that takes an answer of a megabyte little by little."""
        request = self._request(tokens=40, answer_bytes=1 << 20)
        connection = await Connection.open(self._port, limit=4096)
        try:
            await connection.send(request.data)
            return self._check_whole(request, await connection.answer(Answer(), pause=0.05))
        finally:
            connection.leave()

    async def old(self) -> str:
        """An HTTP/1.0 client, for whom the end of the connection is the end of a stream."""
        request = self._request(tokens=self._random.randint(5, 40), stream=True)
        connection = await Connection.open(self._port)
        try:
            await connection.send(request.data.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1))
            return self._check_stream(request, await connection.answer(Answer()))
        finally:
            connection.leave()

    async def broken_replica(self) -> str:
        """An answer that the replica breaks off: the client must be able to tell."""
        way = self._random.choice(["fin", "rst", "garbage", "hang"])
        after = self._random.choice([-1, -1, 0, 3, 8])
        tokens = 12
        stream = self._random.random() < 0.8
        request = self._request(tokens=tokens, stream=stream, faults={"break_with": way, "break_after": after})
        answer = Answer()
        try:
            await asyncio.wait_for(self._exchange(request, into=answer), _PATIENCE)
        except TimeoutError:
            if way != "hang":
                raise Wrong(f"no end of an answer that was broken by {way}") from None
            return "left"
        except Cut:
            self._check_beginning(request, answer)
            return "cut"
        if answer.status == 200:
            raise Wrong(f"an answer broken by {way} after {after} looks whole: {bytes(answer.body)!r}")
        return self._refused(answer)

    async def malformed(self) -> str:
        """What is no request: refused, and the connection ended."""
        data = self._random.choice(_MALFORMED)
        connection = await Connection.open(self._port)
        try:
            try:
                await connection.send(data)
                answer = await connection.answer(Answer())
            except Cut as error:
                raise Wrong(f"no answer to {data[:60]!r}: {error}") from None
            if answer.status not in (400, 431):
                raise Wrong(f"{answer.status} to {data[:60]!r}")
            if await asyncio.wait_for(connection.rest(), _PATIENCE):
                raise Wrong(f"more than one answer to {data[:60]!r}")
        finally:
            connection.leave()
        return str(answer.status)

    async def reading(self) -> str:
        """The router's own pages, and a GET that any replica answers."""
        path = self._random.choice(["/health", "/metrics", "/replicas", "/v1/models", "/nothing"])
        head = f"GET {path} HTTP/1.1\r\nHost: soak\r\n\r\n".encode()
        answer = await self._exchange(Request(data=head, text="", session="", tokens=0, stream=False))
        if path == "/nothing" and answer.status != 404:
            raise Wrong(f"{answer.status} to {path}")
        if path == "/health" and b'"replicas_ready"' not in answer.body:
            raise Wrong(f"{bytes(answer.body)!r} to {path}")
        if path == "/metrics" and b"pypto_router_requests_total" not in answer.body:
            raise Wrong(f"{len(answer.body)} bytes to {path}")
        return str(answer.status)

    # --- asking ---

    def _word(self) -> str:
        return str(UUID(int=self._random.getrandbits(128)))

    def _request(
        self,
        *,
        tokens: int,
        turns: list[str] | None = None,
        session: str = "",
        stream: bool = False,
        faults: dict[str, Any] | None = None,
        answer_bytes: int | None = None,
    ) -> Request:
        messages = [
            {"role": ("user", "assistant")[index % 2], "content": turn}
            for index, turn in enumerate(turns or [self._word()])
        ]
        fields: dict[str, Any] = {"model": "qwen", "messages": messages, "max_tokens": tokens, "stream": stream}
        named = self._random.random() if session else 0.0
        if named > 0.5:
            fields["session_id"] = session
        body = json.dumps(fields).encode()
        changes = (faults or {}) | ({"answer_bytes": answer_bytes} if answer_bytes else {})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(body)}\r\n"
        if session and named <= 0.5:
            head += f"X-Session-Id: {session}\r\n"
        if changes:
            head += f"X-Sim-Faults: {json.dumps(changes)}\r\n"
        text = "".join(answer_pieces(parse(body, chat=True).rendered(), tokens, answer_bytes))
        return Request(data=head.encode() + b"\r\n" + body, text=text, session=session, tokens=tokens, stream=stream)

    async def _exchange(self, request: Request, *, into: Answer | None = None) -> Answer:
        """Send on a kept connection, or a new one, and keep it if it can be used again."""
        connection = await self._connection()
        answer = Answer() if into is None else into
        kept = False
        try:
            await connection.send(request.data)
            await connection.answer(answer)
            if answer.keep_alive and len(self._idle) < 50:
                self._idle.append((time.monotonic(), connection))
                kept = True
        finally:
            if not kept:
                connection.leave()
        return answer

    async def _connection(self) -> Connection:
        while self._idle and self._random.random() < 0.8:
            since, connection = self._idle.pop()
            if time.monotonic() - since < 30:  # the router keeps them for 75 s
                return connection
            connection.leave()
        return await Connection.open(self._port)

    # --- judging ---

    def _refused(self, answer: Answer) -> str:
        """An error of the router's own; whoever called decides whether one was to be expected."""
        if answer.status not in (502, 503, 504):
            raise Wrong(f"status {answer.status}: {bytes(answer.body[:300])!r}")
        return str(answer.status)

    def _check_head(self, request: Request, answer: Answer) -> None:
        session = answer.header(b"x-session-id")
        if not session or (request.session and session != request.session):
            raise Wrong(f"asked with session {request.session!r}, answered with {session!r}")
        self._ledger.placements[answer.header(b"x-router-placement")] += 1

    def _check_whole(self, request: Request, answer: Answer) -> str:
        if answer.status != 200:
            return self._refused(answer)
        self._check_head(request, answer)
        text = json.loads(answer.body)["choices"][0]["message"]["content"]
        if text != request.text:
            raise Wrong(f"the answer is not to this request: {text[:200]!r} instead of {request.text[:200]!r}")
        return "complete"

    def _check_stream(self, request: Request, answer: Answer) -> str:
        if answer.status != 200:
            return self._refused(answer)
        self._check_head(request, answer)
        if not answer.body.endswith(b"data: [DONE]\n\n") or _streamed(answer.body) != request.text:
            raise Wrong(f"the stream is not to this request: {bytes(answer.body[:200])!r} for {request.text[:200]!r}")
        return "complete"

    def _check_beginning(self, request: Request, answer: Answer) -> None:
        """What came of an unfinished stream must be the beginning of the right one."""
        if answer.status == 200 and answer.body.startswith(b"data:"):
            text = _streamed(answer.body[: answer.body.rfind(b"\n\n") + 2])
            if not request.text.startswith(text):
                raise Wrong(f"the beginning of another answer: {text[:200]!r} instead of {request.text[:200]!r}")


def _streamed(body: bytes | bytearray) -> str:
    """Return the text in a stream of events."""
    pieces = []
    for event in bytes(body).split(b"\n\n"):
        if event and event != b"data: [DONE]":
            choices = json.loads(event.removeprefix(b"data: "))["choices"]
            pieces += [choice["delta"].get("content", "") for choice in choices]
    return "".join(pieces)


PROTOCOL_ERRORS = (Wrong, h11.RemoteProtocolError, ValueError, LookupError)
"""What is wrong whatever the replicas did."""
