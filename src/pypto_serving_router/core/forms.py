"""Heads read before, as forms to be filled in: a client sends the same one again, but for a few values.

Theory of operation. The first head of its kind is judged line by line (`head.parse_request`), and what came of that is
kept as a form: the bytes of the head, with a blank for each value that differs from request to request. Which those
are is learned: a line that was never seen before is a blank, one that is remembered (`lines`) is not. A head that has
exactly the bytes of a form around its blanks, and in them values that need no judgement, is the first one but for
these values. Any other is judged line by line. A value needs none if the connection's last head had the same.

Rules for editors.

1. A form never refuses and never repairs: what it does not know for certain, it leaves to `parse_request`.
2. A blank takes no value that `parse_request` would refuse, or read as anything but itself.
3. No secret is kept: what may hold one is never remembered, and so always a blank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from pypto_serving_router.core import lines as kinds
from pypto_serving_router.core.head import MAX_HEAD, MAX_LENGTH_DIGITS, RequestHead, parse_request
from pypto_serving_router.core.lines import is_text, request_lines
from pypto_serving_router.core.session_id import from_header

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY: Final = 512  # forms, shared by all connections whose heads look alike
_MAX_SIZE: Final = 2048  # bytes of a head that is kept
_MAX_BLANKS: Final = 5

_PLAIN: Final = kinds.PLAIN
_LENGTH: Final = kinds.LENGTH
_SESSION: Final = kinds.SESSION
_BLANK: Final = frozenset([_PLAIN, _LENGTH, _SESSION])
_FIXED: Final = frozenset([kinds.HOP, kinds.HOST, kinds.CONNECTION])
_PERSISTENCE: Final = frozenset([b"close", b"keep-alive"])
_UNSEEN: Final = (0, b"")

_Sketch: TypeAlias = tuple[tuple[tuple[bytes, int], ...], bytes, bytes]
"""What stands before each blank, and what the blank holds; what stands after the last; the lines that go on.

A blank goes to the end of its line, and that belongs to it.
"""

_forms: dict[_Sketch, Form] = {}


class Form:
    """One kind of request head, to be filled in."""

    __slots__ = ("_blanks", "_fields", "_host", "_keep_alive", "_method", "_minor", "_pattern", "_tail", "_target")

    def __init__(self, head: RequestHead, blanks: Sequence[tuple[bytes, int]], tail: bytes, fields: bytes) -> None:
        """Keep what all heads of the kind of `head` have in common; the rest is a `_Sketch` of it."""
        assert head.host
        self._method = head.method
        self._target = head.target
        self._minor = head.minor
        self._host = head.host
        self._keep_alive = head.keep_alive
        self._blanks = [(before, len(before), kind) for before, kind in blanks]
        self._tail = tail
        self._fields = fields
        self._pattern = (
            b"%b %b HTTP/1.1\r\nHost: %%b\r\n%bX-Forwarded-For: %%b\r\nX-Forwarded-Proto: http\r\n"
            b"X-Forwarded-Host: %b\r\nX-Request-Id: %%b\r\n\r\n"
        ) % (_fixed(head.method), _fixed(head.target), fields, _fixed(head.host))

    def fill(self, data: bytes, last: RequestHead | None = None) -> RequestHead | None:
        """Read the head that `data` begins with; None if it is not whole or not of this kind, whatever it is.

        `last` is the head before it on the connection.
        """
        head = RequestHead()
        head.length = -1
        head.sessions = head.session = None
        head.values = values = []
        if last is not None and last.form is not self:
            last = None
        end = 0
        for number, (before, size, kind) in enumerate(self._blanks):
            start = end + size
            if data[end:start] != before:
                return None
            if last is not None:
                value = last.values[number]
                end = start + len(value)
                if data[start:end] == value:
                    values.append(value)
                    if kind == _LENGTH:
                        head.length = last.length
                    elif kind == _SESSION:
                        head.sessions = last.sessions
                        head.session = last.session
                    continue
            end = data.find(b"\r\n", start) + 2
            if end < 2:
                return None
            value = data[start : end - 2]
            if kind == _LENGTH:
                if not value.isdigit() or len(value) > MAX_LENGTH_DIGITS:
                    return None
                head.length = int(value)
            elif kind == _SESSION:
                head.sessions = [value]
                head.session = from_header(head.sessions)
                if head.session is None:
                    return None
            elif not is_text(value):
                return None
            values.append(data[start:end])
        head.size = end + len(self._tail)
        if head.size > MAX_HEAD or data[end : head.size] != self._tail:
            return None
        head.form = self
        head.method = self._method
        head.target = self._target
        head.minor = self._minor
        head.host = self._host
        head.keep_alive = self._keep_alive
        head.plain = True
        head.chunked = head.expect = False
        head.forwarded_for = head.request_id = None
        return head

    def lines(self, values: list[bytes]) -> list[bytes]:
        """Return the field lines that go on, of a head with these values."""
        return (self._fields % tuple(values)).split(b"\r\n")[:-1]  # after the last end of a line is nothing

    def forward(self, values: list[bytes], *, host: bytes, peer: bytes, request_id: bytes) -> bytes:
        """Serialise a head with these values for the replica known as `host`."""
        return self._pattern % (host, *values, peer, request_id)

    def __repr__(self) -> str:
        return f"<Form of {self._method.decode()} {self._target.decode()} with {len(self._blanks)} blanks>"


def judge_request(block: bytes, form: Form | None) -> tuple[RequestHead, Form | None]:
    """Read the head of a request line by line; return it with the form for the next one, which may be the old one.

    Raises:
        RequestError: as `parse_request`.
    """
    sketch = _sketch(block) if len(block) <= _MAX_SIZE else None
    head = parse_request(block)
    if sketch is not None and head.plain and head.host and not head.chunked and not head.expect:
        form = _forms.get(sketch)
        if form is None:
            if len(_forms) >= _MEMORY:
                _forms.clear()
            form = _forms[sketch] = Form(head, *sketch)
    return head, form


def _sketch(block: bytes) -> _Sketch | None:
    """Tell what is fixed in a head from its blanks; None if it is of no kind that has been seen before."""
    blanks: list[tuple[bytes, int]] = []
    fields: list[bytes] = []
    start, *lines = block.split(b"\r\n")
    fixed = start + b"\r\n"
    for line in lines:
        kind, value = request_lines.fields.get(line, _UNSEEN)
        if kind == _PLAIN:
            fields.append(_fixed(line) + b"\r\n")
        elif kind:
            if kind not in _FIXED or (kind == kinds.CONNECTION and value.lower() not in _PERSISTENCE):
                return None
        else:
            name, colon, value = line.partition(b":")
            kind = request_lines.kind(name)
            if kind not in _BLANK or (kind != _PLAIN and kind in [kind for _, kind in blanks]):
                return None
            before = name + colon
            if kind != _PLAIN:
                before += value[: len(value) - len(value.lstrip(b" \t"))]
            blanks.append((fixed + before, kind))
            fields.append(_fixed(before) + b"%b")
            fixed = b""
            continue
        fixed += line + b"\r\n"
    if len(blanks) > _MAX_BLANKS:
        return None
    return tuple(blanks), fixed + b"\r\n", b"".join(fields)


def _fixed(text: bytes) -> bytes:
    """Write a text so that it stands for itself in a pattern."""
    return text.replace(b"%", b"%%")
