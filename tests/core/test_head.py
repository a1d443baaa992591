"""Heads: what is accepted, what of it crosses, and that a strict reader of another make agrees."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.support.witness import SeenRequest, read_requests, read_response

from pypto_serving_router.core.head import (
    MAX_FIELDS,
    Framing,
    forward_request,
    forward_response,
    parse_request,
    parse_response,
)
from pypto_serving_router.errors import RequestError, UpstreamProtocolError

HOP_BY_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection",
              b"proxy-authorization", b"proxy-authenticate"}  # fmt: skip
ADDED = {b"host", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-request-id", b"transfer-encoding"}
TOKEN = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
TARGET = "".join(chr(b) for b in range(0x21, 0x7F) if chr(b) not in '#"<>\\^`{|}')


def forward(block: bytes) -> bytes:
    """Give what the replica gets of a head."""
    return forward_request(parse_request(block), host=b"replica:8001", peer=b"192.0.2.7", request_id=b"made")


def read_one(data: bytes) -> SeenRequest:
    """Read a head with h11."""
    requests, readable = read_requests(data)
    assert readable, data
    return requests[0]


def forwarded(block: bytes) -> SeenRequest:
    """Read what the replica gets with h11."""
    return read_one(forward(block))


def request(
    *lines: bytes, start: bytes = b"POST /v1/completions HTTP/1.1", host: bytes | None = b"Host: router"
) -> bytes:
    """Write a head's block."""
    return b"\r\n".join([start, *([] if host is None else [host]), *lines])


def refusal(block: bytes) -> int:
    """Give the status a block is refused with, 0 if it is not."""
    try:
        parse_request(block)
    except RequestError as error:
        return error.status
    return 0


# --- strategies -----------------------------------------------------------------------------

names = st.one_of(
    st.text(TOKEN, min_size=1, max_size=12),
    st.sampled_from(["Accept", "authorization", "Cookie", "X-Custom", "Content-Type", "User-Agent", "Via", "Range"]),
)
hop_names = st.sampled_from(
    ["Keep-Alive", "TE", "Trailer", "Upgrade", "Proxy-Connection", "Proxy-Authorization", "proxy-anything", "tE"]
)
values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20).map(
    lambda text: text.encode("latin-1").strip()
)
spaces = st.sampled_from([b"", b" ", b"\t", b"  "])
special = {
    *("host", "content-length", "transfer-encoding", "connection", "expect", "x-session-id", "x-forwarded-for"),
    *("x-forwarded-proto", "x-forwarded-host", "x-request-id", "keep-alive", "te", "trailer", "upgrade"),
}


@st.composite
def fields(draw: st.DrawFn, name: st.SearchStrategy[str]) -> tuple[str, bytes, bytes]:
    """Make a field: its name, its value, its line."""
    word, value = draw(name), draw(values)
    return word, value, word.encode() + b":" + draw(spaces) + value + draw(spaces)


end_to_end = fields(names.filter(lambda n: n.lower() not in special and not n.lower().startswith("proxy-")))
targets = st.one_of(
    st.text(TARGET, max_size=30).map(lambda rest: "/" + rest),
    st.sampled_from(["/v1//chat%2Fx?a=b&c=%20", "/v1/./../x", "/v1/models?", "/v1/%00", "/v1/x?y=http://z/"]),
)
methods = st.one_of(
    st.sampled_from(["POST", "GET", "PUT", "DELETE", "OPTIONS", "PATCH"]), st.text(TOKEN, min_size=1, max_size=8)
)


# --- what crosses ---------------------------------------------------------------------------


@given(methods.filter(lambda m: m != "CONNECT"), targets, st.lists(end_to_end, max_size=12))
def test_end_to_end_fields_cross_untouched(method: str, target: str, sent: list[tuple[str, bytes, bytes]]) -> None:
    """spec 4.1: method, target and end-to-end fields reach the replica verbatim, in order, duplicates kept."""
    block = request(*[line for *_, line in sent], start=f"{method} {target} HTTP/1.1".encode())

    seen = forwarded(block)

    assert (seen.method, seen.target, seen.version) == (method.encode(), target.encode(), b"1.1")
    kept = [(name, value) for name, value in seen.fields if name not in ADDED]
    assert kept == [(name.lower().encode(), value) for name, value, _ in sent]


