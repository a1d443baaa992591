"""The stub replica: answers like pypto-serving at the least possible cost, and misbehaves on request.

    python -m bench.stub --address 127.0.0.1:9101 [--address 127.0.1.2:0 ...]

`GET /health`, `/v1/models` and the discovery paths some gateways ask for; every POST is a chat completion that
follows the script in its body. Each event carries the monotonic clock in ns at which it was written (`"t":`), so
that a reader on the same machine can tell the relay delay of every one.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import httptools
import uvloop
from bench.script import Script, find

MODEL = "stub-model"
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "stub"}]}).encode()
_INFO = json.dumps(
    {
        "model_path": "",
        "served_model_name": MODEL,
        "model_id": MODEL,
        "version": "0",
        "tokenizer_path": "",
        "is_generation": True,
        "dp_size": 1,
        "tp_size": 1,
    }
).encode()
_GETS = {
    b"/health": b"",
    b"/v1/models": _MODELS,
    b"/get_model_info": _INFO,
    b"/model_info": _INFO,
    b"/get_server_info": _INFO,
    b"/server_info": _INFO,
    b"/version": b'{"version":"0.11.0"}',
}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-request-id: stub-req\r\ntransfer-encoding: chunked\r\n\r\n"
)
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@dataclass(slots=True)
class Stats:
    """What the stub saw since the last reset."""

    requests: int = 0
    completed: int = 0
    aborted: int = 0
    """Answers whose connection was gone before their end, by no fault of ours."""
    aborted_at: int = 0
    """Monotonic ns of the last of them."""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Of the last POST."""
    body: list[bytes] = field(default_factory=list)
    """Of the last POST, in the pieces in which it came."""

    def reset(self) -> None:
        """Start counting again."""
        self.requests = self.completed = self.aborted = self.aborted_at = 0
        self.headers, self.body = [], []


def plain(body: bytes, status: bytes = b"200 OK") -> bytes:
    """Return a whole answer."""
    kind = b"application/json" if body else b"text/plain"
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)


@lru_cache
def completion(size: int) -> bytes:
    """Return a chat completion as a JSON body of `size` bytes (never less than its frame)."""
    before = (
        '{"id":"chatcmpl-stub","object":"chat.completion","created":1700000000,'
        f'"model":"{MODEL}","choices":[{{"index":0,"message":{{"role":"assistant","content":"'
    )
    after = (
        '"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":400,"completion_tokens":100,'
        '"total_tokens":500}}'
    )
    return (before + "x" * max(0, size - len(before) - len(after)) + after).encode()


@lru_cache
def _answer(size: int) -> bytes:
    return plain(completion(size))


@lru_cache
def _event_parts(size: int) -> tuple[bytes, bytes]:
    """Return what stands before and after the 19-digit time of one chunk-framed event of `size` bytes."""
    start = (
        b'data: {"id":"chatcmpl-stub","object":"chat.completion.chunk","created":1700000000,"model":"%b","t":'
        % MODEL.encode()
    )
    middle = b',"choices":[{"index":0,"delta":{"content":"'
    end = b'"},"finish_reason":null}]}\n\n'
    fixed = len(start) + len(middle) + len(end) + 19
    pad = max(1, size - fixed)
    return b"%x\r\n" % (fixed + pad) + start, middle + b"x" * pad + end + b"\r\n"


class Replica(asyncio.Protocol):
    """One connection to the stub."""

    __slots__ = (
        "_body",
        "_headers",
        "_held",
        "_left",
        "_loop",
        "_parser",
        "_parts",
        "_paused",
        "_script",
        "_sent",
        "_stats",
        "_timer",
        "_transport",
        "_url",
        "_when",
    )
    _transport: asyncio.Transport
    _parser: httptools.HttpRequestParser

    def __init__(self, loop: asyncio.AbstractEventLoop, stats: Stats) -> None:
        self._loop = loop
        self._stats = stats
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._script = Script()
        self._parts = (b"", b"")
        self._left = -1  # events still to send; -1: no stream is running
        self._sent = 0
        self._when = 0.0
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._held = False
        self._paused = False

    # --- the connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        waiting = self._timer is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._left >= 0 or self._held or waiting:
            self._stats.aborted += 1
            self._stats.aborted_at = time.monotonic_ns()
        self._left = -1
        self._held = False

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            print("stub: bad request:", exc, data[:200], file=sys.stderr, flush=True)
            self._transport.close()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._left >= 0 and self._timer is None:
            self._tick()

    # --- the request ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._body = []
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            known = _GETS.get(self._url.partition(b"?")[0])
            self._transport.write(plain(b'{"error":"not found"}', b"404 Not Found") if known is None else plain(known))
            return
        stats = self._stats
        stats.requests += 1
        stats.headers = self._headers
        stats.body = self._body
        script = find(self._body)
        if script.delay:
            self._timer = self._loop.call_later(script.delay / 1000, self._begin, script)
        else:
            self._begin(script)

    # --- the answer -----------------------------------------------------------------------------

    def _begin(self, script: Script) -> None:
        self._timer = None
        if script.die_head:
            self._die(script)
            return
        if not script.stream:
            self._transport.write(_answer(script.size or 600))
            self._stats.completed += 1
            return
        self._script = script
        self._parts = _event_parts(script.size or 200)
        self._left = script.events
        self._sent = 0
        self._when = self._loop.time()
        self._transport.write(_STREAM_HEAD)
        if script.align:
            step = script.interval / 1000
            self._when = (int(self._when / step) + 2) * step
            self._timer = self._loop.call_at(self._when, self._tick)
        elif script.interval < 0:
            self._transport.write(b"".join([self._event() for _ in range(self._left)]))
            self._left = 0
            self._tick()
        else:
            self._tick()

    def _event(self) -> bytes:
        before, after = self._parts
        return b"%b%019d%b" % (before, time.monotonic_ns(), after)

    def _tick(self) -> None:
        """Send the next event, or what ends the stream."""
        self._timer = None
        if self._left < 0:
            return
        if self._sent == self._script.die:
            self._left = -1
            self._die(self._script)
            return
        if self._left == 0:
            self._left = -1
            if self._script.hold:
                self._held = True
                return
            self._transport.write(_DONE)
            self._stats.completed += 1
            return
        self._transport.write(self._event())
        self._left -= 1
        self._sent += 1
        if self._paused:
            return
        if self._script.interval > 0:
            self._when += self._script.interval / 1000
            self._timer = self._loop.call_at(self._when, self._tick)
        else:
            self._timer = self._loop.call_soon(self._tick)

    def _die(self, script: Script) -> None:
        if script.rst:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()


async def serve(addresses: Sequence[tuple[str, int]], stats: Stats) -> list[asyncio.Server]:
    """Listen on each address (port 0: any free one) and answer from then on."""
    loop = asyncio.get_running_loop()
    return [
        await loop.create_server(lambda: Replica(loop, stats), host, port, backlog=4096) for host, port in addresses
    ]


def addresses_of(servers: Sequence[asyncio.Server]) -> list[tuple[str, int]]:
    """Return where the servers listen."""
    return [server.sockets[0].getsockname()[:2] for server in servers]


async def _main(addresses: list[tuple[str, int]]) -> None:
    servers = await serve(addresses, Stats())
    print(json.dumps(addresses_of(servers)), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    """Run the stub by itself; prints where it listens as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", action="append", required=True, metavar="HOST:PORT")
    pairs = [address.rpartition(":") for address in parser.parse_args().address]
    gc.freeze()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_main([(host, int(port)) for host, _, port in pairs]))


if __name__ == "__main__":
    main()
