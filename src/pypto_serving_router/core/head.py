"""Request and response heads: one strict reading of the bytes, and what of them crosses to the next hop.

Theory of operation. A head is read once, from the bytes between the start line and the empty line, into a value that
holds everything a proxy decides by (framing, persistence, session ids) and the field lines that go on, as they came.
What is forwarded is built from those same lines, so the router cannot judge one thing and send another.

Rules for editors.

1. Whatever two HTTP/1.1 parsers could read two ways is refused, never repaired (RFC 9112 sections 2.2, 5.1, 6.1, 6.3).
2. Lines that were judged before are remembered as they stood, so that the usual line costs one look-up. What holds a
   secret, or differs from request to request, is not. Every memory is bounded.
3. Nothing here knows about sockets, sessions or replicas.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, TypeVar

from pypto_serving_router.errors import RequestError, UpstreamProtocolError

MAX_HEAD: Final = 64 * 1024
"""Bytes of a head (spec 4.10)."""

MAX_FIELDS: Final = 128
"""Fields of a head (spec 4.10)."""

_V = TypeVar("_V")

_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # RFC 9110 5.6.2
_TEXT = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])  # what a field line may hold (RFC 9110 5.5)
_TARGET = bytes(b for b in range(0x21, 0x7F) if b not in b'#"<>\\^`{|}')  # RFC 3986, with no fragment
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_METHODS = frozenset([b"POST", b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"])
_MAX_LENGTH_DIGITS = 18  # stays within 64 bits for any parser behind us


class Framing(Enum):
    """How the end of a body is found."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


# What is done with a field. Plain numbers: an enumeration's look-ups would be a tenth of a head's cost.
_PLAIN: Final = 1  # goes on as it came
_HOP: Final = 2  # ends here
_HOST_FIELD: Final = 3
_LENGTH: Final = 4
_CODING: Final = 5
_CONNECTION: Final = 6
_EXPECT: Final = 7
_SESSION: Final = 8
_FORWARDED_FOR: Final = 9
_FORWARDED_PROTO: Final = 10
_FORWARDED_HOST: Final = 11
_REQUEST_ID: Final = 12
_CONTENT_TYPE: Final = 13
_BUFFERING: Final = 14

_HOP_BY_HOP: Final = frozenset([b"keep-alive", b"te", b"trailer", b"upgrade"])  # and proxy-*, spec 4.2
_REQUEST_NAMES: Final = {
    b"host": _HOST_FIELD,
    b"content-length": _LENGTH,
    b"transfer-encoding": _CODING,
    b"connection": _CONNECTION,
    b"expect": _EXPECT,
    b"x-session-id": _SESSION,
    b"x-forwarded-for": _FORWARDED_FOR,
    b"x-forwarded-proto": _FORWARDED_PROTO,
    b"x-forwarded-host": _FORWARDED_HOST,
    b"x-request-id": _REQUEST_ID,
}
_RESPONSE_NAMES: Final = {
    b"content-length": _LENGTH,
    b"transfer-encoding": _CODING,
    b"connection": _CONNECTION,
    b"x-session-id": _SESSION,
    b"x-request-id": _REQUEST_ID,
    b"content-type": _CONTENT_TYPE,
    b"x-accel-buffering": _BUFFERING,
}

_MEMORY: Final = 4096  # entries of each memory; full, it starts anew
_MEMORABLE: Final = 256  # bytes of the longest line that is remembered
_SECRETS: Final = frozenset([b"authorization", b"cookie", b"set-cookie", b"api-key", b"x-api-key"])
_VARYING: Final = frozenset([_LENGTH, _SESSION, _REQUEST_ID, _FORWARDED_FOR])


class _Memory:
    """The kinds of header lines seen before, and of field names by their spelling."""

    __slots__ = ("_names", "_special", "kinds")

    def __init__(self, special: dict[bytes, int]) -> None:
        self.kinds: dict[bytes, int] = {}
        self._names: dict[bytes, tuple[int, bool]] = {}
        self._special = special

    def learn(self, line: bytes) -> int:
        """Judge a line not remembered; return its kind."""
        name, colon, value = line.partition(b":")
        known = self._names.get(name) or self._classify(name, colon)
        if value.translate(None, _TEXT):
            raise _bad("a control character in the head, or a line that does not end in CR LF")
        kind, memorable = known
        if memorable and len(line) <= _MEMORABLE:
            _remember(self.kinds, line, kind)
        return kind

    def _classify(self, name: bytes, colon: bytes) -> tuple[int, bool]:
        if not colon or not name or name.translate(None, _TOKEN):
            raise _bad("a header line is not `name: value`")
        lower = name.lower()
        kind = self._special.get(lower)
        if kind is None:
            kind = _HOP if lower in _HOP_BY_HOP or lower.startswith(b"proxy-") else _PLAIN
        known = (kind, kind not in _VARYING and lower not in _SECRETS)
        if len(name) <= _MEMORABLE:
            _remember(self._names, name, known)
        return known