@given(st.lists(end_to_end, max_size=6))
def test_the_bytes_of_a_line_are_not_touched(sent: list[tuple[str, bytes, bytes]]) -> None:
    """spec 4.1: a line crosses as it was written, its spelling and its spaces too."""
    lines = [line for *_, line in sent]

    out = forward(request(*lines)).split(b"\r\n")

    assert [line for line in out if line in lines] == lines


@given(st.lists(st.one_of(end_to_end, fields(hop_names)), max_size=12), st.data())
def test_no_hop_by_hop_field_crosses(sent: list[tuple[str, bytes, bytes]], data: st.DataObject) -> None:
    """spec 4.2: the per-hop fields, and what Connection names, end at the router."""
    named = data.draw(st.lists(st.sampled_from([name for name, *_ in sent] or ["x-none"]), max_size=3))
    options = data.draw(st.permutations([*named, *data.draw(st.sets(st.sampled_from(["close", "Keep-Alive"])))]))
    half = data.draw(st.integers(0, len(options)))
    lines = [line for *_, line in sent]
    lines.insert(data.draw(st.integers(0, len(lines))), b"Connection: " + ", ".join(options[:half]).encode())
    lines.insert(data.draw(st.integers(0, len(lines))), b"CONNECTION:" + ",,".join(options[half:]).encode())

    seen = forwarded(request(*lines))

    banned = HOP_BY_HOP | {name.lower().encode() for name in named}
    assert not [name for name, _ in seen.fields if name in banned or name.startswith(b"proxy-")]
    expected = [
        (name.lower().encode(), value)
        for name, value, _ in sent
        if name.lower().encode() not in banned and not name.lower().startswith("proxy-")
    ]
    assert [(name, value) for name, value in seen.fields if name not in ADDED] == expected


@pytest.mark.parametrize(
    ("lines", "name", "expected"),
    [
        ([], b"host", [b"replica:8001"]),
        ([], b"x-forwarded-for", [b"192.0.2.7"]),
        ([b"X-Forwarded-For: 198.51.100.1"], b"x-forwarded-for", [b"198.51.100.1, 192.0.2.7"]),
        ([b"x-forwarded-for: a", b"X-FORWARDED-FOR: b, c"], b"x-forwarded-for", [b"a, b, c, 192.0.2.7"]),
        ([], b"x-forwarded-proto", [b"http"]),
        ([b"X-Forwarded-Proto: https"], b"x-forwarded-proto", [b"https"]),
        ([], b"x-forwarded-host", [b"router"]),
        ([b"X-Forwarded-Host: public"], b"x-forwarded-host", [b"public"]),
        ([], b"x-request-id", [b"made"]),
        ([b"X-Request-Id: theirs"], b"x-request-id", [b"theirs"]),
        ([b"X-Request-Id:"], b"x-request-id", [b"made"]),
        ([b"X-Session-Id: s"], b"x-session-id", [b"s"]),
        ([], b"x-session-id", []),
        ([b"X-Session-Id: s", b"X-Session-Id: t"], b"x-session-id", [b"s", b"t"]),
        ([b"Expect: 100-continue", b"Content-Length: 1"], b"expect", []),
        ([b"Expect: 100-Continue", b"Content-Length: 1"], b"expect", []),
        ([b"Expect: something-else"], b"expect", [b"something-else"]),
        ([b"Content-Length: 0"], b"content-length", [b"0"]),
        ([b"Content-Length: 007"], b"content-length", [b"007"]),
        ([b"Transfer-Encoding: chunked"], b"transfer-encoding", [b"chunked"]),
        ([b"transfer-encoding:\tCHUNKED "], b"transfer-encoding", [b"chunked"]),
        ([b"Authorization: Bearer x"], b"authorization", [b"Bearer x"]),
        # What Connection names is gone, and so what the router puts in its place must be there.
        ([b"Connection: x-request-id", b"X-Request-Id: theirs"], b"x-request-id", [b"made"]),
        ([b"Connection: x-forwarded-proto", b"X-Forwarded-Proto: https"], b"x-forwarded-proto", [b"http"]),
        ([b"Connection: x-forwarded-host", b"X-Forwarded-Host: public"], b"x-forwarded-host", [b"router"]),
        ([b"Connection: x-forwarded-for", b"X-Forwarded-For: a"], b"x-forwarded-for", [b"192.0.2.7"]),
        ([b"Connection: host, close"], b"host", [b"replica:8001"]),
        # Nobody may withdraw a body's framing (RFC 9110 7.6.1).
        ([b"Connection: content-length", b"Content-Length: 5"], b"content-length", [b"5"]),
        ([b"Connection: transfer-encoding", b"Transfer-Encoding: chunked"], b"transfer-encoding", [b"chunked"]),
    ],
)  # fmt: skip
def test_fields_of_the_router(lines: list[bytes], name: bytes, expected: list[bytes]) -> None:
    """spec 4.2, H4, H7, H9: what the router replaces, appends to, keeps or adds."""
    assert forwarded(request(*lines)).values(name) == expected


