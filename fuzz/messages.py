"""HTTP/1.1 as campaigns make it: mostly right, often just not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.support.witness import Fields

METHODS = [b"POST", b"POST", b"GET", b"HEAD", b"PUT", b"OPTIONS", b"post", b"PO ST", b""]
TARGETS = [
    b"/v1/chat/completions",
    b"/v1/completions?x=1&y=%2F",
    b"/v1/models",
    b"//v1//a/../b",
    b"http://other:81/v1/models",
    b"HTTP://other?q/v1/x",
    b"/v1/a#b",
    b"*",
    b"/v1/\xff",
    b"other:80",
    b"",
]
FIELDS = [
    b"Host: router",
    b"Host: a:b:c",
    b"host:other",
    b"Content-Length: 0",
    b"Content-Length: +5",
    b"Content-Length: 5, 5",
    b"Content-Length : 5",
    b"Content-Length: 0x5",
    b"Content-Length: 00000000000000000005",
    b"Content-Length: 184467440737095516165",
    b"Transfer-Encoding: chunked",
    b"transfer-encoding:\tchunked ",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer_Encoding: chunked",
    b"Transfer-Encoding:",
    b"Connection: close",
    b"Connection: keep-alive, X-Odd",
    b"Connection: Content-Length, Transfer-Encoding, Host",
    b"Connection: x-session-id, authorization",
    b"Keep-Alive: timeout=5",
    b"Proxy-Connection: keep-alive",
    b"Upgrade: h2c",
    b"TE: trailers",
    b"Trailer: X-Sum",
    b"Expect: 100-continue",
    b"Expect: 200-maybe",
    b"X-Session-Id: 9f2c1b7e4a3d5061",
    b"X-Session-Id: one",
    b"X-Session-Id: bad id\x80",
    b"X-Request-Id: 17",
    b"X-Request-Id:",
    b"X-Forwarded-For: 203.0.113.9",
    b"X-Forwarded-Host: elsewhere",
    b"Authorization: Bearer x",
    b"X-Odd: 1",
    b"X-Odd: \xe4\xf6",
    b"X-Odd:a\x00b",
    b"X-Odd: a\rb",
    b"X-Odd: a\nb: c",
    b" folded: value",
    b"No colon",
    b": no name",
    b"Na me: x",
    b"Set-Cookie: a=b",
    b"Content-Type: text/event-stream",
    b"X-Accel-Buffering: yes",
]
SCRAPS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\r\n ",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b";ext=1",
    b"\xff",
    b"HTTP/1.1",
    b"POST /v1/x HTTP/1.1\r\nHost: y\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    *FIELDS[:12],
]
BODIES = [
    b"",
    b"{}",
    b'{"session_id": "abc"}',
    b'{"messages": []}',
    b"hello",
    b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"x" * 5000,
]

some_fields = st.lists(st.sampled_from(FIELDS), max_size=3)


@st.composite
def chunked(draw: st.DrawFn, content: bytes) -> bytes:
    """A body in chunks, their sizes and ends mostly right."""
    out = b""
    while content:
        size = draw(st.integers(1, len(content)))
        line = draw(st.sampled_from([b"%x", b"%X", b"00%x", b"%x;a=b", b"%x ;a", b"0x%x"] if size < 4 else [b"%x"]))
        out += line % size + b"\r\n" + content[:size] + draw(st.sampled_from([b"\r\n"] * 9 + [b"\n"]))
        content = content[size:]
    return out + draw(
        st.sampled_from([b"0\r\n\r\n"] * 6 + [b"0\r\nX-Sum: 1\r\n\r\n", b"000\r\n\r\n", b"0\r\n", b"0\r\nHost\r\n\r\n"])
    )


@st.composite
def framed(draw: st.DrawFn, content: bytes) -> tuple[list[bytes], bytes]:
    """The fields that say where a body ends, and the body."""
    way = draw(st.sampled_from(["length", "length", "chunked", "chunked", "wrong", "none"]))
    if way == "length":
        return [b"Content-Length: %d" % len(content)], content
    if way == "chunked":
        return [b"Transfer-Encoding: chunked"], draw(chunked(content))
    if way == "wrong":
        return [b"Content-Length: %d" % max(0, len(content) + draw(st.integers(-3, 3)))], content
    return [], b""


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request."""
    content = draw(st.one_of(st.sampled_from(BODIES), st.binary(max_size=30)))
    fields, body = draw(framed(content))
    host = draw(st.sampled_from([[b"Host: router"]] * 9 + [[]]))
    lines = draw(st.permutations([*host, *fields, *draw(some_fields)]))
    usual = draw(st.booleans())
    method = b"POST" if usual else draw(st.sampled_from(METHODS))
    target = b"/v1/chat/completions" if usual else draw(st.sampled_from(TARGETS))
    version = draw(
        st.sampled_from([b"HTTP/1.1"] * 9 + [b"HTTP/1.0", b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b"HTTP/1.10"])
    )
    return b"\r\n".join([b" ".join([method, target, version]), *lines, b"", body])


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """One response, perhaps with interim ones before it."""
    interim = draw(
        st.sampled_from(
            [b""] * 8
            + [
                b"HTTP/1.1 100 Continue\r\n\r\n",
                b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n",
                b"HTTP/1.1 101 Up\r\n\r\n",
            ]
        )
    )
    content = draw(st.one_of(st.sampled_from(BODIES), st.binary(max_size=30)))
    fields, body = draw(framed(content))
    if not fields:
        body = content
    lines = draw(st.permutations([*fields, *draw(some_fields)]))
    status = draw(
        st.sampled_from(
            [b"200 OK"] * 9 + [b"204 No", b"304 Not", b"200", b"500 \xff", b"0200 OK", b"99 Low", b"200 a\rb"]
        )
    )
    version = draw(st.sampled_from([b"HTTP/1.1"] * 9 + [b"HTTP/1.0", b"HTTP/1.0", b"HTTP/0.9", b"ICY"]))
    return interim + b"\r\n".join([version + b" " + status, *lines, b"", body])


PER_HOP = {
    *(b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
}
"""Fields that are not relayed, in lower case, beside all that begin with `proxy-` (spec 4.2)."""


def end_to_end(fields: Fields, dropped: set[bytes]) -> Fields:
    """Return the fields that go on, but for `dropped`."""
    gone = PER_HOP | dropped | (named_by_connection(fields) - {b"content-length"})
    return [(name, value) for name, value in fields if name not in gone and not name.startswith(b"proxy-")]


def named_by_connection(fields: Fields) -> set[bytes]:
    """Return the names of the fields that Connection takes out, too."""
    values = [value for name, value in fields if name == b"connection"]
    return {name.strip().lower() for value in values for name in value.split(b",")} - {b"", b"close", b"keep-alive"}
