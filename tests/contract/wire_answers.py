"""What of an answer crosses to the client, where it ends, and what becomes of answers that are none."""

from __future__ import annotations

from typing import Final

from tests.contract.wire_requests import GET, OK, POST, ask
from tests.support.exchange_table import Case, Reply, error, quoted, to_client, to_replica

BROKEN: Final = error(b"502 Bad Gateway", b"upstream_failed", request=b"<1>", placement=b"new", close=False)
START: Final = b"HTTP/1.1 200 OK"
HEAD: Final = b"HEAD /v1/models HTTP/1.1"
OLD: Final = b"GET /v1/models HTTP/1.0"
CLOSE: Final = b"Connection: close"
CHUNKED: Final = b"Transfer-Encoding: chunked"


def reply(*lines: bytes, start: bytes = START, body: bytes = b"") -> bytes:
    """Write an answer."""
    return b"\r\n".join([start, *lines, b"", body])


def crosses(
    name: str, cites: str, *lines: bytes, start: bytes = START, becomes: bytes | None = None,
    kept: tuple[bytes, ...] | None = None, body: bytes = b"", got: bytes | None = None, last: tuple[bytes, ...] = (),
    request: bytes = GET, replica: str = "kept", id: bytes | None = b"<1>",  # noqa: A002 - the word of the wire
) -> Case:  # fmt: skip
    """Describe an answer of which the start line becomes `becomes` and of whose lines `kept` cross, else all."""
    return Case(
        name,
        cites,
        ask(start=request),
        reply(*lines, start=start, body=body),
        to_replica(request),
        to_client(
            becomes or start, *(lines if kept is None else kept), session=None, request=id, last=last,
            body=body if got is None else got,
        ),
        replica="kept" if replica == "kept" else "closed",
    )  # fmt: skip


def ends(
    name: str, cites: str, data: bytes, *lines: bytes, body: bytes, ending: str = "fin", then: str = "stay",
    replica: str = "closed", start: bytes = GET, becomes: bytes = START, last: tuple[bytes, ...] = (CLOSE,),
) -> Case:  # fmt: skip
    """Describe an answer with which the client's connection ends."""
    old = start.endswith(b"1.0")
    return Case(
        name,
        cites,
        ask(start=start, host=b"A: b" if old else b"Host: router"),
        [Reply(data, then)],  # type: ignore[arg-type] # one of the three
        to_replica(GET, *([b"A: b"] if old else []), host=b"" if old else b"router"),
        to_client(becomes, *lines, session=None, last=last, body=body),
        ending=ending,  # type: ignore[arg-type] # one of the three
        replica=replica,  # type: ignore[arg-type] # one of the three
    )


def broken(name: str, cites: str, data: bytes, then: str = "stay") -> Case:
    """Describe an answer that is none."""
    return Case(
        name, cites, ask(), [Reply(data, then)], to_replica(GET), BROKEN, replica="closed"  # type: ignore[arg-type]
    )  # fmt: skip


WRONG_STATUS_LINES: Final = (
    b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1",
    b"HTTP/1.2 200 OK", b"HTTP/2 200 OK", b"HTTP/0.9 200 OK", b"http/1.1 200 OK", b"HTTP/1.1 200 O\x00K",
    b"HTTP/1.1 2\xb20 OK", b"HTTP/1.1 099 x", b"HTTP/1.1\t200 OK", b"ICY 200 OK", b"HTTP/1.1 -20 OK",
    b"HTTP/1.1 200 OK\x7f",
)  # fmt: skip

PER_HOP: Final = (
    b"Connection: keep-alive", b"Keep-Alive: timeout=5", b"Proxy-Authenticate: Basic",
    b"Proxy-Connection: x", b"TE: a", b"Trailer: B", b"Upgrade: h2c", b"Connection:",
)  # fmt: skip

