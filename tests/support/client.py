"""Requests for tests that don't care about bytes: the standard library's client, one connection each."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the first field of that name."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def json(self) -> Any:
        """Return the body's JSON value."""
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Return the data of each server-sent event: a JSON value, or the closing `[DONE]`."""
        datas = [event.removeprefix(b"data: ") for event in self.body.split(b"\n\n") if event]
        return ["[DONE]" if data == b"[DONE]" else json.loads(data) for data in datas]


def request(
    url: str,
    method: str = "GET",
    *,
    body: bytes | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Answer:
    """Send one request, a mapping as JSON, and return the answer; a cut one raises `http.client.IncompleteRead`."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target or "/", body=data, headers=dict(headers or {}))
        with connection.getresponse() as response:
            return Answer(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


def chat(*turns: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a chat request whose turns are the user's and the assistant's by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": turn} for index, turn in enumerate(turns)]
    return {"model": "qwen", "messages": messages, **fields}
