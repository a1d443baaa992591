"""Request and response heads: one strict reading of the bytes, and what of them crosses to the next hop.

Theory of operation. A head is read once, from the bytes between the start line and the empty line, into a value that
holds everything a proxy decides by (framing, persistence, session ids) and the field lines that go on, as they came.
What is forwarded is built from those same lines, so the router cannot judge one thing and send another.

Rules for editors.

1. Whatever two HTTP/1.1 parsers could read two ways is refused, never repaired (RFC 9112 sections 2.2, 5.1, 6.1, 6.3).
2. Lines judged before are remembered (`lines`), and so are whole heads of responses: a replica sends the same one again
   and again. A remembered head is shared and must not be written to.
3. Nothing here knows about sockets, sessions or replicas.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final

from pypto_serving_router.core import lines as kinds
from pypto_serving_router.core.lines import bad, is_text, is_token, remember, request_lines, response_lines
from pypto_serving_router.errors import RequestError, UpstreamProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pypto_serving_router.core.forms import Form
    from pypto_serving_router.core.ids import SessionId

MAX_HEAD: Final = 64 * 1024
"""Bytes of a head (spec 4.10)."""

MAX_FIELDS: Final = 128
"""Fields of a head (spec 4.10)."""

_TARGET = bytes(b for b in range(0x21, 0x7F) if b not in b'#"<>\\^`{|}')  # RFC 3986, with no fragment
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
MAX_LENGTH_DIGITS: Final = 18
"""Digits of a Content-Length: within 64 bits for any parser behind us."""

# Bound once: an attribute of a module is looked up anew each time.
_HOST_FIELD: Final = kinds.HOST
_PLAIN: Final = kinds.PLAIN
_LENGTH: Final = kinds.LENGTH
_SESSION: Final = kinds.SESSION

_NONE: Final[list[bytes]] = []
_request_starts: dict[bytes, tuple[bytes, bytes, int, bytes | None]] = {}
_responses: dict[bytes, ResponseHead] = {}
_hosts: dict[bytes, bool] = {}


class Framing(Enum):
    """How the end of a body is found."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


class RequestHead:
    """One request's head.

    `target` is in origin-form. `length` is -1 without a Content-Length. `sessions` and `forwarded_for` are None where
    the field is absent, else every value; `session` is the usable id among them, if that is known. `host` is what the
    client asked for (of an absolute-form target, its authority), None in a 1.0 request without. `plain` says that none
    of the fields a proxy adds was there. `size` counts the bytes of the head, the empty line included. `form` and
    `values` are there if a form was filled in (`forms`).
    """

    __slots__ = (
        "_lines",
        "chunked",
        "expect",
        "form",
        "forwarded_for",
        "host",
        "keep_alive",
        "length",
        "method",
        "minor",
        "plain",
        "request_id",
        "session",
        "sessions",
        "size",
        "target",
        "values",
    )

    size: int
    method: bytes
    target: bytes
    minor: int
    form: Form | None
    values: list[bytes]
    length: int
    chunked: bool
    host: bytes | None
    keep_alive: bool
    expect: bool
    plain: bool
    sessions: list[bytes] | None
    session: SessionId | None
    forwarded_for: list[bytes] | None
    request_id: bytes | None
    _lines: list[bytes]

    @property
    def lines(self) -> list[bytes]:
        """The field lines that go on, in order and as they came."""
        return self._lines if self.form is None else self.form.lines(self.values)

    def let_go(self) -> None:
        """Drop the field lines, once they have gone on: a stream may stay open for an hour, one of ten thousand."""
        self.form = None
        self.values = self._lines = _NONE

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
    """One response's head, possibly shared: never written to once it is read.

    `block` is the status line and the field lines that go on, each with its CR LF, but for the replica's own
    `session` lines. `length` is -1 without a Content-Length. `framing` holds for all answers but those to HEAD.
    """

    __slots__ = ("block", "chunked", "framing", "keep_alive", "length", "minor", "request_id", "session", "status")

    status: int
    minor: int
    block: bytes
    session: bytes
    length: int
    chunked: bool
    framing: Framing
    keep_alive: bool
    request_id: bool

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
    head.size = len(block) + 4
    start = lines.pop(0)
    head.method, head.target, minor, authority = _request_starts.get(start) or _read_request_line(start)
    head.minor = minor
    head.plain = True
    head.length = -1
    head.chunked = head.expect = False
    head.sessions = head.session = head.forwarded_for = head.request_id = None
    head.form = None
    head._lines = kept = []  # noqa: SLF001 - this is its constructor
    host: bytes | None = None
    connection: bytes | None = None
    known = request_lines.fields
    for line in lines:
        field = known.get(line) or request_lines.learn(line)
        kind, value = field
        if kind == _PLAIN:
            kept.append(line)
        elif kind == _LENGTH:
            head.length = _read_length(value, head.length)
            kept.append(line)
        elif kind == _SESSION:
            head.sessions = [value] if head.sessions is None else [*head.sessions, value]
            kept.append(line)
        elif kind == _HOST_FIELD:
            if host is not None:
                raise bad("more than one Host field")
            if value not in _hosts:
                if not _HOST.fullmatch(value):
                    raise bad("the Host field is not a host")
                remember(_hosts, value, True)  # noqa: FBT003 - a set, bounded
            host = value
        elif kind == kinds.CONNECTION:
            connection = value if connection is None else connection + b"," + value
        elif kind == kinds.CODING:
            _check_coding(value, head)
            head.chunked = True
        elif kind != kinds.HOP:
            _keep_special(head, kind, line, value)

    if head.chunked and head.length >= 0:
        raise bad("both Content-Length and Transfer-Encoding")
    if host is None and minor:
        raise bad("no Host field")
    head.host = host if authority is None else authority
    head.keep_alive = minor == 1 if connection is None else _apply_connection(head, connection)
    return head