def _remember(memory: dict[bytes, _V], key: bytes, value: _V) -> None:
    if len(memory) >= _MEMORY:
        memory.clear()
    memory[key] = value


_request_lines = _Memory(_REQUEST_NAMES)
_response_lines = _Memory(_RESPONSE_NAMES)
_request_starts: dict[bytes, tuple[bytes, bytes, int, bytes | None]] = {}
_status_lines: dict[bytes, tuple[int, int, bytes]] = {}


class RequestHead:
    """One request's head.

    `target` is in origin-form. `lines` are the field lines that go on, in order and as they came. `length` is -1
    without a Content-Length. `sessions` and `forwarded_for` are None where the field is absent, else every value.
    `host` is what the client asked for (of an absolute-form target, its authority), None in a 1.0 request without.
    """

    __slots__ = (
        "chunked",
        "expect",
        "forwarded_for",
        "forwarded_host",
        "forwarded_proto",
        "host",
        "keep_alive",
        "length",
        "lines",
        "method",
        "minor",
        "request_id",
        "sessions",
        "target",
    )

    method: bytes
    target: bytes
    minor: int
    lines: list[bytes]
    length: int
    chunked: bool
    host: bytes | None
    keep_alive: bool
    expect: bool
    sessions: list[bytes] | None
    forwarded_for: list[bytes] | None
    forwarded_proto: bool
    forwarded_host: bool
    request_id: bytes | None

    @property
    def has_body(self) -> bool:
        """Whether any byte of a body follows."""
        return self.chunked or self.length > 0

    def field(self, name: bytes) -> bytes | None:
        """Return the first value of an end-to-end field, `name` in lower case."""
        for line in self.lines:
            found, _, value = line.partition(b":")
            if found.lower() == name:
                return value.strip(b" \t")
        return None

    def __repr__(self) -> str:
        return f"<RequestHead {self.method!r} {self.target!r} length={self.length} chunked={self.chunked}>"


class ResponseHead:
    """One response's head. `lines` are the field lines that go on; `length` is -1 without a Content-Length."""

    __slots__ = (
        "buffering",
        "chunked",
        "event_stream",
        "keep_alive",
        "length",
        "lines",
        "minor",
        "request_id",
        "session",
        "status",
        "status_line",
    )

    status: int
    status_line: bytes
    minor: int
    lines: list[bytes]
    length: int
    chunked: bool
    keep_alive: bool
    event_stream: bool
    buffering: bool
    request_id: bool
    session: bool

    def framing(self, method: bytes) -> Framing:
        """Return how the body ends, in the answer to a request by `method` (RFC 9112 6.3)."""
        if method == b"HEAD" or self.status in (204, 304) or self.status < 200:
            return Framing.NONE
        if self.chunked:
            return Framing.CHUNKED
        if self.length >= 0:
            return Framing.LENGTH if self.length else Framing.NONE
        return Framing.CLOSE

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status} length={self.length} chunked={self.chunked}>"


def parse_request(block: bytes) -> RequestHead:
    """Read the head of a request; `block` ends before the empty line.

    Raises:
        RequestError: 400 for anything malformed or ambiguous, 431 for too many fields, 501 for a transfer coding
            that is well-formed and not ours.
    """
    lines = block.split(b"\r\n")
    if len(lines) > MAX_FIELDS + 1:
        raise RequestError(431, "too_many_fields", f"a request may have {MAX_FIELDS} header fields")
    head = RequestHead()
    start = lines.pop(0)
    head.method, head.target, head.minor, head.host = _request_starts.get(start) or _read_request_line(start)
    head.length = -1
    head.chunked = head.expect = head.forwarded_proto = head.forwarded_host = False
    head.sessions = head.forwarded_for = head.request_id = None
    head.lines = kept = []
    host: bytes | None = None
    connection: bytes | None = None
    kinds = _request_lines.kinds
    for line in lines:
        kind = kinds.get(line) or _request_lines.learn(line)
        if kind == _PLAIN:
            kept.append(line)
            continue
        if kind == _HOP:
            continue
        value = line.partition(b":")[2]
        value = value.strip(b" \t")
        if kind == _HOST_FIELD:
            if host is not None:
                raise _bad("more than one Host field")
            if not _HOST.fullmatch(value):
                raise _bad("the Host field is not a host")
            host = value
        elif kind == _LENGTH:
            head.length = _read_length(value, head.length)
            kept.append(line)
        elif kind == _CONNECTION:
            connection = value if connection is None else connection + b"," + value
        elif kind == _CODING:
            _check_coding(value, head)
            head.chunked = True
        else:
            _keep_special(head, kind, line, value)

    if head.chunked and head.length >= 0:
        raise _bad("both Content-Length and Transfer-Encoding")
    if host is None and head.minor:
        raise _bad("no Host field")
    if head.host is None:
        head.host = host
    head.keep_alive = head.minor == 1
    if connection is not None:
        head.keep_alive = _apply_connection(connection, kept, persistent=head.keep_alive)
    return head


