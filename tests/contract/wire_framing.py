"""Requests that two parsers could read two ways, most known from request smuggling, and some that only look so."""

from __future__ import annotations

from typing import Final

from tests.contract.wire_requests import GET, OK, POST, ask
from tests.support.exchange_table import Case, error, quoted, to_client, to_replica

HIDDEN: Final = b"GET /v1/hidden HTTP/1.1\r\nHost: router\r\n\r\n"
"""What a smuggler wants the replica to take for a request."""

LENGTH: Final = b"Content-Length: 6"
CHUNKED: Final = b"Transfer-Encoding: chunked"
SIZE: Final = b"%x\r\n" % len(HIDDEN)

MALFORMED: Final = error(b"400 Bad Request", b"malformed_request")
REFUSED_BODY: Final = error(b"400 Bad Request", b"malformed_request", session=b"<1>", request=b"<2>")


def refused(
    name: str, cites: str, *lines: bytes, start: bytes = POST, host: bytes = b"Host: router", body: bytes = HIDDEN
) -> Case:
    """Describe a request whose head is refused, with whatever follows it."""
    return Case(name, cites, ask(*lines, start=start, host=host, body=body), answered=MALFORMED, ending="fin")


def raw(name: str, cites: str, data: bytes, answered: bytes = MALFORMED) -> Case:
    """Describe bytes that are refused."""
    return Case(name, cites, data, answered=answered, ending="fin")


def bad_chunk(name: str, cites: str, body: bytes) -> Case:
    """Describe a chunked body that is refused before anything of it has been forwarded."""
    return raw(name, cites, ask(b"Transfer-Encoding: chunked", start=POST, body=body + HIDDEN), REFUSED_BODY)


OBSCURE_CODINGS: Final = (
    b"Transfer-Encoding: xchunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding\t: chunked",
    b" Transfer-Encoding: chunked", b"Transfer-Encoding: chunked\x0b", b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding: \x0cchunked", b"Transfer-Encoding: chunked\x00", b"Transfer-Encoding: chu\x00nked",
    b"Transfer-Encoding:\n chunked", b"Transfer-Encoding\n: chunked", b"X: y\nTransfer-Encoding: chunked",
    b"X: y\rTransfer-Encoding: chunked", b"X: y\r\n Transfer-Encoding: chunked",
    b"Transfer-Encoding\r: chunked", b"Transfer-Encoding: \r\n chunked", b"\x00Transfer-Encoding: chunked",
    b"Transfer-Encoding\x00: chunked", b"\xefTransfer-Encoding: chunked",
    b"Transfer\xadEncoding: chunked\r\nTransfer-Encoding: identity",
)  # fmt: skip

WRONG_CODINGS: Final = (
    b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: identity, chunked, identity",
    b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"Transfer-Encoding: identity",
    b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", b"Transfer-Encoding:",
    b"Transfer-Encoding: ,chunked", b"Transfer-Encoding: chunked;a=b", b'Transfer-Encoding: "chunked"',
    b"Transfer-Encoding: 'chunked'", b"Transfer-Encoding: [chunked]", b"Transfer-Encoding: chunk",
    b"Transfer-Encoding: cow", b"Transfer-Encoding: chunked\xa0", b"Transfer-Encoding: chunked chunked",
    b"Transfer-Encoding: gzip",
)  # fmt: skip

WRONG_LENGTHS: Final = (
    b"Content-Length: 0\r\nContent-Length: 44", b"Content-Length: 44\r\nContent-Length: 44",
    b"Content-Length: 0\r\ncontent-length: 0", b"Content-Length: 0, 44", b"Content-Length: 44, 44",
    b"Content-Length: +44", b"Content-Length: -44", b"Content-Length: 0x2c", b"Content-Length: 4 4",
    b"Content-Length: 44;", b"Content-Length: 44.0", b"Content-Length: 4_4", b"Content-Length:",
    b"Content-Length: a", b"Content-Length: 44\x00", b"Content-Length: 44\x0b", b"Content-Length : 44",
    b" Content-Length: 44", b"Content-Length\x00: 44", b"Content-Length: \r\n 44",
    b"X: y\nContent-Length: 44", b"Content-Length", b"Content-Length: 18446744073709551660",
    b"Content-Length: 9999999999999999999", b"Content-Length: \xb2",
)  # fmt: skip