def parse_response(block: bytes) -> ResponseHead:
    """Read the head of a response; `block` ends before the empty line.

    Raises:
        UpstreamProtocolError: it is malformed or ambiguous.
    """
    known = _responses.get(block)
    if known is not None:
        return known
    lines = block.split(b"\r\n")
    if len(lines) > MAX_FIELDS + 1:
        raise UpstreamProtocolError(f"more than {MAX_FIELDS} header fields in the answer")
    try:
        head, secret = _read_response(lines)
    except RequestError as error:
        raise UpstreamProtocolError(f"{error} in the answer's head") from None
    if not secret:
        remember(_responses, block, head)
    return head


def forward_request(head: RequestHead, *, host: bytes, peer: bytes, request_id: bytes) -> bytes:
    """Serialise `head` for the replica known as `host`.

    `peer` is the client's address; `request_id` is used where the client named none.
    """
    if head.form is not None:
        return head.form.forward(head.values, host=host, peer=peer, request_id=request_id)
    lines = [b"%b %b HTTP/1.1" % (head.method, head.target), b"Host: " + host, *head.lines]
    if head.chunked:
        lines.append(b"Transfer-Encoding: chunked")
    lines.append(b"X-Forwarded-For: " + b", ".join([*(head.forwarded_for or ()), peer]))
    names = {line.partition(b":")[0].lower() for line in head.lines}
    if b"x-forwarded-proto" not in names:
        lines.append(b"X-Forwarded-Proto: http")
    if b"x-forwarded-host" not in names and head.host:
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

    `session` takes the place of a session id the replica sent; None lets that pass. `extra` is whole lines, each with
    its CR LF, or nothing. `connection` is the value of the Connection field, None for none.
    """
    return b"%b%b%b%b%b%b\r\n" % (
        head.block,
        head.session if session is None else b"X-Session-Id: %b\r\n" % session,
        b"" if head.request_id else b"X-Request-Id: %b\r\n" % request_id,
        extra,
        b"Transfer-Encoding: chunked\r\n" if chunked else b"",
        b"" if connection is None else b"Connection: %b\r\n" % connection,
    )


# --- the pieces of a head --------------------------------------------------------------------


def _read_response(lines: list[bytes]) -> tuple[ResponseHead, bool]:
    """Read a response's head; tell also whether it holds what should not be kept in memory."""
    head = ResponseHead()
    head.minor, head.status, status_line = _read_status_line(lines.pop(0))
    head.length = -1
    head.chunked = head.request_id = False
    kept: list[bytes] = []
    sessions: list[bytes] = []
    event_stream = buffering = secret = False
    connection: bytes | None = None
    for line in lines:
        kind, value = response_lines.fields.get(line) or response_lines.learn(line)
        if kind == kinds.SESSION:
            sessions.append(line)
            continue
        if kind == kinds.CODING:
            if head.chunked or not head.minor or value.lower() != b"chunked":
                raise bad("a transfer coding other than one `chunked`")
            head.chunked = True
            continue
        if kind == kinds.CONNECTION:
            connection = value if connection is None else connection + b"," + value
            continue
        if kind == kinds.LENGTH:
            head.length = _read_length(value, head.length)
            if head.status == 204 or head.status < 200:  # RFC 9110 8.6: it must not be there
                continue
        elif kind == kinds.CONTENT_TYPE:
            event_stream = value.lower().startswith(b"text/event-stream")
        elif kind == kinds.REQUEST_ID:
            head.request_id = True
        elif kind == kinds.BUFFERING:
            buffering = True
        elif kind == kinds.SET_COOKIE:
            secret = True
        if kind != kinds.HOP:
            kept.append(line)
    if head.chunked and head.length >= 0:
        raise bad("both Content-Length and Transfer-Encoding")
    head.keep_alive = head.minor == 1
    if connection is not None:
        head.keep_alive, named = _read_connection(connection, kept, persistent=head.keep_alive)
        if b"x-request-id" in named:
            head.request_id = False
        if b"x-session-id" in named:
            sessions.clear()
    if event_stream and not buffering:
        kept.append(b"X-Accel-Buffering: no")  # or a proxy before us may hold events back
    head.block = b"\r\n".join([status_line, *kept, b""])
    head.session = b"\r\n".join([*sessions, b""]) if sessions else b""
    head.framing = _response_framing(head)
    return head, secret


