"""The router's own paths: what is asked of each, and what it answers.

Rules for editors.

1. A path is split at its slashes first and each segment is decoded once; routes and the token rule both look at those
   segments, so that no spelling reaches one and escapes the other.
2. Everything whose first segment is `replicas` is guarded, whether it exists or not.
3. A fixed name below `replicas` takes no method that is a replica's: one may be called so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import parse_qs, unquote_to_bytes

import msgspec

from pypto_serving_router.admin import access, pages, views
from pypto_serving_router.config.document import INVALID, check, parse
from pypto_serving_router.config.model import Line  # noqa: TC001 - msgspec reads it at run time
from pypto_serving_router.core.answer import Answer, document, error
from pypto_serving_router.core.ids import HostId, ReplicaId, SlotId
from pypto_serving_router.errors import (
    ConfigError,
    LaunchFailed,
    PoolFull,
    RequestError,
    SlotBusy,
    TransportError,
    UnknownSlot,
)
from pypto_serving_router.telemetry.families import CONTENT_TYPE

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from pypto_serving_router.core.balancer import Balancer
    from pypto_serving_router.core.decisions import Decisions
    from pypto_serving_router.core.head import RequestHead
    from pypto_serving_router.core.sessions import SessionTable
    from pypto_serving_router.fleet.controller import LaunchResult, RetireResult
    from pypto_serving_router.fleet.pool import Capacity
    from pypto_serving_router.telemetry.floodgate import Floodgate
    from pypto_serving_router.telemetry.metrics import Metrics
    from pypto_serving_router.telemetry.recent import Recent

MAX_LINES: Final = 10_000
DEFAULT_LINES: Final = 100
MAX_EVENTS: Final = 256
MAX_DECISIONS: Final = 100
DEFAULT_DECISIONS: Final = 20

_REPLICAS: Final = b"replicas"
_MAX_WHERE: Final = 4096  # bytes; all that is wrong with so many is told within milliseconds
_REFUSALS_EVERY: Final = 60.0  # seconds between two records of refused requests
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Fleet(Protocol):
    """The part of the fleet's controller that is asked for here."""

    def capacity(self) -> Capacity:
        """Count what is held and what is left."""

    async def launch(self, *, slot: SlotId | None = None, host: HostId | None = None) -> LaunchResult:
        """Launch a replica; return once its start is accepted."""

    async def retire(self, slot: SlotId, *, force: bool = False) -> RetireResult:
        """Drain and stop a replica, or settle what is wrong with its slot."""

    async def log(self, slot: SlotId, lines: int) -> bytes:
        """Fetch the end of a slot's startup log."""