WRONG_START_LINES: Final = (
    b"GET /v1/x", b"GET", b"GET  /v1/x HTTP/1.1", b"GET /v1/x  HTTP/1.1", b"GET /v1/x HTTP/1.1 ",
    b"GET\t/v1/x\tHTTP/1.1", b"GET /v1/x HTTP/1.1 HTTP/1.1", b"GET /v1/x /v1/y HTTP/1.1",
    b"GET /v1/x HTTP/1.10", b"GET /v1/x HTTP/11.1", b"GET /v1/x HTTP/1.2", b"GET /v1/x HTTP/0.9",
    b"GET /v1/x HTTP/2.0", b"GET /v1/x http/1.1", b"GET /v1/x HTTP/1", b"GET /v1/x HTTP/1.1\x00",
    b"GET /v1/x HTTPS/1.1", b"GE(T /v1/x HTTP/1.1", b"G\x00ET /v1/x HTTP/1.1", b"GET v1/x HTTP/1.1",
    b"GET * HTTP/1.1", b"GET /v1/\x01 HTTP/1.1", b"GET /v1/\xe4 HTTP/1.1", b"GET /v1/x#y HTTP/1.1",
    b"GET \\v1\\x HTTP/1.1", b"GET ftp://router/v1/x HTTP/1.1", b"GET http:///v1/x HTTP/1.1",
    b"GET http:/v1/x HTTP/1.1", b"GET http://a@router/v1/x HTTP/1.1", b"GET http://:80/v1/x HTTP/1.1",
    b"GET http://a:b/v1/x HTTP/1.1", b"CONNECT router:80 HTTP/1.1", b"CONNECT /v1/x HTTP/1.1",
    b"PRI * HTTP/2.0",
)  # fmt: skip

WRONG_HOSTS: Final = (
    b"Host: a b", b"Host: a,b", b"Host: a/b", b"Host: a@b", b"Host: a:b", b"Host: a:1:2", b"Host: [::1",
    b"Host: ::1", b"Host: [a]b", b"Host: a#b", b"Host: a?b", b"Host : a", b"Host: a\x00", b"Host: a\\b",
)  # fmt: skip

WRONG_CHUNKS: Final = (
    b"\r\n", b"x\r\n", b"-1\r\n", b"+1\r\na\r\n", b"0x1\r\na\r\n", b" 1\r\na\r\n", b"1 \r\na\r\n",
    b"1\t\r\na\r\n", b"1_0\r\n", b"1\na\r\n", b"1\ra\r\n", b"1;a\na\r\n", b"1;a\rb\r\na\r\n",
    b"1;\x00\r\na\r\n", b"1 ;a\r\na\r\n", b"1,a\r\na\r\n", b"1\r\nab\r\n", b"1\r\na\n", b"1\r\na\r",
    b"2\r\na\r\n0\r\n\r\n", b"1\r\na\r\n\r\n", b"ffffffffffffffff\r\n", b"10000000000000000\r\n",
    b"0000000000000001\r\na\r\n", b"0\n\n", b"0\r\n\n", b"0\n\r\n", b"0\r\nA\r\n\r\n", b"0\r\nA : b\r\n\r\n",
    b"0\r\nA: b\n\r\n", b"0\r\n A: b\r\n\r\n", b"0\r\n: b\r\n\r\n", b"0\r\nA: b\x00\r\n\r\n",
    b"1;" + b"a" * 2000 + b"\r\na\r\n", b"0\r\nContent-Length: 9\r\n\r\n",
    b"0\r\ntransfer-encoding: chunked\r\n\r\n", b"0\r\nA: b\r\nTransfer-Encoding:\r\n\r\n",
)  # fmt: skip