def _response_framing(head: ResponseHead) -> Framing:
    """Return how the body ends, in the answer to a request other than HEAD (RFC 9112 6.3)."""
    if head.status in (204, 304) or head.status < 200 or head.length == 0:
        return Framing.NONE
    if head.chunked:
        return Framing.CHUNKED
    return Framing.CLOSE if head.length < 0 else Framing.LENGTH


def _read_request_line(line: bytes) -> tuple[bytes, bytes, int, bytes | None]:
    """Return method, target in origin-form, minor version, and the authority of an absolute-form target."""
    try:
        method, target, version = line.split(b" ")
    except ValueError:
        raise bad("the request line is not `METHOD target HTTP/1.1`") from None
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise bad("the protocol is neither HTTP/1.1 nor HTTP/1.0")
    if not is_token(method) or method == b"CONNECT":  # a 2xx answer to CONNECT has no end (RFC 9112 6.3)
        raise bad("the method is not a token, or asks for a tunnel")
    if target.translate(None, _TARGET):
        raise bad("the request target has a character that must be percent-encoded, or a fragment")
    authority: bytes | None = None
    if target[:8].lower().startswith((b"http://", b"https://")):
        authority, slash, path = target.partition(b"://")[2].partition(b"/")
        authority, mark, query = authority.partition(b"?")
        if authority[:1] in (b"", b":") or not _HOST.fullmatch(authority):
            raise bad("the request target names no host")
        target = b"/?" + query + slash + path if mark else b"/" + path
    elif target[:1] != b"/" and not (target == b"*" and method == b"OPTIONS"):
        raise bad("the request target is neither a path nor an absolute http URL")
    found = (method, target, int(version == b"HTTP/1.1"), authority)
    remember(_request_starts, line, found)
    return found


def _read_length(value: bytes, before: int) -> int:
    if before >= 0:
        raise bad("more than one Content-Length")
    if not value.isdigit() or len(value) > MAX_LENGTH_DIGITS:
        raise bad("Content-Length is not a number of bytes")
    return int(value)


def _check_coding(value: bytes, head: RequestHead) -> None:
    if not head.minor:
        raise bad("Transfer-Encoding in an HTTP/1.0 request")
    if head.chunked:
        raise bad("more than one Transfer-Encoding")
    coding = value.lower()
    if coding == b"chunked":
        return
    names = [name.strip(b" \t") for name in coding.split(b",")]
    if names[-1] == b"chunked" and b"chunked" not in names[:-1] and all(map(is_token, names)):
        raise RequestError(501, "transfer_coding", "the only transfer coding understood is `chunked`")
    raise bad("a Transfer-Encoding whose last coding is not one `chunked`")


def _keep_special(head: RequestHead, kind: int, line: bytes, value: bytes) -> None:
    """Note a field the proxy decides by; all but an answered Expect and X-Forwarded-For go on as they came."""
    if kind == kinds.EXPECT:
        if value.lower() == b"100-continue":
            head.expect = bool(head.minor)
            return
    elif kind == kinds.FORWARDED_FOR:
        head.plain = False
        head.forwarded_for = [value] if head.forwarded_for is None else [*head.forwarded_for, value]
        return
    elif kind == kinds.REQUEST_ID:
        if not value:  # none was named
            return
        head.request_id = value
    head.plain = False
    head.lines.append(line)


def _apply_connection(head: RequestHead, connection: bytes) -> bool:
    """Forget what a request's Connection names; return whether the connection goes on."""
    goes_on, named = _read_connection(connection, head.lines, persistent=head.minor == 1)
    if b"x-request-id" in named:
        head.request_id = None
    if b"x-forwarded-for" in named:
        head.forwarded_for = None
    return goes_on


def _read_connection(connection: bytes, kept: list[bytes], *, persistent: bool) -> tuple[bool, Collection[bytes]]:
    """Drop the fields that `connection` names; return whether the connection goes on, and those names."""
    options = connection.lower()
    if options == b"close":
        return False, ()
    if options == b"keep-alive":
        return True, ()
    names = {name.strip(b" \t") for name in options.split(b",")}
    # The framing of a body is not the sender's to withdraw.
    named = names - {b"close", b"keep-alive", b"", b"content-length"}
    if named:
        kept[:] = [line for line in kept if line.partition(b":")[0].lower() not in named]
    return b"close" not in names and (persistent or b"keep-alive" in names), named


def _read_status_line(line: bytes) -> tuple[int, int, bytes]:
    version, _, rest = line.partition(b" ")
    code, _, reason = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise UpstreamProtocolError("the answer is not HTTP/1.1 or HTTP/1.0")
    if len(code) != 3 or not code.isdigit() or not 100 <= int(code) <= 999:
        raise UpstreamProtocolError("the answer's status is not three digits")
    if not is_text(reason):
        raise UpstreamProtocolError("a control character in the answer's status line")
    return (1 if version == b"HTTP/1.1" else 0, int(code), b"HTTP/1.1 %b %b" % (code, reason))