WRONG_FIELDS: Final = (
    b"A", b"A : b", b": b", b"A B: c", b"A: b\r\n c", b" A: b", b"A: b\nC: d", b"A: b\rC: d", b"A: \x00",
    b"A\xe4: b", b"A: b\r", b"\x00", b"Accept", b"Server",
)  # fmt: skip

WRONG_FRAMING: Final = (
    b"Content-Length: 2\r\nContent-Length: 4", b"Content-Length: 2\r\nContent-Length: 2",
    b"Content-Length: 2, 2", b"Content-Length: +2", b"Content-Length: -2", b"Content-Length: 0x2",
    b"Content-Length:", b"Content-Length: 2 2", b"Content-Length: 99999999999999999999",
    b"Content-Length: 2\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 0",
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: gzip", b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"Transfer-Encoding:",
    b"Transfer-Encoding : chunked",
)  # fmt: skip

CASES: Final = [
    # --- status lines (RFC 9112 4) ---
    *[
        crosses(quoted(start), "RFC 9112 4", b"Content-Length: 0", start=start, becomes=becomes)
        for start, becomes in (
            (b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK"),
            (b"HTTP/1.1 200 ", b"HTTP/1.1 200 "),
            (b"HTTP/1.1 200", b"HTTP/1.1 200 "),
            (b"HTTP/1.1 200 All is well  ", b"HTTP/1.1 200 All is well  "),
            (b"HTTP/1.1 200 \xe4\ttab", b"HTTP/1.1 200 \xe4\ttab"),
            (b"HTTP/1.1 429 Too Many Requests", b"HTTP/1.1 429 Too Many Requests"),
            (b"HTTP/1.1 500 Oops", b"HTTP/1.1 500 Oops"),
            (b"HTTP/1.1 503 Busy", b"HTTP/1.1 503 Busy"),
            (b"HTTP/1.1 599 x", b"HTTP/1.1 599 x"),
            (b"HTTP/1.1 999 x", b"HTTP/1.1 999 x"),
        )
    ],
    *[
        broken(f"status line {quoted(start)}", "RFC 9112 4", start + b"\r\nContent-Length: 0\r\n\r\n")
        for start in WRONG_STATUS_LINES
    ],
    # --- fields (RFC 9110 5) ---
    crosses(
        "order and duplicates",
        "RFC 9110 5.3",
        b"Set-Cookie: a=1",
        b"B: 2",
        b"Set-Cookie: a=2",
        b"b: 3",
        b"Content-Length: 0",
    ),
    crosses("spelling and spaces", "RFC 9112 5", b"sErVeR:x", b"DATE:  y\t", b"content-length:\t0"),
    crosses("bytes above ASCII", "RFC 9110 5.5", b"A: \xe4\xff", b"Content-Length: 0"),
    crosses("128 fields", "spec 4.10", *[b"A%d: b" % number for number in range(127)], b"Content-Length: 0"),
    crosses("Retry-After", "RFC 9110 10.2.3", b"Retry-After: 120", b"Content-Length: 0", start=b"HTTP/1.1 429 Busy"),
    crosses(
        "a GET's session is the replica's",
        "spec 3.3",
        b"Content-Length: 0",
        b"X-Session-Id: theirs",
        kept=(b"Content-Length: 0", b"X-Session-Id: theirs"),
    ),
    crosses("X-Request-Id of the replica", "spec 4.2", b"X-Request-Id: theirs", b"Content-Length: 0", id=None),
    crosses(
        "encoded content", "RFC 9110 8.4", b"Content-Encoding: gzip", b"Content-Length: 4", body=b"\x1f\x8b\x00\xff"
    ),
    Case(
        "a POST's session is the router's",
        "spec 3.3",
        ask(start=POST),
        reply(b"X-Session-Id: theirs", b"Content-Length: 0", b"x-session-ID: other"),
        to_replica(POST),
        to_client(START, b"Content-Length: 0"),
        replica="kept",
    ),
    *[
        crosses(
            f"{quoted(line)} ends here",
            "RFC 9110 7.6.1",
            b"A: b",
            line,
            b"Content-Length: 0",
            kept=(b"A: b", b"Content-Length: 0"),
        )
        for line in PER_HOP
    ],
    crosses(
        "what Connection names",
        "RFC 9110 7.6.1",
        b"B: c",
        b"Connection: b, x-session-id",
        b"X-Session-Id: s",
        b"Content-Length: 0",
        kept=(b"Content-Length: 0",),
    ),
    crosses(
        "a length that Connection names",
        "RFC 9110 7.6.1",
        b"Connection: content-length",
        b"Content-Length: 2",
        kept=(b"Content-Length: 2",),
        body=b"ok",
    ),
    *[
        broken(
            f"fields {quoted(lines)}", "RFC 9112 5", b"HTTP/1.1 200 OK\r\n" + lines + b"\r\nContent-Length: 0\r\n\r\n"
        )
        for lines in WRONG_FIELDS
    ],
    broken("129 fields", "spec 4.10", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 129 + b"\r\n"),
    broken("a head of 64 KiB", "spec 4.10", b"HTTP/1.1 200 OK\r\nA: " + b"a" * 65536),
    broken("a greeting", "RFC 9112 4", b"SSH-2.0-OpenSSH_9.6\r\n"),
    broken("bare LF", "RFC 9112 2.2", b"HTTP/1.1 200 OK\nContent-Length: 0\n\r\n\r\n"),
    broken("an empty line before it", "RFC 9112 2.2", b"\r\n" + OK),
    # --- length (RFC 9112 6.3) ---
    crosses("a length", "RFC 9112 6.2", b"Content-Length: 2", body=b"ok"),
    crosses("a length of nothing", "RFC 9112 6.2", b"Content-Length: 0"),
    crosses("zeros before a length", "RFC 9112 6.2", b"Content-Length: 0002", body=b"ok"),
    crosses("a body like an answer", "smuggling: responses", b"Content-Length: 19", body=b"HTTP/1.1 200 OK\r\n\r\n"),
    *[
        broken(f"framing {quoted(lines)}", "smuggling: responses", b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n\r\nokok")
        for lines in WRONG_FRAMING
    ],
    broken(
        "chunked in a 1.0 answer", "RFC 9112 6.1", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    # --- answers without a body (RFC 9112 6.3) ---
    crosses("HEAD with a length", "RFC 9110 9.3.2", b"Content-Length: 500", request=HEAD),
    crosses("HEAD without a length", "RFC 9110 9.3.2", b"A: b", request=HEAD),
    crosses("HEAD with a coding", "RFC 9110 9.3.2", CHUNKED, request=HEAD, kept=(), last=(CHUNKED,)),
    crosses(
        "HEAD answered with a body",
        "smuggling: HEAD",
        b"Content-Length: 2",
        request=HEAD,
        body=b"ok",
        got=b"",
        replica="closed",
    ),
    crosses("204", "RFC 9110 15.3.5", b"A: b", start=b"HTTP/1.1 204 No Content"),
    crosses("204 with a length", "RFC 9110 8.6", b"Content-Length: 0", start=b"HTTP/1.1 204 No Content", kept=()),
    crosses("204 with a coding", "RFC 9112 6.1", CHUNKED, start=b"HTTP/1.1 204 No Content", kept=()),
    crosses(
        "204 with a body",
        "smuggling: 204",
        b"Content-Length: 2",
        start=b"HTTP/1.1 204 x",
        kept=(),
        body=b"ok",
        got=b"",
        replica="closed",
    ),
    crosses(
        "304 with a length", "RFC 9110 15.4.5", b"Content-Length: 500", b"ETag: x", start=b"HTTP/1.1 304 Not Modified"
    ),
    crosses(
        "304 with a body",
        "smuggling: 304",
        b"Content-Length: 2",
        start=b"HTTP/1.1 304 x",
        body=b"ok",
        got=b"",
        replica="closed",
    ),
    crosses(
        "205 with a body all the same", "RFC 9110 15.3.6", b"Content-Length: 2", start=b"HTTP/1.1 205 x", body=b"ok"
    ),
    # --- chunks (RFC 9112 7.1) ---
    *[
        crosses(f"chunks {quoted(body)}", "RFC 9112 7.1", CHUNKED, kept=(), last=(CHUNKED,), body=body, got=got)
        for body, got in (
            (b"0\r\n\r\n", b"0\r\n\r\n"),
            (b"2\r\nok\r\n0\r\n\r\n", b"2\r\nok\r\n0\r\n\r\n"),
            (b"1\r\no\r\n1\r\nk\r\n00\r\n\r\n", b"1\r\no\r\n1\r\nk\r\n00\r\n\r\n"),
            (b"02;a=b\r\nok\r\n0;c\r\n\r\n", b"02;a=b\r\nok\r\n0;c\r\n\r\n"),
            (b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n"),
            (b"2\r\n\r\n\r\n0\r\n\r\n", b"2\r\n\r\n\r\n0\r\n\r\n"),
            (b"0\r\nA: b\r\nSet-Cookie: x\r\n\r\n", b"0\r\n\r\n"),
        )
    ],
    crosses(
        "events",
        "spec 4.4, S1",
        b"Content-Type: text/event-stream",
        CHUNKED,
        kept=(b"Content-Type: text/event-stream", b"X-Accel-Buffering: no"),
        last=(CHUNKED,),
        body=b"5\r\na: b\n\r\n0\r\n\r\n",
    ),
    crosses(
        "events that set their own buffering",
        "spec 4.4",
        b"X-Accel-Buffering: yes",
        b"Content-Type: text/event-stream",
        CHUNKED,
        kept=(b"X-Accel-Buffering: yes", b"Content-Type: text/event-stream"),
        last=(CHUNKED,),
        body=b"0\r\n\r\n",
    ),
    broken("a first chunk that is none", "RFC 9112 7.1", reply(CHUNKED, body=b"x\r\nok\r\n0\r\n\r\n")),
    # --- 1xx (RFC 9110 15.2) ---
    *[
        Case(
            f"interim answers {', '.join(map(str, statuses))}",
            "RFC 9110 15.2",
            ask(),
            b"".join(b"HTTP/1.1 %d x\r\nA: b\r\nConnection: keep-alive\r\n\r\n" % status for status in statuses) + OK,
            to_replica(GET),
            b"".join(b"HTTP/1.1 %d x\r\nA: b\r\n\r\n" % status for status in statuses if status != 100)
            + to_client(START, b"Content-Length: 2", session=None, body=b"ok"),
            replica="kept",
        )
        for statuses in ((100,), (102,), (103, 103), (100, 102, 199))
    ],
    broken("101", "RFC 9110 15.2.2", b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n"),
    # --- after the answer (RFC 9112 9) ---
    crosses(
        "bytes after it",
        "smuggling: responses",
        b"Content-Length: 2",
        body=b"okHTTP/1.1 200 OK\r\n\r\n",
        got=b"ok",
        replica="closed",
    ),
    crosses(
        "bytes after its chunks",
        "smuggling: responses",
        CHUNKED,
        kept=(),
        last=(CHUNKED,),
        body=b"0\r\n\r\nx",
        got=b"0\r\n\r\n",
        replica="closed",
    ),
    crosses(
        "an empty line after it", "RFC 9112 9.2", b"Content-Length: 2", body=b"ok\r\n", got=b"ok", replica="closed"
    ),
    crosses(
        "Connection: close",
        "RFC 9112 9.6",
        b"Content-Length: 2",
        CLOSE,
        kept=(b"Content-Length: 2",),
        body=b"ok",
        replica="closed",
    ),
    crosses(
        "1.0 with a length",
        "RFC 9112 9.3",
        b"Content-Length: 2",
        start=b"HTTP/1.0 200 OK",
        becomes=START,
        body=b"ok",
        replica="closed",
    ),
    crosses(
        "1.0 that stays",
        "RFC 9112 9.3",
        b"Connection: Keep-Alive",
        b"Content-Length: 2",
        start=b"HTTP/1.0 200 OK",
        becomes=START,
        kept=(b"Content-Length: 2",),
        body=b"ok",
    ),
    # --- the end of the connection is the end of the answer (RFC 9112 6.3) ---
    ends("until the end", "RFC 9112 6.3", reply(b"A: b", body=b"to the end"), b"A: b", body=b"to the end", then="fin"),
    ends("nothing until the end", "RFC 9112 6.3", reply(), body=b"", then="fin"),
    ends("1.0 until the end", "RFC 9112 6.3", reply(start=b"HTTP/1.0 200 OK", body=b"x"), body=b"x", then="fin"),
    # --- cut (RFC 9112 8) ---
    ends(
        "a length not reached",
        "RFC 9112 8",
        reply(b"Content-Length: 4", body=b"ok"),
        b"Content-Length: 4",
        body=b"ok",
        then="fin",
        last=(),
    ),
    ends(
        "a length not reached, reset",
        "RFC 9112 8",
        reply(b"Content-Length: 4", body=b"ok"),
        b"Content-Length: 4",
        body=b"ok",
        then="rst",
        last=(),
    ),
    ends(
        "chunks without a last one",
        "RFC 9112 8",
        reply(CHUNKED, body=b"2\r\nok\r\n"),
        body=b"2\r\nok\r\n",
        then="fin",
        last=(CHUNKED,),
    ),
    ends(
        "chunks cut in the middle",
        "RFC 9112 8",
        reply(CHUNKED, body=b"4\r\nok"),
        body=b"4\r\nok",
        then="fin",
        last=(CHUNKED,),
    ),
    ends(
        "chunks cut in the trailers",
        "RFC 9112 8",
        reply(CHUNKED, body=b"0\r\nA: b\r\n"),
        body=b"0\r\n",
        then="fin",
        last=(CHUNKED,),
    ),
    broken("a length in the trailers", "smuggling: trailers", reply(CHUNKED, body=b"0\r\nContent-Length: 9\r\n\r\n")),
    broken("cut after one byte", "RFC 9112 8", b"H", "fin"),
    broken("cut in its head", "RFC 9112 8", b"HTTP/1.1 200 OK\r\nContent-", "fin"),
    broken("reset in its head", "RFC 9112 8", b"HTTP/1.1 1", "rst"),
    # --- for 1.0 clients (RFC 9112 9.3) ---
    ends(
        "a length for 1.0",
        "RFC 9112 9.3",
        reply(b"Content-Length: 2", body=b"ok"),
        b"Content-Length: 2",
        body=b"ok",
        start=OLD,
        replica="kept",
    ),
    ends(
        "chunks for 1.0",
        "RFC 9112 7.1",
        reply(CHUNKED, body=b"1\r\no\r\n1;a\r\nk\r\n0\r\nA: b\r\n\r\n"),
        body=b"ok",
        start=OLD,
        replica="kept",
    ),
    ends("no chunks for 1.0", "RFC 9112 7.1", reply(CHUNKED, body=b"0\r\n\r\n"), body=b"", start=OLD, replica="kept"),
    ends("until the end for 1.0", "RFC 9112 6.3", reply(body=b"ok"), body=b"ok", start=OLD, then="fin"),
    ends(
        "a length not reached for 1.0",
        "RFC 9112 8",
        reply(b"Content-Length: 4", body=b"ok"),
        b"Content-Length: 4",
        body=b"ok",
        start=OLD,
        then="fin",
    ),
    Case(
        "interim answers for 1.0",
        "RFC 9110 15.2",
        ask(start=OLD, host=b"A: b"),
        b"HTTP/1.1 103 x\r\n\r\n" + OK,
        to_replica(GET, b"A: b", host=b""),
        to_client(START, b"Content-Length: 2", session=None, last=[CLOSE], body=b"ok"),
        ending="fin",
        replica="kept",
    ),
]
