"""Header lines judged one by one, and remembered: the usual line of a head costs one look-up.

What holds a secret, or differs from request to request, is not remembered. Every memory is bounded.
"""

from __future__ import annotations

from typing import Final, TypeVar

from pypto_serving_router.errors import RequestError

_V = TypeVar("_V")

_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # RFC 9110 5.6.2
_TEXT: Final = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])  # what a line may hold (RFC 9110 5.5)
_SHORT: Final = 64  # bytes; `translate` has a table to make first

# What is done with a field. Plain numbers: an enumeration's look-ups would be a tenth of a head's cost.
PLAIN: Final = 1  # goes on as it came
HOP: Final = 2  # ends here
HOST: Final = 3
LENGTH: Final = 4
CODING: Final = 5
CONNECTION: Final = 6
EXPECT: Final = 7
SESSION: Final = 8
FORWARDED_FOR: Final = 9
FORWARDED_PROTO: Final = 10
FORWARDED_HOST: Final = 11
REQUEST_ID: Final = 12
CONTENT_TYPE: Final = 13
BUFFERING: Final = 14
SET_COOKIE: Final = 15

_HOP_BY_HOP: Final = frozenset([b"keep-alive", b"te", b"trailer", b"upgrade"])  # and proxy-*, spec 4.2
_REQUEST_NAMES: Final = {
    b"host": HOST,
    b"content-length": LENGTH,
    b"transfer-encoding": CODING,
    b"connection": CONNECTION,
    b"expect": EXPECT,
    b"x-session-id": SESSION,
    b"x-forwarded-for": FORWARDED_FOR,
    b"x-forwarded-proto": FORWARDED_PROTO,
    b"x-forwarded-host": FORWARDED_HOST,
    b"x-request-id": REQUEST_ID,
}
_RESPONSE_NAMES: Final = {
    b"content-length": LENGTH,
    b"transfer-encoding": CODING,
    b"connection": CONNECTION,
    b"x-session-id": SESSION,
    b"x-request-id": REQUEST_ID,
    b"content-type": CONTENT_TYPE,
    b"x-accel-buffering": BUFFERING,
    b"set-cookie": SET_COOKIE,
}

_MEMORY: Final = 4096  # entries of each memory; full, it starts anew
_MEMORABLE: Final = 512  # bytes of the longest key that is remembered
_SECRETS: Final = frozenset([b"authorization", b"cookie", b"set-cookie", b"api-key", b"x-api-key"])
_VARYING: Final = frozenset([SESSION, REQUEST_ID, FORWARDED_FOR])


_PLAIN_FIELD: Final = (PLAIN, b"")
"""What a line that goes on as it came is judged as: of all its value, nothing is of interest."""


class LineMemory:
    """The fields of header lines seen before: kind and value; and the kinds of field names by their spelling."""

    __slots__ = ("_names", "_special", "fields")

    def __init__(self, special: dict[bytes, int]) -> None:
        self.fields: dict[bytes, tuple[int, bytes]] = {}
        self._names: dict[bytes, int] = {}
        self._special = special

    def learn(self, line: bytes) -> tuple[int, bytes]:
        """Judge a line not remembered; return its kind and value."""
        name, colon, value = line.partition(b":")
        if not colon:
            raise bad("a header line is not `name: value`")
        known = self._names.get(name) or self._classify(name)
        if known == LENGTH:
            return LENGTH, value.strip(b" \t")  # only digits will do, and whoever reads it sees to that
        if not is_text(value):
            raise bad("a control character in the head, or a line that does not end in CR LF")
        if known == -PLAIN:
            return _PLAIN_FIELD
        if known < 0:
            return -known, value.strip(b" \t")
        field = _PLAIN_FIELD if known == PLAIN else (known, value.strip(b" \t"))
        remember(self.fields, line, field)
        return field

    def kind(self, name: bytes) -> int:
        """Return the kind of a field whose name has been seen, else 0."""
        return abs(self._names.get(name, 0))

    def _classify(self, name: bytes) -> int:
        """Return the kind of a field; negative where its lines are not to be remembered."""
        if not is_token(name):
            raise bad("a header field's name is not a token")
        lower = name.lower()
        kind = self._special.get(lower)
        if kind is None:
            kind = HOP if lower in _HOP_BY_HOP or lower.startswith(b"proxy-") else PLAIN
        if kind in _VARYING or lower in _SECRETS:
            kind = -kind
        remember(self._names, name, kind)
        return kind


def _kind(name: bytes, special: dict[bytes, int]) -> int:
    kind = special.get(name)
    if kind is not None:
        return kind
    return HOP if name in _HOP_BY_HOP or name.startswith(b"proxy-") else PLAIN


def remember(memory: dict[bytes, _V], key: bytes, value: _V) -> None:
    """Note a judgement, in a memory that starts anew when it is full."""
    if len(key) > _MEMORABLE:
        return
    if len(memory) >= _MEMORY:
        memory.clear()
    memory[key] = value


request_lines = LineMemory(_REQUEST_NAMES)
response_lines = LineMemory(_RESPONSE_NAMES)


def is_ordinary(name: bytes) -> bool:
    """Tell whether a request's field, `name` in lower case, goes on as it came and holds no secret."""
    return is_token(name) and _kind(name, _REQUEST_NAMES) == PLAIN and name not in _SECRETS


def is_token(value: bytes) -> bool:
    """Tell whether `value` is a token: a method or a field name."""
    return bool(value) and not value.translate(None, _TOKEN)


def is_text(value: bytes) -> bool:
    """Tell whether `value` holds no control character but tabs."""
    # What is short and printable is known sooner. Latin-1 gives each byte a character.
    return (len(value) < _SHORT and value.decode("latin-1").isprintable()) or not value.translate(None, _TEXT)


def bad(message: str) -> RequestError:
    """Make the error for what is malformed, or could be read in two ways."""
    return RequestError(400, "malformed_request", message)
