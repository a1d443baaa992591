"""What of a request crosses to the replica, and how."""

from __future__ import annotations

from typing import Final

from tests.support.exchange_table import Case, quoted, to_client, to_replica

GET: Final = b"GET /v1/models HTTP/1.1"
POST: Final = b"POST /v1/completions HTTP/1.1"
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ANSWERED: Final = to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", session=None, body=b"ok")
ANSWERED_POST: Final = to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", body=b"ok")


def ask(*lines: bytes, start: bytes = GET, host: bytes = b"Host: router", body: bytes = b"") -> bytes:
    """Write a request."""
    return b"\r\n".join([start, host, *lines, b"", body])


def crosses(
    name: str, cites: str, *lines: bytes, start: bytes = GET, becomes: bytes | None = None,
    kept: tuple[bytes, ...] | None = None, host: bytes = b"Host: router", asked_for: bytes = b"router",
    request: bytes | None = b"<1>", answered: bytes = ANSWERED, body: bytes = b"",
) -> Case:  # fmt: skip
    """Describe a request of which the start line becomes `becomes` and of whose lines `kept` cross, else all."""
    return Case(
        name,
        cites,
        ask(*lines, start=start, host=host, body=body),
        OK,
        to_replica(becomes or start, *(lines if kept is None else kept), host=asked_for, request=request, body=body),
        answered,
        replica="kept",
    )


def posted(name: str, cites: str, *lines: bytes, session: bytes = b"<2>", body: bytes = b"") -> Case:
    """Describe a POST, all of whose lines cross, that is answered with a session."""
    answered = to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", session=session, body=b"ok")
    return crosses(name, cites, *lines, start=POST, answered=answered, body=body)


def named(name: str, cites: str, *lines: bytes, theirs: bytes) -> Case:
    """Describe a request that brings the id `theirs` of its own."""
    return crosses(
        name, cites, *lines, request=None,
        answered=to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", session=None, request=theirs, body=b"ok"),
    )  # fmt: skip


METHODS: Final = (
    b"DELETE", b"PUT", b"PATCH", b"OPTIONS", b"PROPFIND", b"get", b"Get", b"M-SEARCH", b"!#$%&'*+-.^_`|~",
)  # fmt: skip

TARGETS: Final = (
    b"/v1/", b"/v1//", b"/v1//chat", b"/v1/a/../b", b"/v1/./a", b"/v1/%2e%2E/a", b"/v1/%2Fa", b"/v1/a%00b",
    b"/v1/a%zz", b"/v1/a?b=c&d=e", b"/v1/a?", b"/v1/a??b", b"/v1/a?b=/../c", b"/v1/a?b=http://c/d", b"/v1/a;b=c",
    b"/v1/a:b@c", b"/v1/~a!$&'()*+,;=", b"/v1/" + b"a" * 2000,
)  # fmt: skip

HOSTS: Final = (
    b"Host: a", b"host:a", b"HOST: \t a \t", b"Host: a:80", b"Host: a:", b"Host: [::1]:80", b"Host: 192.0.2.1",
    b"Host: %41",
)  # fmt: skip

PER_HOP: Final = (
    b"Connection: keep-alive", b"connection: Keep-Alive", b"Keep-Alive: timeout=5", b"Proxy-Connection: close",
    b"TE: trailers", b"Trailer: A", b"Upgrade: websocket", b"Proxy-Authorization: Basic x", b"PROXY-A: x",
    b"Connection:", b"Connection: ,, ,",
)  # fmt: skip

