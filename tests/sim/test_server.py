"""The HTTP side of the simulated replica, on the wire."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.waiting import wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from tests.support.sim import Sim

MODELS = b"GET /v1/models HTTP/1.1\r\nHost: sim\r\n\r\n"


def post(body: bytes, *, path: str = "/v1/completions", version: str = "1.1", extra: str = "") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: sim\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_keeps_the_connection_and_answers_pipelined_requests_in_order(sim: Sim) -> None:
    """Requests on one connection, pipelined too, are answered one after the other (spec 10)."""
    with Wire.connect(sim.url) as wire:
        wire.send(MODELS + post(b'{"prompt": "a"}') + b"GET /health HTTP/1.1\r\nHost: sim\r\n\r\n")

        kinds = [json.loads(wire.read_answer().body).get("object") for _ in range(3)]

        assert kinds == ["list", "text_completion", None]


@pytest.mark.parametrize("split", [1, 7])
def test_requests_may_come_in_pieces(sim: Sim, split: int) -> None:
    """However its bytes are cut, a request is understood, and its head recorded as it came (spec 10)."""
    body = b'{"prompt": "abc", "max_tokens": 3}'
    request = post(body, extra="X-Odd-CASE:  kept \r\n")
    with Wire.connect(sim.url) as wire:
        wire.trickle(request, 0.0, step=split)

        assert wire.read_answer("POST").status == 200

    last = sim.state()["last_request"]
    assert last["raw_head"].encode("latin-1") == request[: -len(body)]
    assert ["X-Odd-CASE", "kept"] in [[name, value.strip()] for name, value in last["headers"]]
    assert last["body_bytes"] == len(body)


def test_chunked_bodies_and_expect(sim: Sim) -> None:
    """A chunked body is read, and an Expect answered before it (spec 10)."""
    with Wire.connect(sim.url) as wire:
        wire.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: sim\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        )
        assert wire.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(b'8\r\n{"prompt\r\n7\r\n": "a"}\r\n0\r\n\r\n')

        assert wire.read_answer("POST").status == 200


def test_streams_are_chunked_one_event_a_chunk(sim: Sim) -> None:
    """A stream to an HTTP/1.1 client has chunked coding, an event in each chunk (spec 10)."""
    with Wire.connect(sim.url) as wire:
        wire.send(post(b'{"prompt": "a", "stream": true, "max_tokens": 3}'))

        head = wire.read_until(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        assert b"content-type: text/event-stream" in head
        chunks = []
        while size := int(wire.read_until(b"\r\n"), 16):
            chunks.append(wire.read_exactly(size + 2).removesuffix(b"\r\n"))
        assert wire.read_exactly(2) == b"\r\n"
    assert len(chunks) == 4
    assert all(chunk.startswith(b"data: {") for chunk in chunks)
    assert chunks[-1].endswith(b"data: [DONE]\n\n")


def test_http_1_0_streams_end_with_the_connection(sim: Sim) -> None:
    """A stream to an HTTP/1.0 client is delimited by the close (spec 10)."""
    with Wire.connect(sim.url) as wire:
        wire.send(post(b'{"prompt": "a", "stream": true, "max_tokens": 2}', version="1.0"))

        answer = wire.read_to_end()

    assert wire.ending == "fin"
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("version", "field", "kept"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close\r\n", False),
        ("1.0", "", False),
        ("1.0", "Connection: keep-alive\r\n", True),
    ],
)
def test_connection_field(sim: Sim, version: str, field: str, kept: bool) -> None:
    """The connection stays open or is closed as the client's version and Connection field want it (spec 10)."""
    with Wire.connect(sim.url) as wire:
        wire.send(post(b'{"prompt": "a"}', version=version, extra=field))

        assert wire.read_answer("POST").status == 200
        if kept:
            wire.send(MODELS)
            assert wire.read_answer().status == 200
        else:
            assert wire.read_ending() == "fin"


def test_head_has_no_body(sim: Sim) -> None:
    """HEAD gets the head that GET would get (spec 10)."""
    with Wire.connect(sim.url) as wire:
        wire.send(MODELS.replace(b"GET", b"HEAD") + MODELS)

        head, whole = wire.read_answer("HEAD"), wire.read_answer()

    assert head.body == b""
    assert head.header("content-length") == str(len(whole.body))


def test_what_is_no_http_gets_400(sim: Sim) -> None:
    """Bytes that are no HTTP get a 400 and the connection's end (spec 10)."""
    with Wire.connect(sim.url) as wire:
        wire.send(b"GARBAGE\r\n\r\n")

        assert wire.read_answer().status == 400
        assert wire.read_ending() == "fin"


def test_upgrades_are_not_taken_up(sim: Sim) -> None:
    """An Upgrade is answered as an ordinary request, and the connection closed (spec 10)."""
    with Wire.connect(sim.url) as wire:
        wire.send(MODELS[:-2] + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n")

        assert wire.read_answer().status == 200
        assert wire.read_ending() == "fin"


def test_a_slow_reader_holds_the_stream_back(sim: Sim) -> None:
    """A client that doesn't read stops its generation, in bounded memory, until it reads on (spec 10)."""

    def generated() -> int:
        return int(sim.state()["generated_tokens"])

    before = generated()
    sim.fault(answer_bytes=64_000_000)
    with Wire.connect(sim.url, receive_buffer=65536) as wire:
        wire.send(post(b'{"prompt": "a", "stream": true, "max_tokens": 1000}'))
        wait_until(lambda: generated() > before and generated() == generated(), what="the stream's standstill")

        held = generated()
        assert held - before < 900, "the stream ran ahead of its reader"
        wire.read_exactly(16_000_000)
        assert generated() > held
