"""Conversations through the official client, and requests that stay open for as long as a test wants."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openai import OpenAI
from tests.support.client import chat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.router import Router
    from tests.support.wire import Wire

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of one turn: the text, the id and the replica its headers name, and the prompt's cached tokens."""

    text: str
    session: str
    replica: str
    placement: str
    cached: int


class Talker:
    """The official client at a router; it neither retries nor asks for compressed answers."""

    def __init__(self, url: str) -> None:
        self.client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)

    def say(
        self,
        *turns: str,
        session: str | None = None,
        body_session: object = None,
        stream: bool = False,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Turn:
        """Take the next turn of a conversation; its id goes into the header, or as `body_session` into the body.

        Raises:
            openai.APIError: the answer was an error, or did not come whole.
        """
        arguments: dict[str, Any] = {
            **chat(*turns, max_tokens=4, **fields),
            "stream": stream,
            "extra_headers": {**({} if session is None else {"X-Session-Id": session}), **(headers or {})},
            "extra_body": {} if body_session is None else {"session_id": body_session},
        }
        raw = self.client.chat.completions.with_raw_response.create(**arguments)
        answer = raw.parse()
        if stream:
            events = list(answer)
            text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
            usage = events[-1].usage
        else:
            text, usage = answer.choices[0].message.content, answer.usage
        return Turn(
            text=text,
            session=raw.headers["X-Session-Id"],
            replica=raw.headers["X-Router-Replica"],
            placement=raw.headers["X-Router-Placement"],
            cached=usage.prompt_tokens_details.cached_tokens,
        )

    def close(self) -> None:
        """Close its connections."""
        self.client.close()


def post(body: Mapping[str, Any] | bytes, *, path: str = CHAT, **headers: str) -> bytes:
    """Write a POST; underscores in the names of fields stand for hyphens."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nHost: router\r\n{fields}Content-Length: {len(data)}\r\n\r\n".encode() + data


@dataclass(frozen=True, slots=True)
class Held:
    """A request that its replica answers with the beginning of a stream, and then nothing."""

    wire: Wire
    replica: str
    session: str

    def leave(self) -> None:
        """Close the client's connection; a second time does nothing."""
        self.wire.close()


@contextmanager
def held(router: Router, session: str | None = None, *, count: int = 1) -> Iterator[list[Held]]:
    """Hold `count` requests open, one begun after the other; those of one session if it is given."""
    opened: list[Held] = []
    try:
        for _ in range(count):
            wire = router.connect()
            own = {} if session is None else {"X_Session_Id": session}
            wire.send(post(chat("hold", stream=True), X_Sim_Faults='{"break_with": "hang", "break_after": 1}', **own))
            head = wire.read_until(b"\r\n\r\n").decode()
            wire.read_until(b"data: ")
            assert head.startswith("HTTP/1.1 200 "), head
            named = dict(line.split(": ", 1) for line in head.splitlines()[1:-1])
            named = {name.lower(): value for name, value in named.items()}
            opened.append(Held(wire, named["x-router-replica"], named["x-session-id"]))
        yield opened
    finally:
        for one in opened:
            one.leave()