def parse_response(block: bytes) -> ResponseHead:
    """Read the head of a response; `block` ends before the empty line.

    Raises:
        UpstreamProtocolError: it is malformed or ambiguous.
    """
    lines = block.split(b"\r\n")
    if len(lines) > MAX_FIELDS + 1:
        raise UpstreamProtocolError(f"more than {MAX_FIELDS} header fields in the answer")
    head = ResponseHead()
    start = lines.pop(0)
    head.minor, head.status, head.status_line = _status_lines.get(start) or _read_status_line(start)
    head.length = -1
    head.chunked = head.event_stream = head.buffering = head.request_id = head.session = False
    head.lines = kept = []
    connection: bytes | None = None
    kinds = _response_lines.kinds
    try:
        for line in lines:
            kind = kinds.get(line) or _response_lines.learn(line)
            if kind == _PLAIN:
                kept.append(line)
                continue
            value = line.partition(b":")[2].strip(b" \t")
            if kind == _SESSION:
                head.session = True
                kept.append(line)
            elif kind == _CONTENT_TYPE:
                head.event_stream = value.lower().startswith(b"text/event-stream")
                kept.append(line)
            elif kind == _LENGTH:
                head.length = _read_length(value, head.length)
                if head.status != 204 and head.status >= 200:  # RFC 9110 8.6: it must not be there
                    kept.append(line)
            elif kind == _CODING:
                if head.chunked or not head.minor or value.lower() != b"chunked":
                    raise _bad("a transfer coding other than one `chunked`")
                head.chunked = True
            elif kind == _CONNECTION:
                connection = value if connection is None else connection + b"," + value
            elif kind == _REQUEST_ID:
                head.request_id = True
                kept.append(line)
            elif kind == _BUFFERING:
                head.buffering = True
                kept.append(line)
        if head.chunked and head.length >= 0:
            raise _bad("both Content-Length and Transfer-Encoding")
        head.keep_alive = head.minor == 1
        if connection is not None:
            head.keep_alive = _apply_connection(connection, kept, persistent=head.keep_alive)
    except RequestError as error:
        raise UpstreamProtocolError(f"{error} in the answer's head") from None
    return head


def forward_request(head: RequestHead, *, host: bytes, peer: bytes, request_id: bytes) -> bytes:
    """Serialise `head` for the replica known as `host`.

    `peer` is the client's address; `request_id` is used where the client named none.
    """
    lines = [b"%b %b HTTP/1.1" % (head.method, head.target), b"Host: " + host, *head.lines]
    if head.chunked:
        lines.append(b"Transfer-Encoding: chunked")
    if head.forwarded_for is None:
        lines.append(b"X-Forwarded-For: " + peer)
    else:
        lines.append(b"X-Forwarded-For: " + b", ".join([*head.forwarded_for, peer]))
    if not head.forwarded_proto:
        lines.append(b"X-Forwarded-Proto: http")
    if not head.forwarded_host and head.host:
        lines.append(b"X-Forwarded-Host: " + head.host)
    if head.request_id is None:
        lines.append(b"X-Request-Id: " + request_id)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def forward_response(
    head: ResponseHead,
    *,
    session: bytes | None,
    request_id: bytes,
    extra: bytes,
    chunked: bool,
    connection: bytes | None,
) -> bytes:
    """Serialise `head` for the client.

    `session` takes the place of a session id the replica sent. `extra` is whole lines, each with its CR LF, or
    nothing. `connection` is the value of the Connection field, None for none.
    """
    lines = [head.status_line, *head.lines]
    if session is not None:
        if head.session:
            lines = [line for line in lines if line.partition(b":")[0].lower() != b"x-session-id"]
        lines.append(b"X-Session-Id: " + session)
    if not head.request_id:
        lines.append(b"X-Request-Id: " + request_id)
    if head.event_stream and not head.buffering:
        lines.append(b"X-Accel-Buffering: no")  # or a proxy before us may hold events back
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
    if connection is not None:
        lines.append(b"Connection: " + connection)
    lines.append(extra + b"\r\n")
    return b"\r\n".join(lines)


