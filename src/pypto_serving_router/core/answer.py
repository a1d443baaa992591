"""Answers the router makes itself, rather than relays."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON: Final = "application/json"

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: status, body, and fields beside those that describe the body and the connection."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(self, *, connection: str | None, more: bytes = b"") -> bytes:
        """Serialise the head; `more` is whole lines, each with its CR LF."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", f"Content-Length: {len(self.body)}"]
        if self.body:
            lines.append(f"Content-Type: {self.content_type}")
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if connection is not None:
            lines.append(f"Connection: {connection}")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n" + more + b"\r\n"


def document(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Answer with `value` as JSON."""
    return Answer(status, msgspec.json.encode(value) + b"\n", headers=headers or {})


def error(
    status: int,
    code: str,
    message: str,
    *,
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Answer:
    """Answer with an error that OpenAI's clients and pypto-serving's can both read (spec 4.7)."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    described = {"message": message, "type": kind, "param": None, "code": code}
    body = {"error": described, "object": "error", "message": message, **(more or {})}
    return document(body, status=status, headers=headers)
