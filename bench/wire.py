"""Requests as bytes, and single exchanges done by hand on a socket."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.script import Script
from bench.stub import MODEL

PATH = "/v1/chat/completions"
Session = Literal["header", "body", "none"]
_VOCABULARY = ("lorem", "ipsum", "dolor", "sit", "amet", "été", 'quote " and \\ slash', "newline\n", "42")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes


def post(body: bytes, extra: Sequence[str] = ()) -> bytes:
    """Return a POST of `body` with these header lines besides the necessary ones."""
    lines = [
        f"POST {PATH} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *extra,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def chat(script: Script, **more: object) -> bytes:
    """Return the JSON body of a chat completion that carries the script."""
    body: dict[str, object] = {"model": MODEL, "messages": [{"role": "system", "content": script.text()}], **more}
    if script.stream:
        body["stream"] = True
    return json.dumps(body).encode()


def _text(seed: int, room: int) -> str:
    """Return words that take `room` bytes as JSON, or a few less."""
    source = random.Random(seed)
    parts: list[str] = []
    size = 0
    while size < room:
        word = source.choice(_VOCABULARY)
        parts.append(word)
        size += len(json.dumps(word)) - 1
    text = " ".join(parts)
    while len(json.dumps(text)) - 2 > room:
        text = text[: -1 - (len(json.dumps(text)) - 2 - room) // 6]
    return text


def session_name(number: int) -> str:
    """Return the session id of the client with this number."""
    return f"sess-{number:06d}"


def conversation(number: int, *, script: Script, body_bytes: int, session: Session) -> bytes:
    """Return a request as an OpenAI client sends it, with a transcript that fills the body to its size."""
    body: dict[str, object] = {"model": MODEL}
    if session == "body":
        body["session_id"] = session_name(number)
    if script.stream:
        body["stream"] = True
    system = {"role": "system", "content": script.text()}
    user = {"role": "user", "content": ""}
    body["messages"] = [system, user]
    room = body_bytes - len(json.dumps(body))
    if room > 0:
        user["content"] = _text(number, room)
    extra = [
        "Accept: */*",
        "Accept-Encoding: gzip, deflate",
        "User-Agent: OpenAI/Python 1.99.0",
        "Authorization: Bearer sk-bench",
        "X-Stainless-Lang: python",
    ]
    if session == "header":
        extra.append(f"X-Session-Id: {session_name(number)}")
    return post(json.dumps(body).encode(), extra)


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read an answer's head: its status, and its fields by lower-case name."""
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw.decode("latin1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one whole answer, however it is framed (chunk framing is left in the body)."""
    status, headers = await read_head(reader)
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif "transfer-encoding" in headers:
        body = await reader.readuntil(b"0\r\n\r\n")
    else:
        body = await reader.read()
    return Answer(status, headers, body)


async def once(port: int, request: bytes) -> Answer:
    """Send one request on a connection of its own and return the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64 << 20)
    try:
        writer.write(request)
        return await read_answer(reader)
    finally:
        writer.close()


async def get(port: int, path: str) -> Answer:
    """Return the answer to a GET."""
    return await once(port, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
