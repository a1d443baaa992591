"""`explain`: why a conversation is where it is, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pypto_serving_router.terminal.render import Cell, clock, count, duration, number, since, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pypto_serving_router.terminal.client import Client
    from pypto_serving_router.terminal.console import Console
    from pypto_serving_router.terminal.render import Painter

_WHY: Final = {
    "first": "the first that is remembered of this session",
    "slack": "{left} had {behind} more requests in flight than the least loaded, and {slack} more are allowed",
    "unroutable": "{left} was not routable{trouble}",
    "refused": "{left} refused the connection{trouble}",
    "draining": "its replica was drained, or had gone",
    "expired": "it had been inactive for too long (--session-ttl)",
    "evicted": "there were too many sessions, and this was the one used longest ago (--max-sessions)",
    "no-affinity": "affinity is off (--affinity-slack 0)",
}
_ENDED: Final = {
    "slack": "then it moved",
    "unroutable": "then it moved",
    "refused": "then it moved",
    "draining": "then the replica was drained, or went",
    "expired": "then it was inactive for too long",
    "evicted": "then there were too many sessions",
    "no-affinity": "then came the next request",
}


def run(console: Console, client: Client, *, session: str | None, last: int) -> int:
    """Tell the story of a session, or the last choices of all."""
    told = client.decisions(session, last)
    painter = console.painter
    if session is None:
        console.say(*_all(told, painter))
        return 0
    console.say(f"session {session}, in the log {told['digest']}", _now(told["pinned"], console.wall()))
    for decision in told["decisions"]:
        console.say("", *_one(decision, told["slack"], painter))
    if not told["decisions"]:
        console.say("how it came there is not remembered any more")
    return 0


def _now(pinned: dict[str, Any] | None, now: float) -> str:
    if pinned is None:
        return "pinned nowhere: its next request goes to the least loaded replica"
    where = f"pinned to {pinned['replica']}"
    if pinned["outstanding"]:
        return f"{where}, {count(pinned['outstanding'], 'request')} in flight"
    used, left = duration(since(pinned["last_activity"], now)), duration(until(pinned["expires"], now))
    return f"{where}, last used {used} ago; the pin expires in {left} of inactivity"


def _one(decision: dict[str, Any], slack: int, painter: Painter) -> Iterator[str]:
    what = "moved to" if decision["placement"].startswith("moved") else "placed on"
    where = painter.paint(decision["replica"], "bold")
    yield f"{clock(decision['at'])}  {what} {where}: {_reason(decision, slack)}"
    rows = [
        (
            f"    {load['replica']}",
            number(load["outstanding"]),
            number(load["sessions"]),
            _mark(load, decision),
        )
        for load in decision["loads"]
    ]
    yield from painter.table(("    REPLICA", "OUTSTANDING", "SESSIONS", ""), rows)
    if decision["replicas"] > len(rows):
        yield f"    and {decision['replicas'] - len(rows):,} more"
    ended = _ENDED.get(decision["ended"] or "")
    yield f"    {count(decision['stayed'], 'more request')} stayed there" + (f"; {ended}" if ended else "")


def _reason(decision: dict[str, Any], slack: int) -> str:
    left = decision["left"]
    loads = {load["replica"]: load["outstanding"] for load in decision["loads"]}
    words: str = _WHY.get(decision["why"], decision["why"])
    return words.format(
        left=left,
        behind=loads.get(left, 0) - loads[decision["replica"]],
        slack=slack,
        trouble=f": {decision['trouble']}" if decision["trouble"] else "",
    )


def _mark(load: dict[str, Any], decision: dict[str, Any]) -> Cell:
    if load["replica"] == decision["replica"]:
        return Cell("chosen", "good")
    if not load["routable"]:
        return Cell("not routable", "bad")
    return Cell("left", "warn") if load["replica"] == decision["left"] else Cell("")


def _all(told: dict[str, Any], painter: Painter) -> list[str]:
    """Return a line for each choice, of sessions by their digests."""
    rows = [
        (
            clock(decision["at"]),
            decision["digest"],
            Cell(decision["replica"], "bold"),
            decision["placement"],
            _reason(decision, told["slack"]),
        )
        for decision in told["decisions"]
    ]
    heads = ("WHEN", "SESSION", "REPLICA", "PLACEMENT", "WHY")
    return painter.table(heads, rows) if rows else ["nothing has been placed yet"]
