"""What an operator wants to see in ten seconds: how the fleet is, and what needs somebody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pypto_serving_router.errors import RouterRefused
from pypto_serving_router.telemetry.text import one_line
from pypto_serving_router.terminal.render import PHASES, Cell, count, duration, number, since, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pypto_serving_router.terminal.client import Client
    from pypto_serving_router.terminal.render import Painter

WELL, ATTENTION, DOWN = 0, 3, 4
"""How a fleet is, as exit statuses: 1 and 2 are for a router that can't be asked, and for wrong usage."""

_WORDS: Final = {WELL: ("well", "good"), ATTENTION: ("needs attention", "warn"), DOWN: ("down", "bad")}

_REMEDIES: Final = {
    "stop-unconfirmed": "see what still runs on its host, then `retire {slot}` tries the stop again",
    "unreachable-at-startup": "if it is loading it will be taken back; if it is gone, `retire {slot}`",
    "address-in-use": "end what answers at its address, then `retire {slot}` looks again",
    "undeclared": "stop it by hand on its host, then `retire {slot} --force`",
}
"""What to do about a slot of which nobody knows whether it is free, by the reason."""

_KINDS: Final = {"unconfirmed": "warn", "abandoned": "bad", "cooling": "dim"}
"""The slots that are not simply held or free, and how each kind is painted."""


class Overview(NamedTuple):
    """What a router says of itself; `fleet` is None where it wants a token that is not given."""

    health: dict[str, Any]
    fleet: dict[str, Any] | None

    @property
    def replicas(self) -> list[dict[str, Any]]:
        """The replicas, with as much of each as may be seen."""
        rows: list[dict[str, Any]] = (self.fleet or self.health)["replicas"]
        return rows

    @property
    def outstanding(self) -> int:
        """The requests in flight."""
        return sum(row["outstanding"] for row in self.replicas)

    @property
    def status(self) -> int:
        """How the fleet is."""
        if not self.health["replicas_ready"]:
            return DOWN
        capacity = self.fleet["capacity"] if self.fleet else {"unconfirmed": (), "abandoned": ()}
        return ATTENTION if self.health["replicas_failed"] or capacity["unconfirmed"] or capacity["abandoned"] else WELL


def look(client: Client, events: int = 0) -> Overview:
    """Ask the router how it is, and for its last events.

    Raises:
        RouterUnreachable: it does not answer.
        RouterRefused: it does not accept the token.
    """
    health = client.health()
    try:
        return Overview(health, client.fleet(events))
    except RouterRefused as refused:
        if refused.code == "unauthorized" and not client.has_token:
            return Overview(health, None)
        raise


def head(overview: Overview, painter: Painter, *, rate: float | None = None) -> list[str]:
    """Sum it up; `rate` is the requests a second."""
    health = overview.health
    word, style = {WELL: ("well", "good"), ATTENTION: ("needs attention", "warn"), DOWN: ("down", "bad")}[
        overview.status
    ]
    routable = f"{health['replicas_ready']} of {count(health['replicas_total'], 'replica')} routable"
    routed, hits, rejected = health["routed"], health["affinity_hits"], health["rejected"]
    facts = [
        f"{count(overview.outstanding, 'request')} in flight",
        count(health["sessions"], "session"),
        f"{routed:,} routed" + ("" if rate is None else f" ({rate:.1f}/s)"),
        f"{100 * hits / routed:.0f} % by affinity" if routed else "",
        f"{rejected:,} rejected" if rejected else "",
    ]
    return [f"{painter.paint(word, style)}: {routable}", ", ".join(filter(None, facts))]


def replicas(overview: Overview, painter: Painter, now: float, rates: Mapping[str, float] | None = None) -> list[str]:
    """Return a table of the replicas; `now` is in seconds since the epoch, `rates` are requests a second by name."""
    heads = ("REPLICA", "PHASE", "FOR", "OUTSTANDING", "SESSIONS", "ROUTED", "PER S", "URL", "LAST ERROR")
    rows = [
        (
            Cell(row["name"], "bold"),
            Cell(row["phase"], PHASES.get(row["phase"], "")),
            duration(since(row["since"], now)) if "since" in row else "",
            number(row["outstanding"]),
            number(row["sessions"]) if "sessions" in row else "",
            number(row["routed"]) if "routed" in row else "",
            number(rates[row["name"]], 1) if rates and row["name"] in rates else "",
            row["url"],
            Cell((row["phase"] != "ready" and row.get("last_error")) or "", "bad"),
        )
        for row in overview.replicas
    ]
    return painter.table(heads, rows) if rows else ["no replicas"]


def slots(overview: Overview, painter: Painter, now: float) -> list[str]:
    """Tell what is left to launch on, and each slot that needs somebody, with what to do; nothing without slots."""
    if overview.fleet is None:
        return ["more is shown with the admin token: set PYPTO_ROUTER_ADMIN_TOKEN in the environment"]
    capacity = overview.fleet["capacity"]
    lines = list(_troubles(capacity, painter, now))
    if capacity["ceiling"]:
        free = ", ".join(capacity["free_slots"]) or "none"
        lines.append(f"slots: {capacity['owned']} held, at most {capacity['ceiling']}; free: {free}")
    return lines


def _troubles(capacity: Mapping[str, Any], painter: Painter, now: float) -> Iterator[str]:
    errors = capacity["last_errors"]
    for kind, style in _KINDS.items():
        for entry in capacity[kind]:
            slot, reason = entry["slot"], entry["reason"]
            why = f": {one_line(errors[slot])}" if slot in errors else ""
            yield f"{painter.paint(kind, style)} {slot} for {duration(since(entry['since'], now))}, {reason}{why}"
            yield f"  {_remedy(kind, entry, now)}"
    reserved = {entry["slot"] for kind in _KINDS for entry in capacity[kind]}
    for slot in capacity["free_slots"]:
        if slot in errors and slot not in reserved:
            yield f"{painter.paint('free', 'dim')} {slot}, after a failure: {one_line(errors[slot])}"


def _remedy(kind: str, entry: Mapping[str, Any], now: float) -> str:
    slot = entry["slot"]
    if kind == "cooling":
        return f"launched again in {duration(until(entry['until'], now))}; `retire {slot}` cancels that"
    if kind == "abandoned":
        return f"see `logs {slot}`; once that is mended, `launch --slot {slot}`"
    return _REMEDIES.get(entry["reason"], "`retire {slot}` settles it").format(slot=slot)