CASES: Final = [
    # --- start lines (RFC 9112 3) ---
    crosses("a plain GET", "RFC 9112 3"),
    *[crosses(f"method {quoted(method)}", "RFC 9110 9", start=method + b" /v1/x HTTP/1.1") for method in METHODS],
    crosses("a POST opens a session", "spec 3.3", start=b"POST /v1/x HTTP/1.1", answered=ANSWERED_POST),
    *[
        crosses(f"target {quoted(target)}", "RFC 9112 3.2.1, spec 4.2", start=b"GET " + target + b" HTTP/1.1")
        for target in TARGETS
    ],
    *[
        crosses(
            f"absolute-form {quoted(target)}",
            "RFC 9112 3.2.2",
            start=b"GET " + target + b" HTTP/1.1",
            becomes=b"GET " + origin + b" HTTP/1.1",
            asked_for=host,
        )
        for target, origin, host in (
            (b"http://other/v1/x", b"/v1/x", b"other"),
            (b"http://other:8080/v1/x?y", b"/v1/x?y", b"other:8080"),
            (b"HTTP://OTHER/v1/x", b"/v1/x", b"OTHER"),
            (b"https://other/v1//x/%2e", b"/v1//x/%2e", b"other"),
            (b"http://[::1]:80/v1/x", b"/v1/x", b"[::1]:80"),
        )
    ],
    Case(
        "a 1.0 request becomes 1.1",
        "RFC 9112 2.3",
        b"GET /v1/models HTTP/1.0\r\nAccept: a\r\n\r\n",
        OK,
        to_replica(GET, b"Accept: a", host=b""),
        to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", session=None, last=[b"Connection: close"], body=b"ok"),
        ending="fin",
        replica="kept",
    ),
    Case(
        "an empty line before the request",
        "RFC 9112 2.2",
        b"\r\n" + ask(),
        OK,
        to_replica(GET),
        ANSWERED,
        replica="kept",
    ),
    Case(
        "several empty lines before the request",
        "RFC 9112 2.2",
        b"\r\n\r\n\r\n" + ask(),
        OK,
        to_replica(GET),
        ANSWERED,
        replica="kept",
    ),
    # --- Host (RFC 9112 3.2) ---
    *[crosses(quoted(host), "RFC 9112 3.2", host=host, asked_for=host[5:].strip()) for host in HOSTS],
    crosses("an empty Host", "RFC 9112 3.2", host=b"Host:", asked_for=b""),
    Case(
        "Host is not the first field",
        "RFC 9110 7.2",
        GET + b"\r\nAccept: a\r\nHost: router\r\nX: y\r\n\r\n",
        OK,
        to_replica(GET, b"Accept: a", b"X: y"),
        ANSWERED,
        replica="kept",
    ),
    # --- end-to-end fields (RFC 9110 5, spec 4.1) ---
    crosses("order and duplicates", "RFC 9110 5.3", b"B: 1", b"A: 2", b"B: 3", b"a: 4"),
    crosses("spelling and spaces", "RFC 9112 5", b"aCCePT:x", b"X-Y:  z\t", b"Z:\ty"),
    crosses("an empty value", "RFC 9110 5.5", b"A:", b"B: "),
    crosses("bytes above ASCII", "RFC 9110 5.5", b"A: \xe4\xff\x80"),
    crosses("all printable ASCII", "RFC 9110 5.5", b"A: " + bytes(range(0x21, 0x7F))),
    crosses("every byte of a name", "RFC 9110 5.6.2", b"!#$%&'*+-.^_`|~09azAZ: x"),
    crosses("a colon in the value", "RFC 9112 5", b"A: b:c::d", b"B::"),
    crosses("127 fields", "spec 4.10", *[b"A%d: b" % number for number in range(127)]),
    crosses("authorization", "RFC 9110 11.6.2", b"Authorization: Bearer sk-1", b"Cookie: a=b; c=d"),
    crosses("other proxies' fields", "RFC 9110 7.6.3", b"Via: 1.1 a", b"Forwarded: for=a", b"X-Real-IP: a"),
    crosses("content negotiation", "RFC 9110 12.5", b"Accept-Encoding: gzip, br", b"Range: bytes=0-1", b"If-Match: *"),
    crosses("an expectation that is not ours", "RFC 9110 10.1.1", b"Expect: a-miracle"),
    crosses("a body's fields without a body", "RFC 9110 8", b"Content-Type: text/plain", b"Content-Encoding: gzip"),
    # --- per-hop fields (RFC 9110 7.6.1, spec 4.2) ---
    *[
        crosses(f"{quoted(line)} ends here", "RFC 9110 7.6.1", b"A: b", line, b"C: d", kept=(b"A: b", b"C: d"))
        for line in PER_HOP
    ],
    crosses("what Connection names", "RFC 9110 7.6.1", b"A: 1", b"Connection: a, B", b"b: 2", b"C: 3", kept=(b"C: 3",)),
    crosses("what a later Connection names", "RFC 9110 7.6.1", b"A: 1", b"Connection: x", b"Connection:a", kept=()),
    crosses("Connection names itself", "RFC 9110 7.6.1", b"Connection: connection, host", b"A: b", kept=(b"A: b",)),
    crosses(
        "an upgrade that is asked for",
        "RFC 9110 7.8",
        b"Connection: Upgrade",
        b"Upgrade: h2c",
        b"HTTP2-Settings: x",
        kept=(b"HTTP2-Settings: x",),
    ),
    crosses(
        "an upgrade asked for in full",
        "RFC 9110 7.8",
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: x",
        kept=(),
    ),
    # --- the router's own fields (spec 4.2) ---
    Case(
        "X-Forwarded-For is appended to",
        "spec 4.2",
        ask(b"X-Forwarded-For: a, b"),
        OK,
        to_replica(GET).replace(b"X-Forwarded-For: ", b"X-Forwarded-For: a, b, "),
        ANSWERED,
        replica="kept",
    ),
    Case(
        "several X-Forwarded-For become one",
        "spec 4.2",
        ask(b"X-Forwarded-For: a", b"A: b", b"x-forwarded-for:c"),
        OK,
        to_replica(GET, b"A: b").replace(b"X-Forwarded-For: ", b"X-Forwarded-For: a, c, "),
        ANSWERED,
        replica="kept",
    ),
    Case(
        "X-Forwarded-Proto is kept",
        "spec 4.2",
        ask(b"X-Forwarded-Proto: https"),
        OK,
        to_replica(GET, b"X-Forwarded-Proto: https").replace(b"X-Forwarded-Proto: http\r\n", b""),
        ANSWERED,
        replica="kept",
    ),
    Case(
        "X-Forwarded-Host is kept",
        "spec 4.2",
        ask(b"X-Forwarded-Host: public"),
        OK,
        to_replica(GET, b"X-Forwarded-Host: public", host=b""),
        ANSWERED,
        replica="kept",
    ),
    named("X-Request-Id is kept", "spec 4.2", b"X-Request-Id: mine", theirs=b"mine"),
    crosses("an empty X-Request-Id is none", "spec 4.2", b"X-Request-Id:", kept=()),
    crosses("a withdrawn X-Request-Id is none", "spec 4.2", b"X-Request-Id: a", b"Connection: x-request-id", kept=()),
    # --- sessions (spec 3.1 to 3.3) ---
    crosses("a GET's session is forwarded, not answered", "spec 3.3", b"X-Session-Id: unheard-of"),
    *[
        posted(f"session in the head: {quoted(line)}", "spec 3.1", line, session=session)
        for line, session in (
            (b"X-Session-Id: head-1", b"head-1"),
            (b"x-session-id:\thead-2 ", b"head-2"),
            (b"X-Session-Id: Az09._:-", b"Az09._:-"),
            (b"X-Session-Id: a b", b"<2>"),
            (b"X-Session-Id:", b"<2>"),
            (b"X-Session-Id: a,b", b"<2>"),
            (b"X-Session-Id: " + b"a" * 129, b"<2>"),
        )
    ],
    *[
        posted(f"session in a body: {name}", "spec 3.1", b"Content-Length: %d" % len(body), session=session, body=body)
        for name, body, session in (
            ("plain", b'{"session_id": "body-1"}', b"body-1"),
            ("escaped", b'{"session\\u005fid": "body\\u002d2"}', b"body-2"),
            ("nested", b'{"a": {"session_id": "x"}}', b"<2>"),
            ("twice", b'{"session_id": "x", "session_id": "body-3"}', b"body-3"),
            ("not a string", b'{"session_id": 7}', b"<2>"),
            ("not JSON", b"session_id=body-4", b"<2>"),
            ("no object", b'["session_id"]', b"<2>"),
        )
    ],
    posted(
        "the head's session wins over the body's",
        "spec 3.1",
        b"X-Session-Id: head-3",
        b"Content-Length: 24",
        session=b"head-3",
        body=b'{"session_id": "body-5"}',
    ),
    posted(
        "different sessions in the head are none",
        "spec 3.1",
        b"X-Session-Id: a1",
        b"X-Session-Id: a2",
        b"Content-Length: 24",
        body=b'{"session_id": "body-6"}',
    ),
    posted("one session twice", "spec 3.1", b"X-Session-Id: head-4", b"X-Session-Id: head-4", session=b"head-4"),
    # --- bodies (RFC 9112 6) ---
    posted("a length of nothing", "RFC 9112 6.2", b"Content-Length: 0"),
    posted("no length at all", "RFC 9112 6.3"),
    posted("a length with zeros before it", "RFC 9110 8.6", b"Content-Length: 0002", body=b"{}"),
    crosses("a body of a GET", "RFC 9110 9.3.1", b"Content-Length: 2", body=b"{}"),
    posted("a body like a request", "RFC 9112 6.2", b"Content-Length: 28", body=b"GET /v1/x HTTP/1.1\r\nA: b\r\n\r\n"),
    posted("any bytes", "RFC 9110 6.4", b"Content-Length: 256", body=bytes(range(256))),
    Case(
        "a chunked body",
        "RFC 9112 7.1",
        ask(b"Transfer-Encoding: chunked", b"A: b", start=POST, body=b"2;x=y\r\n{}\r\n00001\r\n \r\n0\r\nT: t\r\n\r\n"),
        OK,
        to_replica(POST, b"A: b", body=b"2;x=y\r\n{}\r\n00001\r\n \r\n0\r\n\r\n").replace(
            b"A: b\r\n", b"A: b\r\nTransfer-Encoding: chunked\r\n"
        ),
        ANSWERED_POST,
        replica="kept",
    ),
    Case(
        "an empty chunked body",
        "RFC 9112 7.1",
        ask(b"transfer-encoding:CHUNKED", start=POST, body=b"0\r\n\r\n"),
        OK,
        to_replica(POST, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        ANSWERED_POST,
        replica="kept",
    ),
]
