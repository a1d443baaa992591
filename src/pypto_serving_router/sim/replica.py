"""The simulated replica: its endpoints, its counters, and its faults."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from pypto_serving_router.sim import faults as faults_of
from pypto_serving_router.sim.completion import Answer, answer_pieces, error_document, parse
from pypto_serving_router.sim.faults import BEFORE_HEAD, Faults
from pypto_serving_router.sim.server import Connection, Exchange, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pypto_serving_router.sim.engine import Engine

ROUTES = {
    "/health": ("GET", "HEAD"),
    "/v1/models": ("GET", "HEAD"),
    "/v1/completions": ("POST",),
    "/v1/chat/completions": ("POST",),
    "/sim/state": ("GET", "HEAD"),
    "/sim/faults": ("GET", "HEAD", "POST", "DELETE"),
}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this replica says it is."""

    model: str
    devices: str
    pid: int
    build_dir: str | None
    escaped_pid: int | None


class Replica:
    """Answers requests from one engine, as well as its faults let it."""

    def __init__(self, identity: Identity, engine: Engine, faults: Faults) -> None:
        self.identity = identity
        self.engine = engine
        self.faults = faults
        self.connections: set[Connection] = set()

        self._accepted = 0
        self._requests = 0
        self._health_probes = 0
        self._last_request: Request | None = None

    def connection(self) -> Connection:
        """Make the protocol of a new connection."""
        self._accepted += 1
        return Connection(self._serve, self.connections, lambda: self.faults.keep_alive)

    def state(self) -> dict[str, Any]:
        """Return the counters and the last request, for `GET /sim/state`."""
        engine, cache = self.engine, self.engine.cache
        return {
            "simulation": True,
            "pid": self.identity.pid,
            "model": self.identity.model,
            "devices": self.identity.devices,
            "build_dir": self.identity.build_dir,
            "escaped_pid": self.identity.escaped_pid,
            "faults": self.faults,
            "requests": self._requests,
            "waiting": engine.waiting,
            "running": engine.running,
            "completed": engine.completed,
            "aborted": engine.aborted,
            "cached_tokens": engine.cached_tokens,
            "prefilled_tokens": engine.prefilled_tokens,
            "generated_tokens": engine.generated_tokens,
            "cache_blocks": len(cache),
            "evicted_blocks": cache.evicted,
            "connections": len(self.connections),
            "accepted": self._accepted,
            "health_probes": self._health_probes,
            "last_request": self._last_request and described(self._last_request),
        }

    async def _serve(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path != "/health" and not request.path.startswith("/sim/"):
            self._last_request = request
            if request.header("x-sim-echo") is not None:
                await exchange.answer(200, msgspec.json.encode(described(request)))
                return
        methods = ROUTES.get(request.path)
        if methods is None:
            await exchange.answer(404, b'{"detail":"Not Found"}')
            return
        if request.method not in methods:
            allow = ("allow", ", ".join(methods))
            await exchange.answer(405, b'{"detail":"Method Not Allowed"}', extra=[allow])
            return
        match request.path:
            case "/health":
                await self._health(exchange)
            case "/v1/models":
                model = {"id": self.identity.model, "object": "model", "owned_by": "pypto-serving-sim (simulation)"}
                await exchange.answer(200, msgspec.json.encode({"object": "list", "data": [model]}))
            case "/sim/state":
                await exchange.answer(200, msgspec.json.encode(self.state()))
            case "/sim/faults":
                await self._change_faults(exchange)
            case _:
                await self._generate(exchange)

    async def _health(self, exchange: Exchange) -> None:
        self._health_probes += 1
        match self.faults.health:
            case "ok":
                await exchange.answer(200, b'{"status":"ok"}')
            case "unready":
                await exchange.answer(503, b'{"status":"not_ready"}')
            case "hang":
                await exchange.break_off("hang")

    async def _change_faults(self, exchange: Exchange) -> None:
        match exchange.request.method:
            case "POST":
                try:
                    changes = msgspec.json.decode(bytes(exchange.request.body), type=dict[str, Any])
                    self.faults = faults_of.parse(changes, self.faults)
                except ValueError as error:
                    await exchange.answer(400, error_document(str(error)))
                    return
            case "DELETE":
                self.faults = Faults()
        await exchange.answer(200, msgspec.json.encode(self.faults))

    async def _generate(self, exchange: Exchange) -> None:
        self._requests += 1
        serial = self._requests
        request = exchange.request
        try:
            faults = self._faults_for(request)
            wanted = parse(bytes(request.body), chat=request.path == "/v1/chat/completions")
        except ValueError as error:
            await exchange.answer(400, error_document(str(error)))
            return
        exchange.trickle = faults.trickle
        if faults.status is not None:
            extra = [] if faults.retry_after is None else [("retry-after", str(faults.retry_after))]
            document = error_document(f"the simulation was told to answer {faults.status}")
            await exchange.answer(faults.status, document, extra=extra)
            return

        prompt = wanted.rendered()
        pieces = answer_pieces(prompt, wanted.tokens, faults.answer_bytes)
        async with self.engine.generation(prompt) as cached:
            answer = Answer(wanted, prompt, model=self.identity.model, serial=serial, cached=cached)
            if faults.break_with is not None and faults.break_after == BEFORE_HEAD:
                await exchange.break_off(faults.break_with)
            if wanted.stream:
                await self._stream(exchange, answer, pieces, faults)
            else:
                await self._whole(exchange, answer, pieces, faults)

    async def _stream(self, exchange: Exchange, answer: Answer, pieces: list[str], faults: Faults) -> None:
        await exchange.begin(200, "text/event-stream; charset=utf-8", extra=[("cache-control", "no-cache")])
        last = len(pieces) - 1
        async for index in self.engine.decode(len(pieces)):
            if faults.break_with is not None and index == faults.break_after:
                await exchange.break_off(faults.break_with)
            await exchange.send(answer.event(pieces[index], first=index == 0, last=index == last))
        if faults.break_with is not None and faults.break_after == len(pieces):
            await exchange.break_off(faults.break_with)
        await exchange.send(answer.closing_events())
        await exchange.end()

    async def _whole(self, exchange: Exchange, answer: Answer, pieces: list[str], faults: Faults) -> None:
        await self.engine.decode_all(len(pieces))
        document = answer.whole(pieces)
        if faults.break_with is not None:
            # A whole answer has no events; it breaks in its middle.
            await exchange.begin(200, "application/json", length=len(document))
            await exchange.send(document[: len(document) // 2])
            await exchange.break_off(faults.break_with)
        await exchange.answer(200, document)

    def _faults_for(self, request: Request) -> Faults:
        """Return the faults that strike this generation; its own header has the last word."""
        faults = self.faults
        if faults.limit:
            self.faults = msgspec.structs.replace(faults, limit=faults.limit - 1)
        elif faults.limit == 0:
            faults = Faults()
        own = request.header("x-sim-faults")
        if own is None:
            return faults
        changes: Mapping[str, object] = msgspec.json.decode(own.encode("latin-1"), type=dict[str, Any])
        return faults_of.parse(changes, faults)


def described(request: Request) -> dict[str, Any]:
    """Return what was received, for witnesses; bytes above ASCII read as latin-1."""
    return {
        "simulation": True,
        "method": request.method,
        "target": request.target,
        "version": request.version,
        "headers": request.headers,
        "raw_head": request.raw_head.decode("latin-1"),
        "body_bytes": len(request.body),
        "body_sha256": sha256(request.body).hexdigest(),
    }
