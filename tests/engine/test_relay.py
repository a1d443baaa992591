"""What an engine says reaches the client as it was said, and what the client says the engine."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import Answer, request
from tests.support.turns import body

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine import Engine
    from tests.support.router import Router
    from tests.support.tee import Tee

pytestmark = pytest.mark.engine

MESSAGES = [{"role": "user", "content": "Say something."}]
CHAT = body(MESSAGES, max_tokens=24)
PROMPT = {"model": "any", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
REQUESTS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "/v1/models", None),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", {**CHAT, "stream": False, "stream_options": None}),
    ("POST", "/v1/completions", {**PROMPT, "stream": True}),
    ("POST", "/v1/completions", PROMPT),
    ("POST", "/v1/chat/completions", {"messages": "not a list"}),
    ("POST", "/v1/embeddings", {"input": "an endpoint that the engine refuses"}),
]


def bodies(answers: bytes) -> list[bytes]:
    """Return what came after the head of the last answer, as it stood on the wire."""
    return answers.rpartition(b"HTTP/1.1 ")[2].split(b"\r\n\r\n", 1)


def lasting(answer: Answer) -> tuple[int, str]:
    """Return what is the same each time a request is answered: not ids, dates and timings."""
    text = re.sub(r'"(created|id)":("[^"]*"|\d+)', "", answer.body.decode())
    return answer.status, re.sub(r'"timings":\{[^}]*\}|"prompt_tokens_details":\{[^}]*\}', "", text)


@pytest.mark.parametrize(("method", "path", "fields"), REQUESTS)
def test_bytes(
    start_router: Callable[..., Router], tee: Tee, method: str, path: str, fields: dict[str, Any] | None
) -> None:
    """Both bodies cross untouched, down to the framing of chunks (spec 4.1, 4.4)."""
    router = start_router([{"name": "a", "host": "127.0.0.1", "port": int(tee.url.rpartition(":")[2])}])
    content = b"" if fields is None else json.dumps(fields).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    with router.connect(timeout=30) as wire:
        wire.send(head.encode() + content)
        wire.read_to_end()
        got = bytes(wire.received)
    (talk,) = [talk for talk in tee.talks if path.encode() in talk.sent]

    assert got.split(b"\r\n\r\n", 1)[1] == bodies(bytes(talk.received))[1] != b""
    assert talk.sent.endswith(content)
    assert talk.sent.startswith(f"{method} {path} HTTP/1.1\r\n".encode())


@pytest.mark.parametrize(("method", "path", "fields"), REQUESTS)
def test_answers(router: Router, engines: list[Engine], method: str, path: str, fields: dict[str, Any] | None) -> None:
    """Through the router a request is answered as it is without one (spec 4.1)."""
    through = router.request(method, path, body=fields, timeout=30)
    name = through.header("X-Router-Replica")
    direct = request(next(engine.url for engine in engines if engine.name == name) + path, method, body=fields)

    assert lasting(through) == lasting(direct)
    assert through.header("Content-Type") == direct.header("Content-Type")
    assert (through.header("X-Session-Id") is None) == (method == "GET")
