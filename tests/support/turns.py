"""A conversation with an OpenAI-compatible server, turn by turn, as a client sees it."""

from __future__ import annotations

import http.client
import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORDS = ("the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with")


def words(count: int) -> str:
    """Return words that no other call returns, about one token each."""
    return " ".join(random.SystemRandom().choices(_WORDS, k=count))


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered turn; times are seconds from the request on."""

    text: str
    first_token: float
    headers: Mapping[str, str]
    usage: Mapping[str, Any]

    @property
    def session(self) -> str | None:
        """The session id that the answer carried."""
        return self.headers.get("x-session-id")

    @property
    def replica(self) -> str | None:
        """The replica that the router says answered."""
        return self.headers.get("x-router-replica")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, by the engine's own count."""
        return int(self.usage["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the engine found in its KV cache."""
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


@dataclass(slots=True)
class Talk:
    """One conversation: the whole transcript is sent each turn, with the session id that was answered last."""

    url: str
    messages: list[dict[str, str]] = field(default_factory=list)
    session: str | None = None

    def say(self, text: str, *, max_tokens: int = 8, url: str | None = None) -> Turn:
        """Take a turn, streamed; with `url` elsewhere, and without adding it to the transcript."""
        asked = [*self.messages, {"role": "user", "content": text}]
        turn = chat(url or self.url, asked, session=self.session, max_tokens=max_tokens)
        if url is None:
            self.messages = [*asked, {"role": "assistant", "content": turn.text}]
            self.session = turn.session
        return turn


def body(messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
    """Return the body of a streamed chat request that is answered the same each time."""
    usage = {"include_usage": True}
    return {"model": "any", "messages": messages, "temperature": 0, "stream": True, "stream_options": usage, **fields}


def chat(url: str, messages: list[dict[str, str]], *, session: str | None = None, **fields: Any) -> Turn:
    """Send one streamed chat request; a cut answer raises `http.client.IncompleteRead`."""
    parts = urlsplit(url)
    headers = {"Content-Type": "application/json"} | ({"X-Session-Id": session} if session else {})
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        start = time.monotonic()
        connection.request("POST", "/v1/chat/completions", json.dumps(body(messages, **fields)), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        pieces: list[str] = []
        usage: dict[str, Any] = {}
        first = 0.0
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if content := choice["delta"].get("content"):
                    first = first or time.monotonic() - start
                    pieces.append(content)
        return Turn("".join(pieces), first, {k.lower(): v for k, v in response.getheaders()}, usage)
    finally:
        connection.close()