@pytest.mark.parametrize(
    ("target", "origin", "asked_for"),
    [
        (b"http://public/v1/x?y=z", b"/v1/x?y=z", b"public"),
        (b"HTTPS://public:443/v1//%2e%2E/", b"/v1//%2e%2E/", b"public:443"),
        (b"http://public", b"/", b"public"),
        (b"http://public?a=/b", b"/?a=/b", b"public"),
        (b"http://public?a", b"/?a", b"public"),
        (b"http://public?", b"/?", b"public"),
        (b"http://[2001:db8::1]:80/v1/x", b"/v1/x", b"[2001:db8::1]:80"),
        (b"/v1/http://public/", b"/v1/http://public/", b"router"),
    ],
)
def test_absolute_form_becomes_origin_form(target: bytes, origin: bytes, asked_for: bytes) -> None:
    """spec 4.2, H13: of an absolute target the path and query go on unchanged, and its host is what was asked for."""
    seen = forwarded(request(start=b"POST " + target + b" HTTP/1.1"))

    assert seen.target == origin
    assert seen.values(b"x-forwarded-host") == [asked_for]
    assert seen.values(b"host") == [b"replica:8001"]


def test_a_1_0_request_goes_on_as_1_1() -> None:
    """spec 4.8: an HTTP/1.0 client's request reaches the replica as HTTP/1.1, without Host as well."""
    seen = forwarded(request(b"Content-Length: 3", start=b"POST /v1/x HTTP/1.0", host=None))

    assert (seen.version, seen.values(b"host"), seen.values(b"x-forwarded-host")) == (b"1.1", [b"replica:8001"], [])


@pytest.mark.parametrize(
    ("version", "connection", "expected"),
    [
        (b"1.1", [], True),
        (b"1.1", [b"close"], False),
        (b"1.1", [b"Close"], False),
        (b"1.1", [b"keep-alive, CLOSE"], False),
        (b"1.1", [b"keep-alive", b"close"], False),
        (b"1.1", [b"x, close"], False),
        (b"1.1", [b"closed"], True),
        (b"1.0", [], False),
        (b"1.0", [b"keep-alive"], True),
        (b"1.0", [b"x", b"Keep-Alive"], True),
        (b"1.0", [b"keep-alive, close"], False),
    ],
)
def test_whether_the_connection_goes_on(version: bytes, connection: list[bytes], expected: bool) -> None:
    """spec 4.8: persistence as RFC 9112 9.3 reads it, in requests and answers."""
    lines = [b"Connection: " + value for value in connection]

    asked = parse_request(request(*lines, start=b"GET / HTTP/" + version))
    answered = parse_response(b"\r\n".join([b"HTTP/" + version + b" 200 OK", *lines]))

    assert (asked.keep_alive, answered.keep_alive) == (expected, expected)


def test_expect_is_heeded_in_1_1_only() -> None:
    """spec 4.3: `Expect: 100-continue` is answered to those who can read the answer."""
    lines = [b"Expect: 100-continue", b"Content-Length: 2"]

    assert parse_request(request(*lines)).expect
    old = request(*lines, start=b"POST / HTTP/1.0")
    assert not parse_request(old).expect
    assert forwarded(old).values(b"expect") == []


