"""`top`: the fleet, live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pypto_serving_router.errors import RouterUnreachable
from pypto_serving_router.telemetry.text import escape, word
from pypto_serving_router.terminal import overview
from pypto_serving_router.terminal.console import is_terminal
from pypto_serving_router.terminal.render import clock, duration

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client
    from pypto_serving_router.terminal.console import Console
    from pypto_serving_router.terminal.overview import Overview
    from pypto_serving_router.terminal.render import Painter

EVENTS: Final = 8

# Another screen, that has no history, without a cursor, and on which long lines are cut: and back.
_OPEN: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_CLOSE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _END_LINE, _END_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

_LEVELS: Final = {"info": "", "warning": "warn", "error": "bad", "critical": "bad"}


def run(console: Console, client: Client, *, interval: float) -> int:
    """Show the fleet until somebody ends that; once, where what was written can't be written over."""
    rates = Rates()
    seen = overview.look(client, EVENTS)
    rates.add(seen, console.now())
    if not is_terminal(console.out):
        console.say(*frame(console, client.url, seen, rates))
        return seen.status
    console.out.write(_OPEN)
    try:
        asked = console.now()
        trouble = ""
        while True:
            _draw(console, [*frame(console, client.url, seen, rates, trouble)])
            console.sleep(interval)
            try:
                seen = overview.look(client, EVENTS)
                asked, trouble = console.now(), ""
                rates.add(seen, asked)
            except RouterUnreachable as error:
                trouble = f"{error}; what is below is {duration(console.now() - asked)} old"
    finally:
        console.out.write(_CLOSE)
        console.out.flush()


class Rates:
    """Requests a second, from how the counters went up between the last two looks."""

    def __init__(self) -> None:
        self._last: tuple[float, dict[str, int]] | None = None
        self.of: dict[str, float] = {}
        """By replica."""
        self.all: float | None = None

    def add(self, seen: Overview, now: float) -> None:
        """Take a look's counters; one that went down is that of a new replica, or of a new router."""
        counters = {row["name"]: row["routed"] for row in seen.replicas if "routed" in row}
        counters[""] = seen.health["routed"]
        if self._last is not None and now > self._last[0]:
            began, before = self._last
            self.of = {
                name: (counter - before[name]) / (now - began)
                for name, counter in counters.items()
                if counter >= before.get(name, counter + 1)
            }
            self.all = self.of.pop("", None)
        self._last = now, counters


def frame(console: Console, url: str, seen: Overview, rates: Rates, trouble: str = "") -> list[str]:
    """Return the lines of one picture."""
    painter, now = console.painter, console.wall()
    first, *others = overview.head(seen, painter, rate=rates.all)
    events = seen.fleet["events"] if seen.fleet else []
    return [
        *([painter.paint(trouble, "bad")] if trouble else []),
        f"{url} {first}",
        *others,
        "",
        *overview.replicas(seen, painter, now, rates.of),
        "",
        *overview.slots(seen, painter, now),
        *["", *(_event(event, painter) for event in reversed(events))],
    ]


def _event(event: dict[str, Any], painter: Painter) -> str:
    about = {name: value for name, value in event.items() if name not in ("number", "timestamp", "level", "event")}
    fields = " ".join(f"{name}={word(value)}" for name, value in about.items())
    text = painter.paint(escape(event["event"]), _LEVELS.get(event["level"], ""))
    return f"{painter.paint(clock(event['timestamp']), 'dim')}  {text}  {fields}"


def _draw(console: Console, lines: list[str]) -> None:
    """Write over the last picture, from the top, without a moment in which there is none."""
    shown = "\r\n".join(f"{line}{_END_LINE}" for line in lines[: console.height])
    console.out.write(f"{_HOME}{shown}{_END_SCREEN}")
    console.out.flush()
