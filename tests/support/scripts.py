"""Well-behaved exchanges of every kind."""

from __future__ import annotations

from tests.support.conversation import Script


def request(*lines: bytes, start: bytes = b"POST /v1/completions HTTP/1.1", body: bytes = b"") -> bytes:
    """Write a request; a body brings its length."""
    fields = [b"Host: router", *lines]
    if body:
        fields.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([start, *fields, b"", body])


def answer(*lines: bytes, start: bytes = b"HTTP/1.1 200 OK", body: bytes = b"") -> bytes:
    """Write an answer with its length."""
    return b"\r\n".join([start, *lines, b"Content-Length: %d" % len(body), b"", body])


EVENTS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'D\r\ndata: {"a"}\n\n\r\n0000e;x=y\r\ndata: [DONE]\n\n\r\n0\r\nTrailing: a\r\n\r\n'
)
CHUNKS = b'5\r\n{"ses\r\nA\r\nsion_id":1\r\n1\r\n}\r\n0\r\nTrailing: a\r\n\r\n'
OLD = b"POST /v1/completions HTTP/1.0"

SCRIPTS = {
    "length": Script(request(body=b'{"session_id": "s1"}'), [answer(body=b"fine")]),
    "length, session in the head": Script(request(b"X-Session-Id: s1", body=b"body"), [answer(body=b"fine")]),
    "no body": Script(request(start=b"GET /v1/models HTTP/1.1"), [answer(b"X-Session-Id: theirs", body=b"[]")]),
    "leading empty lines": Script(b"\r\n\r\n\r\n" + request(), [answer()]),
    "chunked request": Script(request(b"Transfer-Encoding: chunked") + CHUNKS, [answer(body=b"fine")]),
    "chunked request, session in the head": Script(
        request(b"Transfer-Encoding: chunked", b"X-Session-Id: s1") + CHUNKS, [answer(body=b"fine")]
    ),
    "events": Script(request(body=b"{}"), [EVENTS]),
    "events for a 1.0 client": Script(request(start=OLD, body=b"{}"), [EVENTS]),
    "length for a 1.0 client": Script(request(start=OLD, body=b"{}"), [answer(body=b"fine")]),
    "keep-alive for a 1.0 client": Script(
        request(b"Connection: keep-alive", start=OLD, body=b"{}") * 2, [answer(body=b"fine"), answer(body=b"too")]
    ),
    "until the end": Script(request(body=b"{}"), [b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nuntil the end"], ends=True),
    "until the end, 1.0": Script(request(body=b"{}"), [b"HTTP/1.0 200 OK\r\n\r\nuntil the end"], ends=True),
    "HEAD": Script(request(start=b"HEAD /v1/models HTTP/1.1"), [b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"]),
    "HEAD, chunked": Script(
        request(start=b"HEAD /v1/models HTTP/1.1"), [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
    ),
    "204": Script(request(body=b"{}"), [b"HTTP/1.1 204 No Content\r\n\r\n"]),
    "204 with fields it must not have": Script(
        request(body=b"{}"), [b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"]
    ),
    "304": Script(request(), [b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"]),
    "interim answers": Script(
        request(body=b"{}"),
        [
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nA: b\r\n\r\n"
            b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + answer(body=b"fine")
        ],
    ),
    "Expect": Script(request(b"Expect: 100-continue", body=b"{}"), [answer(body=b"fine")]),
    "Connection: close": Script(request(b"Connection: close", body=b"{}"), [answer(body=b"fine")]),
    "the replica closes": Script(request(body=b"{}"), [answer(b"Connection: close", body=b"fine")]),
    "an error of the replica's": Script(
        request(body=b"{}"), [answer(b"Retry-After: 7", start=b"HTTP/1.1 503 Busy", body=b"later")]
    ),
    "pipelined": Script(
        request(body=b'{"session_id": "s1"}') + request(start=b"GET /v1/models HTTP/1.1")
        + request(b"Transfer-Encoding: chunked", b"X-Session-Id: s1") + CHUNKS + request(b"Connection: close"),
        [answer(body=b"one"), EVENTS, answer(body=b"three"), answer(body=b"four")],
    ),
    "chunks, then a length": Script(
        request(b"Transfer-Encoding: chunked", b"X-Session-Id: s1") + CHUNKS + request(body=b"{}"),
        [answer(body=b"one"), answer(body=b"two")],
    ),
    "pipelined after close": Script(request(b"Connection: close") + request(), [answer(body=b"one")]),
    "malformed chunk": Script(request(b"Transfer-Encoding: chunked") + CHUNKS[:7] + b"x" + CHUNKS[7:], []),
    "malformed trailer": Script(request(b"Transfer-Encoding: chunked") + CHUNKS[:-4] + b"\n\r\n", []),
    "malformed after a request": Script(request() + b"GET / HTTP/9\r\n\r\n" + request(), [answer(body=b"one")]),
}  # fmt: skip