class _Where(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /replicas`."""

    slot: Line | None = None
    host: Line | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    """What a handler is given of a request."""

    query: Mapping[str, list[str]]
    body: bytes


_Handler: TypeAlias = Callable[[_Call], Awaitable[Answer]]


class Admin:
    """Answers the requests that are the router's own."""

    def __init__(
        self,
        *,
        balancer: Balancer,
        sessions: SessionTable,
        decisions: Decisions,
        fleet: Fleet,
        token: str | None,
        metrics: Metrics,
        recent: Recent,
        now: Callable[[], float],
        wall_time: Callable[[float], str],
        floodgate: Floodgate,
        log: FilteringBoundLogger,
    ) -> None:
        """`now` is monotonic, and `wall_time` tells what such a moment was on the wall."""
        self._balancer = balancer
        self._sessions = sessions
        self._decisions = decisions
        self._fleet = fleet
        self._token = None if token is None else token.encode()
        self._metrics = metrics
        self._recent = recent
        self._now = now
        self._wall_time = wall_time
        self._floodgate = floodgate
        self._log = log
        self._pages = pages.load()

    async def handle(self, head: RequestHead, body: bytes) -> Answer:
        """Answer a request; one by HEAD is answered as if by GET, and its body is for the front end to leave out."""
        path, query = split_target(head.target)
        refusal = access.refusal(head, self._token) if path[0] == _REPLICAS else None
        if refusal is not None:
            self._tell_refusal(head, refusal.status)
            answer = refusal
        else:
            try:
                answer = await self._route(head, path)(_Call(query, body))
            except RequestError as refused:
                answer = error(refused.status, refused.code, str(refused))
        return replace(answer, headers={**_HEADERS, **answer.headers})

    def _route(self, head: RequestHead, path: list[bytes]) -> _Handler:
        methods = self._methods(path)
        if not methods:
            raise RequestError(404, "not_found", "there is nothing at this path")
        handler = methods.get("GET" if head.method == b"HEAD" else head.method.decode())
        if handler is None:
            return partial(_not_allowed, methods)
        return handler

    def _methods(self, path: list[bytes]) -> Mapping[str, _Handler]:
        """Return what can be done at a path, by method."""
        match path:
            case [b"health"]:
                return {"GET": self._health}
            case [b"metrics"]:
                return {"GET": self._show_metrics}
            case [b"replicas"]:
                return {"GET": self._list, "POST": self._launch}
            case [b"replicas", b"decisions"]:
                return {"GET": self._explain, "DELETE": partial(self._retire, "decisions")}
            case [b"replicas", name] if name:
                return {"DELETE": partial(self._retire, _text(name))}
            case [b"replicas", name, b"log"] if name:
                return {"GET": partial(self._show_log, _text(name))}
            case [name] if name in self._pages:
                return {"GET": partial(_show_page, self._pages[name])}
            case _:
                return {}

    def _tell_refusal(self, head: RequestHead, status: int) -> None:
        suppressed = self._floodgate.once_per(("refused", status), _REFUSALS_EVERY)
        if suppressed is not None:
            method, path = head.method.decode(), head.target.partition(b"?")[0].decode()
            self._log.warning("request refused", status=status, method=method, path=path, suppressed=suppressed)

    # --- what anybody may see ----------------------------------------------------------------

    async def _health(self, _call: _Call) -> Answer:
        view = views.health(self._balancer, self._sessions)
        return document(view, status=200 if view["status"] == "ok" else 503)

    async def _show_metrics(self, _call: _Call) -> Answer:
        pieces = []
        for piece in self._metrics.pieces():
            pieces.append(piece)
            await asyncio.sleep(0)  # streams go on between the pieces
        return Answer(200, "".join(pieces).encode(), CONTENT_TYPE)

    # --- what the token guards ---------------------------------------------------------------

    async def _list(self, call: _Call) -> Answer:
        view = views.fleet(self._balancer, self._fleet.capacity(), self._metrics.first_bytes(), self._wall_time)
        if "events" in call.query:
            view["events"] = self._recent.latest(_number(call.query, "events", 0, MAX_EVENTS))
        return document(view)

    async def _explain(self, call: _Call) -> Answer:
        count = _number(call.query, "last", 1, MAX_DECISIONS, default=DEFAULT_DECISIONS)
        slack = self._balancer.slack
        if "session" not in call.query:
            return document(views.decisions(self._decisions.last(count), slack, self._wall_time))
        session = _one(call.query, "session")
        pin = self._sessions.find(session, self._now())
        decisions = self._decisions.last(count, session)
        if pin is None and not decisions:
            raise RequestError(404, "unknown_session", "nothing is remembered of this session")
        return document(
            views.story(session, pin, self._sessions.ttl, self._wall_time)
            | views.decisions(decisions, slack, self._wall_time)
        )

    async def _launch(self, call: _Call) -> Answer:
        where = _read_where(call.body)
        slot = None if where.slot is None else SlotId(where.slot)
        host = None if where.host is None else HostId(where.host)
        try:
            launched = (await self._fleet.launch(slot=slot, host=host)).slot
        except UnknownSlot as unknown:
            raise RequestError(404, "unknown_slot", str(unknown)) from None
        except PoolFull as full:
            return self._conflict("pool_full", str(full))
        except SlotBusy as busy:
            return self._conflict("slot_busy", str(busy))
        except LaunchFailed as failed:
            return error(502, "launch_failed", str(failed), more={"slot": failed.slot})
        replica = self._balancer.replicas.get(ReplicaId(launched.id))
        if replica is None:
            return error(502, "launch_failed", f"{launched.id} was started, and is gone", more={"slot": launched.id})
        first_bytes = self._metrics.first_bytes().get(replica.id, (0, 0.0))
        return document(views.row(replica, first_bytes, self._wall_time), status=202)

    async def _retire(self, name: str, call: _Call) -> Answer:
        force = _flag(call.query, "force")
        slot = self._slot(name)
        try:
            retired = await self._fleet.retire(slot, force=force)
        except UnknownSlot as unknown:
            raise RequestError(404, "unknown_replica", str(unknown)) from None
        if retired.confirmed:
            return document({"name": name, "status": "retired"})
        reason = str(retired.slot.cause)
        why = f": {retired.slot.last_error}" if retired.slot.last_error else ""
        return error(
            500, "stop_unconfirmed", f"{slot} stays reserved ({reason}){why}", more={"slot": slot, "reason": reason}
        )

    async def _show_log(self, name: str, call: _Call) -> Answer:
        lines = _number(call.query, "lines", 1, MAX_LINES, default=DEFAULT_LINES)
        try:
            log = await self._fleet.log(self._slot(name), lines)
        except UnknownSlot as unknown:
            raise RequestError(404, "unknown_replica", str(unknown)) from None
        except TransportError as unreachable:
            return error(502, "host_unreachable", str(unreachable))
        return Answer(200, log, "text/plain; charset=utf-8")

    def _slot(self, name: str) -> SlotId:
        """Return the slot of a replica, or the one of that name."""
        replica = self._balancer.replicas.get(ReplicaId(name))
        if replica is not None and not replica.owned:
            raise RequestError(409, "not_owned", f"{name} was not launched by the router")
        return SlotId(name) if replica is None or replica.slot is None else replica.slot

    def _conflict(self, code: str, message: str) -> Answer:
        return error(
            409, code, message, more={"capacity": views.capacity_left(self._fleet.capacity(), self._wall_time)}
        )


def split_target(target: bytes) -> tuple[list[bytes], dict[str, list[str]]]:
    """Return the segments of a target's path, each decoded once, and its query."""
    path, _, query = target.partition(b"?")
    if not path.startswith(b"/"):
        return [path], {}
    segments = [unquote_to_bytes(segment) for segment in path[1:].split(b"/")]
    return segments, parse_qs(query.decode("ascii", "replace"), keep_blank_values=True)


def _text(name: bytes) -> str:
    return name[:256].decode("utf-8", "backslashreplace")


def _read_where(body: bytes) -> _Where:
    if not body.strip():
        return _Where()
    if len(body) > _MAX_WHERE:
        raise RequestError(400, "invalid_body", "the body is longer than it takes to name a slot or a host")
    try:
        draft, problems = check(parse(body, "body"), _Where)
    except ConfigError as wrong:
        draft, problems = INVALID, list(wrong.problems)
    if draft is INVALID or problems:
        told = "; ".join(map(str, problems))
        raise RequestError(400, "invalid_body", f'the body is not {{"slot": NAME}} or {{"host": NAME}}: {told}')
    where = _Where(**draft)
    if where.slot is not None and where.host is not None:
        raise RequestError(400, "invalid_body", "the body names both a slot and a host; one of them is enough")
    return where


def _number(query: Mapping[str, list[str]], name: str, least: int, most: int, default: int | None = None) -> int:
    values = query.get(name)
    if values is None and default is not None:
        return default
    value = values[0] if values and len(values) == 1 else ""
    if value.isascii() and value.isdigit() and len(value) < 10 and least <= int(value) <= most:
        return int(value)
    raise RequestError(400, "invalid_query", f"`{name}` is a number from {least} to {most}")


def _one(query: Mapping[str, list[str]], name: str) -> str:
    if len(query[name]) != 1 or not query[name][0]:
        raise RequestError(400, "invalid_query", f"`{name}` is to be given once, and not empty")
    return query[name][0]


def _flag(query: Mapping[str, list[str]], name: str) -> bool:
    values = query.get(name, ["false"])
    if values not in (["true"], ["false"]):
        raise RequestError(400, "invalid_query", f"`{name}` is `true` or `false`")
    return values == ["true"]


async def _show_page(page: Answer, _call: _Call) -> Answer:
    return page


async def _not_allowed(methods: Mapping[str, Any], _call: _Call) -> Answer:
    allowed = ", ".join(["GET, HEAD" if method == "GET" else method for method in methods])
    return error(405, "method_not_allowed", f"the methods of this path are {allowed}", headers={"Allow": allowed})