CASES: Final = [
    # --- Content-Length beside Transfer-Encoding (RFC 9112 6.1) ---
    refused("CL.TE", "smuggling: CL.TE", LENGTH, CHUNKED, body=b"0\r\n\r\nG" + HIDDEN),
    refused("TE.CL", "smuggling: TE.CL", CHUNKED, LENGTH, body=SIZE + HIDDEN),
    refused("CL.TE with no length", "smuggling: CL.TE", b"Content-Length: 0", CHUNKED),
    refused("CL.TE in other spellings", "smuggling: CL.TE", b"CONTENT-LENGTH:6", b"transfer-encoding:\tCHUNKED"),
    refused("CL.TE and a third", "smuggling: CL.TE", LENGTH, CHUNKED, CHUNKED),
    refused("length withdrawn", "smuggling: hop-by-hop", b"Connection: content-length", LENGTH, CHUNKED),
    refused("coding withdrawn", "smuggling: hop-by-hop", b"Connection: transfer-encoding", LENGTH, CHUNKED),
    # --- obscured Transfer-Encoding ---
    *[refused(f"TE.TE: {quoted(line)}", "smuggling: TE.TE", b"Content-Length: 5", line) for line in OBSCURE_CODINGS],
    *[refused(f"TE.TE alone: {quoted(line)}", "smuggling: TE.TE", line) for line in WRONG_CODINGS],
    raw(
        "a coding that is not ours",
        "RFC 9112 6.1",
        ask(b"Transfer-Encoding: gzip, chunked", start=POST, body=HIDDEN),
        error(b"501 Not Implemented", b"transfer_coding"),
    ),
    refused("chunked in a 1.0 request", "smuggling: TE.0", b"Transfer-Encoding: chunked", start=b"POST /v1/x HTTP/1.0"),
    # --- Content-Length (RFC 9112 6.3) ---
    *[refused(f"length: {quoted(line)}", "smuggling: CL.CL", line) for line in WRONG_LENGTHS],
    # --- lines (RFC 9112 2.2, 5.1, 5.2) ---
    raw("bare LF throughout", "smuggling: bare LF", HIDDEN.replace(b"\r\n", b"\n")),
    raw("bare CR throughout", "smuggling: bare CR", HIDDEN.replace(b"\r\n", b"\r") + b"\r\n\r\n"),
    raw("bare LF ends the request line", "smuggling: bare LF", b"GET /v1/x HTTP/1.1\nHost: router\r\n\r\n"),
    raw("bare LF ends the head", "smuggling: bare LF", b"GET /v1/x HTTP/1.1\r\nHost: router\r\n\n"),
    raw("LF CR LF ends the head", "smuggling: bare LF", b"GET /v1/x HTTP/1.1\r\nHost: router\n\r\n"),
    raw("CR before CR LF", "smuggling: bare CR", ask(b"A: b\r", start=POST)),
    refused("bare LF hides a field", "smuggling: bare LF", b"A: b\nX-Session-Id: evil"),
    refused("bare CR hides a field", "smuggling: bare CR", b"A: b\rX-Session-Id: evil"),
    refused("an end of head hidden by bare LF", "smuggling: bare LF", b"A: b\n\nGET /v1/hidden HTTP/1.1"),
    refused("folded with a space", "smuggling: obs-fold", b"A: b", b" c"),
    refused("folded with a tab", "smuggling: obs-fold", b"A: b", b"\tc"),
    refused("folded at the first field", "smuggling: obs-fold", host=b" Host: router"),
    refused("folded into a blank line", "smuggling: obs-fold", b"A: b", b" "),
    refused("no colon", "RFC 9112 5", b"A"),
    refused("no colon after a name that is known", "RFC 9112 5", b"Accept: a", b"Accept"),
    refused("no name", "RFC 9112 5.1", b": a"),
    refused("a space in a name", "RFC 9112 5.1", b"A B: c"),
    refused("a space before the colon", "RFC 9112 5.1", b"A : b"),
    refused("a slash in a name", "RFC 9110 5.6.2", b"A/B: c"),
    refused("NUL in a value", "RFC 9110 5.5", b"A: b\x00"),
    refused("DEL in a value", "RFC 9110 5.5", b"A: b\x7f"),
    # --- request lines (RFC 9112 3) ---
    *[
        raw(f"request line: {quoted(line)}", "RFC 9112 3", line + b"\r\nHost: router\r\n\r\n" + HIDDEN)
        for line in WRONG_START_LINES
    ],
    raw("request line cut by CR LF", "smuggling: CRLF", b"GET /v1/x\r\n HTTP/1.1\r\nHost: router\r\n\r\n"),
    raw("TLS on a plain port", "RFC 9112 3", b"\x16\x03\x01\x00\xf4\x01\x00"),
    raw("a space before the method", "RFC 9112 3", b" GET /v1/x HTTP/1.1\r\nHost: router\r\n\r\n"),
    # --- Host (RFC 9112 3.2) ---
    raw("no Host", "RFC 9112 3.2", GET + b"\r\nAccept: a\r\n\r\n" + HIDDEN),
    raw("no Host beside an absolute target", "RFC 9112 3.2", b"GET http://router/v1/x HTTP/1.1\r\n\r\n"),
    refused("two Hosts", "smuggling: Host", b"Host: evil", start=GET),
    refused("the same Host twice", "smuggling: Host", b"hOST: router", start=GET),
    *[refused(quoted(host), "smuggling: Host", host=host, start=GET) for host in WRONG_HOSTS],
    # --- chunks (RFC 9112 7.1) ---
    *[bad_chunk(f"chunk: {quoted(body)}", "smuggling: chunks", body) for body in WRONG_CHUNKS],
    Case(
        "a bad chunk after a good one",
        "smuggling: chunks",
        ask(b"X-Session-Id: chunks-1", CHUNKED, start=POST, body=b"1\r\na\r\n1\r\nbc\r\n0\r\n\r\n"),
        answered=error(b"400 Bad Request", b"malformed_request", session=b"chunks-1", request=b"<1>", placement=b"new"),
        ending="fin",
    ),
    # --- what is not ambiguous, and where the next request begins ---
    Case(
        "a body is no request",
        "smuggling: CL.0",
        ask(b"Content-Length: %d" % len(HIDDEN), start=POST, body=HIDDEN) + ask(),
        [OK, OK],
        to_replica(POST, b"Content-Length: %d" % len(HIDDEN), body=HIDDEN) + to_replica(GET, request=b"<2>"),
        to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", session=b"<3>", body=b"ok")
        + to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", session=None, request=b"<2>", body=b"ok"),
        replica="kept",
    ),
    Case(
        "a chunk is no request",
        "smuggling: TE.0",
        ask(CHUNKED, start=POST, body=SIZE + HIDDEN + b"\r\n0\r\n\r\n") + ask(),
        [OK, OK],
        to_replica(POST, b"Transfer-Encoding: chunked", body=SIZE + HIDDEN + b"\r\n0\r\n\r\n")
        + to_replica(GET, request=b"<2>"),
        to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", session=b"<3>", body=b"ok")
        + to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", session=None, request=b"<2>", body=b"ok"),
        replica="kept",
    ),
    Case(
        "trailers are no fields",
        "smuggling: trailers",
        ask(CHUNKED, start=POST, body=b"0\r\nHost: evil\r\nX-Session-Id: evil\r\n\r\n"),
        OK,
        to_replica(POST, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", body=b"ok"),
        replica="kept",
    ),
    Case(
        "malformed behind a good request",
        "RFC 9112 2.2",
        ask() + b"GET / HTTP/9\r\n\r\n" + HIDDEN,
        OK,
        to_replica(GET),
        to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", session=None, body=b"ok") + MALFORMED,
        ending="fin",
        replica="kept",
    ),
]
