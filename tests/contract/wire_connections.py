"""Several requests on one connection, and connections that end or go on."""

from __future__ import annotations

from typing import Final

from tests.contract.wire_requests import GET, OK, POST, ask
from tests.support.exchange_table import CONTINUE, Await, Case, Reply, error, quoted, to_client, to_replica

START: Final = b"HTTP/1.1 200 OK"
CLOSE: Final = b"Connection: close"
OLD: Final = b"GET /v1/models HTTP/1.0"


def got(
    number: int,
    *,
    session: bytes | None = None,
    last: tuple[bytes, ...] = (),
    body: bytes = b"ok",
    placement: bytes = b"new",
) -> bytes:
    """Write the answer to a request with the `number`-th id."""
    return to_client(
        START, b"Content-Length: %d" % len(body), session=session, request=b"<%d>" % number, last=last, body=body,
        placement=placement,
    )  # fmt: skip


def fine(body: bytes) -> bytes:
    """Write a replica's answer."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def forward(number: int, *lines: bytes, start: bytes = GET, body: bytes = b"", host: bytes = b"router") -> bytes:
    """Write what the replica gets of a request with the `number`-th id."""
    return to_replica(start, *lines, request=b"<%d>" % number, body=body, host=host)


CASES: Final = [
    # --- persistence (RFC 9112 9.3) ---
    Case(
        "two requests, one after the other",
        "RFC 9112 9.3",
        [ask(), Await(b"\r\n\r\none"), ask()],
        [fine(b"one"), fine(b"two")],
        forward(1) + forward(2),
        got(1, body=b"one") + got(2, body=b"two"),
        replica="kept",
    ),
    *[
        Case(
            f"{quoted(line)} of a client",
            "RFC 9112 9.6",
            ask(line) + ask(),
            OK,
            forward(1, *kept),
            got(1, last=(CLOSE,)),
            ending="fin",
            replica="kept",
        )
        for line, kept in (
            (b"Connection: close", ()),
            (b"connection: CLOSE", ()),
            (b"Connection: keep-alive, close", ()),
            (b"Connection: close\r\nConnection: keep-alive", ()),
            (b"Connection: x,\tclose ,y", ()),
        )
    ],
    Case(
        "a 1.0 client",
        "RFC 9112 9.3",
        ask(start=OLD, host=b"A: b"),
        OK,
        forward(1, b"A: b", host=b""),
        got(1, last=(CLOSE,)),
        ending="fin",
        replica="kept",
    ),
    Case(
        "a 1.0 client that stays",
        "RFC 9112 9.3",
        ask(b"Connection: Keep-Alive", start=OLD, host=b"A: b") * 2,
        [OK, OK],
        forward(1, b"A: b", host=b"") + forward(2, b"A: b", host=b""),
        got(1, last=(b"Connection: keep-alive",)) + got(2, last=(b"Connection: keep-alive",)),
        replica="kept",
    ),
    Case(
        "a 1.0 client that stays until it gets chunks",
        "RFC 9112 9.3",
        ask(b"Connection: keep-alive", start=OLD, host=b"A: b") * 2,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        forward(1, b"A: b", host=b""),
        to_client(START, session=None, last=[CLOSE], body=b"ok"),
        ending="fin",
        replica="kept",
    ),
    Case(
        "a 1.1 client told to stay",
        "RFC 9112 9.3",
        ask(b"Connection: keep-alive") + ask(),
        [OK, OK],
        forward(1) + forward(2),
        got(1) + got(2),
        replica="kept",
    ),
    # --- pipelining (RFC 9112 9.3.2) ---
    Case(
        "three requests at once",
        "RFC 9112 9.3.2",
        ask() * 3,
        [fine(b"one"), fine(b"two"), fine(b"three")],
        forward(1) + forward(2) + forward(3),
        got(1, body=b"one") + got(2, body=b"two") + got(3, body=b"three"),
        replica="kept",
    ),
    Case(
        "bodies between them",
        "RFC 9112 9.3.2",
        ask(b"Content-Length: 2", start=POST, body=b"{}")
        + ask(b"Transfer-Encoding: chunked", start=POST, body=b"2\r\n{}\r\n0\r\n\r\n")
        + ask(),
        [OK, OK, OK],
        forward(1, b"Content-Length: 2", start=POST, body=b"{}")
        + forward(2, b"Transfer-Encoding: chunked", start=POST, body=b"2\r\n{}\r\n0\r\n\r\n")
        + forward(3),
        got(1, session=b"<4>") + got(2, session=b"<5>") + got(3),
        replica="kept",
    ),
    Case(
        "an answer until the end stops them",
        "RFC 9112 9.3.2",
        ask() * 2,
        [Reply(b"HTTP/1.1 200 OK\r\n\r\nok", "fin")],
        forward(1),
        to_client(START, session=None, last=[CLOSE], body=b"ok"),
        ending="fin",
        replica="closed",
    ),
    Case(
        "HEAD between GETs",
        "RFC 9110 9.3.2",
        ask() + ask(start=b"HEAD /v1/models HTTP/1.1") + ask(),
        [OK, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", OK],
        forward(1) + forward(2, start=b"HEAD /v1/models HTTP/1.1") + forward(3),
        got(1) + got(2)[:-2] + got(3),
        replica="kept",
    ),
    Case(
        "a session's second turn",
        "spec 3.5",
        ask(b"X-Session-Id: turns-1", start=POST) * 2,
        [OK, OK],
        forward(1, b"X-Session-Id: turns-1", start=POST) + forward(2, b"X-Session-Id: turns-1", start=POST),
        got(1, session=b"turns-1") + got(2, session=b"turns-1", placement=b"affinity"),
        replica="kept",
    ),
    Case(
        "the replica closes after each",
        "RFC 9112 9.6",
        [ask(), Await(b"\r\n\r\nok"), ask()],
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"] * 2,
        forward(1) + forward(2),
        got(1) + got(2),
        replica="closed",
    ),
    # --- Expect (RFC 9110 10.1.1) ---
    Case(
        "a client that waits for 100",
        "RFC 9110 10.1.1",
        [ask(b"Expect: 100-continue", b"Content-Length: 2", start=POST), Await(CONTINUE), b"{}"],
        OK,
        forward(1, b"Content-Length: 2", start=POST, body=b"{}"),
        CONTINUE + got(1, session=b"<2>"),
        replica="kept",
    ),
    Case(
        "a client that waits before its chunks",
        "RFC 9110 10.1.1",
        [
            ask(b"EXPECT: 100-Continue", b"Transfer-Encoding: chunked", start=POST),
            Await(CONTINUE),
            b"2\r\n{}\r\n0\r\n\r\n",
        ],
        OK,
        forward(1, b"Transfer-Encoding: chunked", start=POST, body=b"2\r\n{}\r\n0\r\n\r\n"),
        CONTINUE + got(1, session=b"<2>"),
        replica="kept",
    ),
    Case(
        "a client that says it waits, and does not",
        "RFC 9110 10.1.1",
        ask(b"Expect: 100-continue", b"Content-Length: 2", start=POST, body=b"{}"),
        OK,
        forward(1, b"Content-Length: 2", start=POST, body=b"{}"),
        got(1, session=b"<2>"),
        replica="kept",
    ),
    Case(
        "a client that waits for nothing",
        "RFC 9110 10.1.1",
        ask(b"Expect: 100-continue"),
        OK,
        forward(1),
        got(1),
        replica="kept",
    ),
    Case(
        "a 1.0 client that says it waits",
        "RFC 9110 10.1.1",
        ask(b"Expect: 100-continue", b"Content-Length: 2", start=b"POST /v1/x HTTP/1.0", host=b"A: b", body=b"{}"),
        OK,
        forward(1, b"A: b", b"Content-Length: 2", start=b"POST /v1/x HTTP/1.1", body=b"{}", host=b""),
        got(1, session=b"<2>", last=(CLOSE,)),
        ending="fin",
        replica="kept",
    ),
    Case(
        "a replica that says 100 again",
        "RFC 9110 10.1.1",
        [ask(b"Expect: 100-continue", b"Content-Length: 2", start=POST), Await(CONTINUE), b"{}"],
        CONTINUE + OK,
        forward(1, b"Content-Length: 2", start=POST, body=b"{}"),
        CONTINUE + got(1, session=b"<2>"),
        replica="kept",
    ),
    # --- what is too much (spec 4.7) ---
    Case(
        "a length beyond the limit",
        "RFC 9110 15.5.14",
        ask(b"Content-Length: 999999999999", start=POST),
        answered=error(b"413 Request Entity Too Large", b"body_too_large", session=b"<1>", request=b"<2>"),
        ending="fin",
    ),
    Case(
        "a length beyond the limit, waited with",
        "RFC 9110 15.5.14",
        ask(b"Expect: 100-continue", b"Content-Length: 999999999999", start=POST),
        answered=error(b"413 Request Entity Too Large", b"body_too_large", session=b"<1>", request=b"<2>"),
        ending="fin",
    ),
    Case(
        "129 fields",
        "RFC 6585 5",
        ask(*[b"A: b"] * 128),
        answered=error(b"431 Request Header Fields Too Large", b"too_many_fields"),
        ending="fin",
    ),
    Case(
        "a head of 64 KiB",
        "RFC 6585 5",
        ask(b"A: " + b"a" * 65536),
        answered=error(b"431 Request Header Fields Too Large", b"head_too_large"),
        ending="fin",
    ),
]
