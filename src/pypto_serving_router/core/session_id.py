"""Where a request's session id comes from, and which ids are usable."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from pypto_serving_router.core.ids import SessionId

if TYPE_CHECKING:
    from collections.abc import Sequence

_USABLE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class _Body(msgspec.Struct):
    session_id: str | None = None


_decode = msgspec.json.Decoder(_Body).decode


def from_header(values: Sequence[bytes]) -> SessionId | None:
    """Return the usable id in a request's `X-Session-Id` fields, of which there is at least one.

    None if it is unusable, or if different ones were sent: the session is a new one then, whatever the body says.
    """
    first = values[0]
    if any(value != first for value in values):
        return None
    return _usable(first.decode("latin-1"))


def from_body(body: bytes) -> SessionId | None:
    """Return the usable `session_id` of a body that is a JSON object, or None."""
    try:
        value = _decode(body).session_id
    except msgspec.DecodeError:
        return None
    return None if value is None else _usable(value)


def _usable(value: str) -> SessionId | None:
    return SessionId(value) if _USABLE.fullmatch(value) else None