def test_a_field_can_be_looked_up() -> None:
    """The router's own endpoints find an end-to-end field whatever its spelling."""
    head = parse_request(request(b"AUTHORIZATION:\t Bearer x ", b"authorization: y"))

    assert head.field(b"authorization") == b"Bearer x"
    assert head.field(b"origin") is None


# --- what is refused ------------------------------------------------------------------------

REFUSED = {
    # request line (RFC 9112 3)
    "empty": b"",
    "no version": request(start=b"GET /"),
    "no target": request(start=b"GET  HTTP/1.1"),
    "two spaces": request(start=b"GET  / HTTP/1.1"),
    "trailing space": request(start=b"GET / HTTP/1.1 "),
    "leading space": request(start=b" GET / HTTP/1.1"),
    "tab": request(start=b"GET\t/\tHTTP/1.1"),
    "space in target": request(start=b"GET /a b HTTP/1.1"),
    "lower-case protocol": request(start=b"GET / http/1.1"),
    "0.9": request(start=b"GET / HTTP/0.9"),
    "1.2": request(start=b"GET / HTTP/1.2"),
    "1.10": request(start=b"GET / HTTP/1.10"),
    "01.1": request(start=b"GET / HTTP/01.1"),
    "2.0": request(start=b"PRI * HTTP/2.0"),
    "method not a token": request(start=b"G{T / HTTP/1.1"),
    "no method": request(start=b" / HTTP/1.1"),
    "CONNECT": request(start=b"CONNECT replica:8001 HTTP/1.1"),
    "CONNECT to a path": request(start=b"CONNECT /v1/x HTTP/1.1"),
    "asterisk with GET": request(start=b"GET * HTTP/1.1"),
    "authority-form": request(start=b"GET router:80 HTTP/1.1"),
    "relative target": request(start=b"GET v1/x HTTP/1.1"),
    "fragment": request(start=b"GET /v1/x#y HTTP/1.1"),
    "backslash": request(start=b"GET /v1\\x HTTP/1.1"),
    "non-ASCII target": request(start="GET /v1/ü HTTP/1.1".encode()),
    "control in target": request(start=b"GET /v1/\x01 HTTP/1.1"),
    "other scheme": request(start=b"GET ftp://router/ HTTP/1.1"),
    "absolute without host": request(start=b"GET http:///v1/x HTTP/1.1"),
    "absolute with user": request(start=b"GET http://me@router/v1/x HTTP/1.1"),
    "absolute with port only": request(start=b"GET http://:80/v1/x HTTP/1.1"),
    # lines (RFC 9112 2.2, 5)
    "bare LF": request(b"A: b\nC: d"),
    "bare CR": request(b"A: b\rC: d"),
    "CR before CR LF": request(b"A: b\r"),
    "LF CR": request(b"A: b\n\rC: d"),
    "bare LF in request line": b"GET / HTTP/1.1\nHost: router",
    "NUL": request(b"A: b\0c"),
    "DEL": request(b"A: b\x7fc"),
    "escape": request(b"A: \x1b[2J"),
    "vertical tab": request(b"A: \x0bb"),
    "obs-fold": request(b"A: b", b" c"),
    "obs-fold with a colon": request(b"A: b", b" C: d"),
    "obs-fold with a tab": request(b"A: b", b"\tC: d"),
    "obs-fold first": b"GET / HTTP/1.1\r\n Host: router",
    "no colon": request(b"Accept"),
    "no name": request(b": b"),
    "space before the colon": request(b"A : b"),
    "tab before the colon": request(b"A\t: b"),
    "space in the name": request(b"A B: c"),
    "name not a token": request(b"A(: b"),
    "non-ASCII name": request("Ä: b".encode()),
    "NUL in a name": request(b"A\0: b"),
    # Host (RFC 9112 3.2)
    "no Host": request(host=None),
    "two Hosts": request(b"Host: router"),
    "two different Hosts": request(b"hoST: other"),
    "Host with a list": request(host=b"Host: a, b"),
    "Host with a space": request(host=b"Host: a b"),
    "Host with a path": request(host=b"Host: a/b"),
    "Host with a user": request(host=b"Host: me@a"),
    "Host with a bad port": request(host=b"Host: a:8x"),
    "Host with two ports": request(host=b"Host: a:1:2"),
    "Host with a bad address": request(host=b"Host: [::1"),
    "no Host, absolute target": request(start=b"GET http://router/ HTTP/1.1", host=None),
    # framing (RFC 9112 6)
    "two lengths": request(b"Content-Length: 5", b"Content-Length: 6"),
    "one length twice": request(b"Content-Length: 5", b"Content-Length: 5"),
    "list of lengths": request(b"Content-Length: 5, 5"),
    "length with chunked": request(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "chunked with length": request(b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    "zero length with chunked": request(b"Content-Length: 0", b"Transfer-Encoding: chunked"),
    "empty length": request(b"Content-Length:"),
    "negative length": request(b"Content-Length: -1"),
    "signed length": request(b"Content-Length: +5"),
    "hexadecimal length": request(b"Content-Length: 0x5"),
    "length with an underscore": request(b"Content-Length: 1_0"),
    "length with a space": request(b"Content-Length: 1 0"),
    "fractional length": request(b"Content-Length: 5.0"),
    "huge length": request(b"Content-Length: 99999999999999999999"),
    "other digits": request("Content-Length: \uff15".encode()),
    "superscript digits": request("Content-Length: \u00b2".encode("latin-1")),
    "chunked in 1.0": request(b"Transfer-Encoding: chunked", start=b"POST / HTTP/1.0"),
    "chunked twice": request(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "chunked twice in a list": request(b"Transfer-Encoding: chunked, chunked"),
    "chunked, then identity": request(b"Transfer-Encoding: chunked, identity"),
    "identity": request(b"Transfer-Encoding: identity"),
    "empty coding": request(b"Transfer-Encoding:"),
    "gzip last": request(b"Transfer-Encoding: chunked, gzip"),
    "xchunked": request(b"Transfer-Encoding: xchunked"),
    "chunked in quotes": request(b'Transfer-Encoding: "chunked"'),
    "chunked with a parameter": request(b"Transfer-Encoding: chunked;q=1"),
    "chunked after a vertical tab": request(b"Transfer-Encoding: \x0bchunked"),
    "chunked after a comma": request(b"Transfer-Encoding: , chunked"),
    "chunked on the next line": request(b"Transfer-Encoding:", b" chunked"),
    "coding with a space before the colon": request(b"Transfer-Encoding : chunked"),
    "coding with two chunkeds": request(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
}  # fmt: skip


@pytest.mark.parametrize("block", REFUSED.values(), ids=REFUSED)
def test_ambiguous_requests_are_refused(block: bytes) -> None:
    """spec 4.8: what two parsers could read two ways is refused with 400."""
    assert refusal(block) == 400


@pytest.mark.parametrize("name", ["Accept", "X-Seen-Before", "Host", "Connection", "X-Session-Id", "TE", "Expect"])
def test_a_line_without_a_colon_is_refused_also_where_its_name_is_known(name: str) -> None:
    """spec 4.8: that a name was seen before does not make a line of it alone a field."""
    parse_request(request(f"{name}: x".encode(), host=None if name == "Host" else b"Host: router"))
    parse_response(b"HTTP/1.1 200 OK\r\n" + name.encode() + b": x")

    assert refusal(request(name.encode(), host=None if name == "Host" else b"Host: router")) == 400
    with pytest.raises(UpstreamProtocolError):
        parse_response(b"HTTP/1.1 200 OK\r\n" + name.encode())


def test_a_coding_that_is_not_ours_gets_501() -> None:
    """spec 4.8: a well-formed transfer coding which the router does not know is no ambiguity (RFC 9112 6.1)."""
    assert refusal(request(b"Transfer-Encoding: gzip, chunked")) == 501


def test_as_many_fields_as_are_allowed() -> None:
    """spec 4.10: 128 fields are read, 129 get 431."""
    many = [b"A: b"] * (MAX_FIELDS - 1)

    assert refusal(request(*many)) == 0
    assert refusal(request(*many, b"A: b")) == 431


@pytest.mark.parametrize("name", [b"Accept-Encoding", b"X-New-Name"])
def test_what_was_refused_once_is_refused_again(name: bytes) -> None:
    """spec 4.8: a judgement does not depend on what was judged before."""
    bad = request(name + b": a\0b")

    assert [refusal(bad), refusal(request(name + b": ab")), refusal(bad)] == [400, 0, 400]


# --- the witness ----------------------------------------------------------------------------

PIECES = [
    b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b",", b";", b"\x0b", b"\x80", b"\xff", b"GET", b"POST", b"/", b"*",
    b"http://a/b", b"HTTP/1.1", b"HTTP/1.0", b"Host", b"Host: a", b"Content-Length: 3", b"Content-Length", b"3", b"03",
    b"+3", b"Transfer-Encoding: chunked", b"Transfer-Encoding", b"chunked", b"identity", b"Connection: ", b"close",
    b"keep-alive", b"content-length", b"\r\n ", b"\r\n\t", b"Accept", b"Accept: x", b"CONNECT", b"HEAD", b"#", b"%00",
]  # fmt: skip
SEEDS = [
    *REFUSED.values(),
    request(),
    request(b"Content-Length: 3", b"Accept: */*"),
    request(b"Transfer-Encoding: chunked", b"X-Session-Id: s"),
    request(b"Connection: close, X-A", b"X-A: b", b"X-B: c"),
    request(start=b"GET http://router/v1/models?x HTTP/1.1"),
    request(b"Connection: keep-alive", start=b"GET /v1/models HTTP/1.0", host=None),
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Change a head here and there, most often into something malformed."""
    block = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(block)))
        length = draw(st.sampled_from([0, 0, 0, 1, 2, 8]))
        block[at : at + length] = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=2)))
    return bytes(block)


@given(mutated())
@example(request(b"Accept: x", b"Accept"))
def test_the_witness_reads_what_is_accepted_in_the_same_way(block: bytes) -> None:
    """spec 4.8: of any bytes, what the router accepts h11 reads as the same request, before and after forwarding."""
    assume(b"\r\n\r\n" not in block)
    try:
        head = parse_request(block)
    except RequestError:
        return

    theirs = read_one(block + b"\r\n\r\n")
    ours = read_one(forward_request(head, host=b"replica", peer=b"peer", request_id=b"id"))

    assert ours.method == theirs.method
    assert ours.target == re.sub(
        rb"(?i)^https?://[^/?]*(?=/)", b"", re.sub(rb"(?i)^(https?://[^/?]*)(?=$|\?)", rb"\1/", theirs.target)
    )
    assert len(ours.values(b"host")) == 1
    assert [int(v) for v in ours.values(b"content-length")] == [int(v) for v in theirs.values(b"content-length")]
    assert ours.values(b"transfer-encoding") == [v.lower() for v in theirs.values(b"transfer-encoding")]
    named = {option.strip(b" \t").lower() for value in theirs.values(b"connection") for option in value.split(b",")}
    dropped = (HOP_BY_HOP | ADDED | {b"expect"} | named) - {b"content-length"}
    assert [f for f in ours.fields if f[0] not in ADDED | {b"expect"}] == [
        f for f in theirs.fields if f[0] not in dropped and not f[0].startswith(b"proxy-")
    ]
    persistent = b"close" not in named and (theirs.version == b"1.1" or b"keep-alive" in named)
    assert head.keep_alive == persistent


# --- answers --------------------------------------------------------------------------------


def answer(*lines: bytes, start: bytes = b"HTTP/1.1 200 OK", **how: object) -> bytes:
    """Give what the client gets of an answer's head."""
    options = {"session": b"sid", "request_id": b"rid", "extra": b"", "chunked": False, "connection": None} | how
    return forward_response(parse_response(b"\r\n".join([start, *lines])), **options)  # type: ignore[arg-type]


@given(st.lists(st.one_of(end_to_end, fields(hop_names)), max_size=12))
def test_an_answers_fields_cross_untouched(sent: list[tuple[str, bytes, bytes]]) -> None:
    """spec 4.1, 4.2: an answer's end-to-end fields reach the client in order, duplicates kept, and no per-hop one."""
    assume(not any(name.lower() == "content-type" for name, *_ in sent))

    seen = read_response(answer(*[line for *_, line in sent], b"Content-Length: 0") + b"")

    end_to_end = [
        (name.lower().encode(), value)
        for name, value, _ in sent
        if name.lower().encode() not in HOP_BY_HOP and not name.lower().startswith("proxy-")
    ]
    assert seen.fields == [*end_to_end, (b"content-length", b"0"), (b"x-session-id", b"sid"), (b"x-request-id", b"rid")]


@pytest.mark.parametrize(
    ("lines", "how", "name", "expected"),
    [
        ([], {}, b"x-session-id", [b"sid"]),
        ([b"X-Session-Id: theirs", b"x-session-id: other"], {}, b"x-session-id", [b"sid"]),
        ([b"X-Session-Id: theirs"], {"session": None}, b"x-session-id", [b"theirs"]),
        ([], {"session": None}, b"x-session-id", []),
        ([], {}, b"x-request-id", [b"rid"]),
        ([b"X-Request-ID: theirs"], {}, b"x-request-id", [b"theirs"]),
        ([b"Connection: x-request-id", b"X-Request-ID: theirs"], {}, b"x-request-id", [b"rid"]),
        ([b"Connection: x-session-id", b"X-Session-Id: s"], {"session": None}, b"x-session-id", []),
        ([b"Content-Type: text/event-stream; charset=utf-8"], {}, b"x-accel-buffering", [b"no"]),
        ([b"Content-Type: TEXT/EVENT-STREAM", b"X-Accel-Buffering: yes"], {}, b"x-accel-buffering", [b"yes"]),
        ([b"Content-Type: application/json"], {}, b"x-accel-buffering", []),
        ([b"Retry-After: 7"], {}, b"retry-after", [b"7"]),
        ([b"Server: a", b"Date: b"], {}, b"server", [b"a"]),
        ([b"Set-Cookie: a=b", b"Set-Cookie: c=d"], {}, b"set-cookie", [b"a=b", b"c=d"]),
        ([], {"connection": b"close"}, b"connection", [b"close"]),
        ([b"Connection: close", b"Keep-Alive: timeout=5"], {}, b"connection", []),
        ([b"Trailer: x", b"Transfer-Encoding: chunked"], {"chunked": True}, b"transfer-encoding", [b"chunked"]),
        ([b"Transfer-Encoding: chunked"], {}, b"transfer-encoding", []),
        ([], {"extra": b"X-Router-Replica: r1\r\n"}, b"x-router-replica", [b"r1"]),
    ],
)  # fmt: skip
def test_fields_of_an_answer(lines: list[bytes], how: dict[str, Any], name: bytes, expected: list[bytes]) -> None:
    """spec 3.3, S1, H1, H9, H16: what the router replaces in an answer, adds to it, and leaves alone."""
    assert (
        read_response(answer(*lines, **how), ended=b"Transfer-Encoding: chunked" not in lines).values(name) == expected
    )


@pytest.mark.parametrize(
    ("status", "lines", "expected"),
    [
        (200, [], Framing.CLOSE),
        (200, [b"Content-Length: 0"], Framing.NONE),
        (200, [b"Content-Length: 5"], Framing.LENGTH),
        (200, [b"Transfer-Encoding: Chunked"], Framing.CHUNKED),
        (204, [b"Transfer-Encoding: chunked"], Framing.NONE),
        (204, [], Framing.NONE),
        (304, [b"Content-Length: 5"], Framing.NONE),
        (102, [b"Content-Length: 5"], Framing.NONE),
        (500, [], Framing.CLOSE),
        (999, [b"Content-Length: 1"], Framing.LENGTH),
    ],
)  # fmt: skip
def test_how_an_answer_ends(status: int, lines: list[bytes], expected: Framing) -> None:
    """spec 4.8: the end of an answer is found as RFC 9112 6.3 says."""
    assert parse_response(b"\r\n".join([b"HTTP/1.1 %d Fine" % status, *lines])).framing is expected


@pytest.mark.parametrize(("status", "crosses"), [(200, True), (304, True), (204, False), (102, False)])
def test_a_length_that_must_not_be_there(status: int, crosses: bool) -> None:
    """spec 4.8, H2: Content-Length goes on, but not in 1xx and 204 (RFC 9110 8.6)."""
    assert (b"Content-Length: 5" in answer(b"Content-Length: 5", start=b"HTTP/1.1 %d x" % status)) is crosses


REFUSED_ANSWERS = {
    "not HTTP": b"SSH-2.0-x",
    "2.0": b"HTTP/2.0 200 OK",
    "lower case": b"http/1.1 200 OK",
    "no status": b"HTTP/1.1",
    "two digits": b"HTTP/1.1 99 x",
    "four digits": b"HTTP/1.1 2000 x",
    "no digits": b"HTTP/1.1 OK",
    "099": b"HTTP/1.1 099 x",
    "two spaces": b"HTTP/1.1  200 OK",
    "control in the reason": b"HTTP/1.1 200 O\x00K",
    "bare LF": b"HTTP/1.1 200 OK\nA: b",
    "bare CR": b"HTTP/1.1 200 OK\r\nA: b\rc",
    "obs-fold": b"HTTP/1.1 200 OK\r\nA: b\r\n c",
    "no colon": b"HTTP/1.1 200 OK\r\nfoo",
    "space before the colon": b"HTTP/1.1 200 OK\r\nA : b",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
    "one length twice": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1",
    "list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1",
    "length with chunked": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
    "zero length with chunked": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1",
    "chunked in 1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
    "gzip, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
    "identity": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity",
    "chunked twice": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "too many fields": b"\r\n".join([b"HTTP/1.1 200 OK", *[b"A: b"] * 129]),
}  # fmt: skip


@pytest.mark.parametrize("block", REFUSED_ANSWERS.values(), ids=REFUSED_ANSWERS)
def test_ambiguous_answers_are_refused(block: bytes) -> None:
    """spec 4.8: an answer that two parsers could read two ways does not reach the client."""
    for _ in range(2):
        with pytest.raises(UpstreamProtocolError):
            parse_response(block)


def test_a_status_line_without_a_reason() -> None:
    """spec 4.8: a reason phrase may be missing, with its space or without, and may hold anything printable."""
    assert answer(start=b"HTTP/1.1 200").startswith(b"HTTP/1.1 200 \r\n")
    assert answer(start=b"HTTP/1.0 200 ").startswith(b"HTTP/1.1 200 \r\n")
    assert answer(start=b"HTTP/1.1 200 All \xe4 well").startswith(b"HTTP/1.1 200 All \xe4 well\r\n")


@given(mutated())
def test_the_witness_reads_an_accepted_answer_in_the_same_way(block: bytes) -> None:
    """spec 4.8: of any bytes, what the router accepts as an answer's head h11 reads as the same answer."""
    block = b"HTTP/1.1 200 OK\r\n" + block.partition(b"\r\n")[2]
    assume(b"\r\n\r\n" not in block)
    try:
        head = parse_response(block)
    except UpstreamProtocolError:
        return

    theirs = read_response(block + b"\r\n\r\n")
    ours = read_response(
        forward_response(
            head, session=None, request_id=b"r", extra=b"", chunked=head.framing is Framing.CHUNKED, connection=None
        )
    )

    named = {option.strip(b" \t").lower() for value in theirs.values(b"connection") for option in value.split(b",")}
    dropped = (HOP_BY_HOP | named | {b"x-request-id", b"x-accel-buffering"}) - {b"content-length"}
    kept = {b"x-request-id", b"x-accel-buffering", b"transfer-encoding"}
    assert sorted(f for f in ours.fields if f[0] not in kept) == sorted(
        f for f in theirs.fields if f[0] not in dropped and not f[0].startswith(b"proxy-")
    )
    assert ours.values(b"content-length") == theirs.values(b"content-length")
    assert ours.values(b"transfer-encoding") == [v.lower() for v in theirs.values(b"transfer-encoding")]


def test_memories_are_bounded() -> None:
    """spec 4.10: clients who never say the same thing twice cost no memory that lasts."""
    long = b"x" * 400
    tracemalloc.start()
    try:
        for n in range(9_000):
            lines = b"X-%d-%b: %b" % (n, long[:100], long), b"Accept: %d" % n
            parse_request(request(*lines, start=b"GET /%d HTTP/1.1" % n))
            parse_response(b"HTTP/1.1 200 OK\r\nX-%d: %b" % (n, long))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 15 << 20  # it would be 22 MB, and more with each request, if everything were kept
