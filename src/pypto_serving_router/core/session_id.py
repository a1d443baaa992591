"""Where a request's session id comes from, and which ids are usable."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from pypto_serving_router.core.ids import SessionId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_T = TypeVar("_T")

_PLAIN: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-"
"""The characters of a usable id."""

_USABLE: Final = re.compile(rf"[{re.escape(_PLAIN.decode())}]{{1,128}}")

_LONGEST_LITERAL: Final = 2 + 128 * len(r"\u0061")
"""Bytes of the longest JSON string that spells a usable id: every character escaped."""

_LONGEST_SECOND_LOOK: Final = 256 * 1024
"""Bytes of the longest body worth a second look, which costs up to 14 ns a byte: 4 ms of the event loop."""

_BOM: Final = b"\xef\xbb\xbf"
_BACKSLASH: Final = b"\xff\xff"
_UNICODE: Final = b"\xfe\xfe"
r"""What a second look reads instead of `\\` and of the `\u` of a surrogate: as long, and in no text in UTF-8."""

_BROKEN_ESCAPE: Final = re.compile(rb"\\u[dD](?![0-9a-fA-F]{3})")


class _Body(msgspec.Struct, gc=False):
    session_id: msgspec.Raw = msgspec.Raw()


_read_body: Final = msgspec.json.Decoder(_Body).decode
_read_string: Final = msgspec.json.Decoder(str).decode


def from_header(values: Sequence[bytes]) -> SessionId | None:
    """Return the usable id in a request's `X-Session-Id` fields, of which there is at least one.

    None if it is unusable, or if different ones were sent: the session is a new one then, whatever the body says.
    """
    first = values[0]
    if len(values) > 1 and any(value != first for value in values):
        return None
    return _plain(first)


def from_body(body: bytes) -> SessionId | None:
    """Return the usable id that is the top-level `session_id` of a JSON object, else None.

    One pass over the body, in C. JSON is what RFC 8259 says, in UTF-8, not nested deeper than Python's recursion
    limit; a byte order mark is passed over. That the strings beside the id are UTF-8 is not checked: such a body is
    forwarded like any other, and to refuse it is the replica's business.
    """
    found = read_object(body, _read_body)
    return None if found is None else spelled(found.session_id)


def read_object(body: bytes, decode: Callable[[bytes], _T]) -> _T | None:
    """Return what `decode` makes of a body that is a JSON object, else None."""
    try:
        return decode(body)
    except (msgspec.ValidationError, RecursionError):
        return None  # no object; or nested as no request is
    except msgspec.DecodeError:
        return _second_look(body, decode)


def _second_look(body: bytes, decode: Callable[[bytes], _T]) -> _T | None:
    r"""Read a body with a byte order mark, or with half a surrogate pair (`\ud83d`), as a cut emoji leaves it.

    msgspec takes either for broken JSON; Python's json and JavaScript do not, and a conversation must not lose its
    replica over it. So their escapes are written in a way that msgspec takes for plain text; `text_of` reads them.
    """
    if len(body) > _LONGEST_SECOND_LOOK or not (body.startswith(_BOM) or rb"\ud" in body or rb"\uD" in body):
        return None
    plain = body.removeprefix(_BOM).replace(rb"\\", _BACKSLASH)  # so that each backslash left begins an escape
    if _BROKEN_ESCAPE.search(plain):
        return None
    try:
        return decode(plain.replace(rb"\ud", _UNICODE + b"d").replace(rb"\uD", _UNICODE + b"D"))
    except (msgspec.DecodeError, RecursionError):
        return None


def spelled(literal: msgspec.Raw) -> SessionId | None:
    """Return the usable id that a JSON string spells."""
    spelling = bytes(literal)
    if spelling[:1] != b'"' or len(spelling) > _LONGEST_LITERAL:
        return None  # absent, or not a string, or too long
    found = _plain(spelling[1:-1])
    if found is not None:
        return found
    try:
        return usable(_read_string(spelling))  # its characters may be escaped
    except msgspec.DecodeError:
        return None  # not UTF-8


def text_of(literal: msgspec.Raw) -> str | None:
    """Return the text that a JSON string spells, halves of surrogate pairs included."""
    try:
        return _read_string(literal)
    except msgspec.DecodeError:
        pass
    spelling = bytes(literal)
    if not spelling.startswith(b'"'):
        return None  # absent, or not a string
    try:
        text: str = json.loads(spelling.replace(_BACKSLASH, rb"\\").replace(_UNICODE, rb"\u").decode())
    except ValueError:
        return None  # not UTF-8
    return text


def _plain(value: bytes) -> SessionId | None:
    """Return the id that these bytes are, if they are one."""
    if not value or len(value) > 128:
        return None
    # Of letters, digits and dashes are nearly all ids, and that is known sooner: `translate` has a table to make first.
    plain = value.replace(b"-", b"").isalnum() or not value.translate(None, _PLAIN)
    return SessionId(value.decode()) if plain else None


def usable(value: str) -> SessionId | None:
    """Return the id if it is one."""
    return SessionId(value) if _USABLE.fullmatch(value) else None
