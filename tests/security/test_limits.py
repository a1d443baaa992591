"""Too much of everything."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.support.client import chat
from tests.support.fleet import replica, sim_host
from tests.support.talk import CHAT, post
from tests.support.upstream import then_close
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.harness import Harness
    from tests.support.router import Router
    from tests.support.upstream import RawUpstream

HOST = b"Host: a\r\n"
MANY = 2_000_000

CLIENTS = {
    "a long target": (b"GET /v1/" + b"a" * MANY, {400, 431}),
    "a long field": (b"GET /v1/x HTTP/1.1\r\n" + HOST + b"X-A: " + b"a" * MANY, {431}),
    "many fields": (b"GET /v1/x HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 129 + b"\r\n", {431}),
    "endless fields": (b"GET /v1/x HTTP/1.1\r\n" + HOST + b"A: b\r\n" * (MANY // 6), {431}),
    "a body too large": (b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Content-Length: 100001\r\n\r\n", {413}),
    "a length beyond numbers": (
        b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        {400},
    ),
    "chunks too many": (
        b"POST /v1/x HTTP/1.1\r\n"
        + HOST
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + (b"5000\r\n" + b"a" * 0x5000 + b"\r\n") * 9,
        {413},
    ),
    "chunks of one byte": (
        b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 60_000,
        {413},
    ),
    "a long extension": (
        b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * MANY,
        {400},
    ),
    "endless trailers": (
        b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * (MANY // 6),
        {400},
    ),
    "a huge chunk": (
        b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
        {400},
    ),
    "a body for the router itself": (
        b"POST /replicas HTTP/1.1\r\n" + HOST + b"Content-Length: 70000\r\n\r\n" + b"a" * 70_000,
        {413},
    ),
    "empty lines": (b"\r\n" * (MANY // 2), set()),
}


def test_from_clients(harness: Harness) -> None:
    """Each kind of too much is refused with its status, and the router holds none of it (spec 4.10, 4.7)."""
    router = harness.start_router(
        {"hosts": [sim_host([0])], "replicas": [replica(harness.start_sim().url)]},
        *("--initial-replicas", "0", "--max-body-size", "100000"),
    )
    before = resident(router)
    for what, (data, statuses) in CLIENTS.items():
        with Wire.connect(router.port) as wire:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused long before the end
                wire.send(data)
            if statuses:
                assert wire.read_until(b"\r\n").split()[1] in {b"%d" % status for status in statuses}, what
    assert router.request("POST", CHAT, body=chat("x")).status == 200
    assert resident(router) - before < 16 << 20


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * MANY,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 103 Hints\r\n\r\n" * 1000,
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 50 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 5000,
        b"\r\n" * MANY,
    ],
    ids=["a long field", "many fields", "endless interim answers", "a length beyond numbers", "a long size", "nothing"],
)
def test_from_replicas(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router], data: bytes
) -> None:
    """A replica that sends too much of a head is broken, and answers nobody (spec 4.7)."""
    router = start_router([start_upstream(then_close(data))])

    with router.connect() as wire:
        wire.send(post(chat("x")))
        status = wire.read_answer("POST").status

    assert status == 502
    assert resident(router) < 150 << 20


def resident(router: Router) -> int:
    """Return how much memory the router holds."""
    text = router.request("GET", "/metrics").body.decode()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("process_resident_memory_bytes"))