# --- the pieces of a head --------------------------------------------------------------------


def _bad(message: str) -> RequestError:
    return RequestError(400, "malformed_request", message)


def _read_request_line(line: bytes) -> tuple[bytes, bytes, int, bytes | None]:
    """Return method, target in origin-form, minor version, and the authority of an absolute-form target."""
    try:
        method, target, version = line.split(b" ")
    except ValueError:
        raise _bad("the request line is not `METHOD target HTTP/1.1`") from None
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise _bad("the protocol is neither HTTP/1.1 nor HTTP/1.0")
    if method not in _METHODS and (not method or method.translate(None, _TOKEN)):
        raise _bad("the method is not a token")
    if target.translate(None, _TARGET):
        raise _bad("the request target has a character that must be percent-encoded, or a fragment")
    authority: bytes | None = None
    if target[:8].lower().startswith((b"http://", b"https://")):
        authority, slash, path = target.partition(b"://")[2].partition(b"/")
        authority, mark, query = authority.partition(b"?")
        if not authority or not _HOST.fullmatch(authority):
            raise _bad("the request target names no host")
        target = b"/?" + query + slash + path if mark else b"/" + path
    elif target[:1] != b"/" and not (target == b"*" and method == b"OPTIONS"):
        raise _bad("the request target is neither a path nor an absolute http URL")
    found = (method, target, int(version == b"HTTP/1.1"), authority)
    if len(line) <= _MEMORABLE:
        _remember(_request_starts, line, found)
    return found


def _read_length(value: bytes, before: int) -> int:
    if before >= 0:
        raise _bad("more than one Content-Length")
    if not value.isdigit() or len(value) > _MAX_LENGTH_DIGITS:
        raise _bad("Content-Length is not a number of bytes")
    return int(value)


def _check_coding(value: bytes, head: RequestHead) -> None:
    if not head.minor:
        raise _bad("Transfer-Encoding in an HTTP/1.0 request")
    if head.chunked:
        raise _bad("more than one Transfer-Encoding")
    coding = value.lower()
    if coding == b"chunked":
        return
    names = [name.strip(b" \t") for name in coding.split(b",")]
    if names[-1] == b"chunked" and b"chunked" not in names[:-1] and not b"".join(names).translate(None, _TOKEN):
        raise RequestError(501, "transfer_coding", "the only transfer coding understood is `chunked`")
    raise _bad("a Transfer-Encoding whose last coding is not one `chunked`")


def _keep_special(head: RequestHead, kind: int, line: bytes, value: bytes) -> None:
    """Note a field the proxy decides by; all but an answered Expect and X-Forwarded-For go on as they came."""
    if kind == _EXPECT:
        if value.lower() == b"100-continue":
            head.expect = bool(head.minor)
            return
    elif kind == _SESSION:
        head.sessions = [value] if head.sessions is None else [*head.sessions, value]
    elif kind == _FORWARDED_FOR:
        head.forwarded_for = [value] if head.forwarded_for is None else [*head.forwarded_for, value]
        return
    elif kind == _FORWARDED_PROTO:
        head.forwarded_proto = True
    elif kind == _FORWARDED_HOST:
        head.forwarded_host = True
    elif kind == _REQUEST_ID:
        head.request_id = value
    head.lines.append(line)


def _apply_connection(connection: bytes, kept: list[bytes], *, persistent: bool) -> bool:
    """Drop the fields that `connection` names; return whether the connection goes on."""
    options = connection.lower()
    if options == b"close":
        return False
    if options == b"keep-alive":
        return True
    names = {name.strip(b" \t") for name in options.split(b",")}
    # The framing of a body is not the sender's to withdraw.
    named = names - {b"close", b"keep-alive", b"", b"content-length"}
    if named:
        kept[:] = [line for line in kept if line.partition(b":")[0].lower() not in named]
    if b"close" in names:
        return False
    return persistent or b"keep-alive" in names


def _read_status_line(line: bytes) -> tuple[int, int, bytes]:
    version, _, rest = line.partition(b" ")
    code, _, reason = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise UpstreamProtocolError("the answer is not HTTP/1.1 or HTTP/1.0")
    if len(code) != 3 or not code.isdigit() or not 100 <= int(code) <= 999:
        raise UpstreamProtocolError("the answer's status is not three digits")
    if reason.translate(None, _TEXT):
        raise UpstreamProtocolError("a control character in the answer's status line")
    found = (1 if version == b"HTTP/1.1" else 0, int(code), b"HTTP/1.1 %b %b" % (code, reason))
    if len(line) <= _MEMORABLE:
        _remember(_status_lines, line, found)
    return found
