"""`logs`: what a replica said, and says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pypto_serving_router.telemetry.text import escape
from pypto_serving_router.terminal.console import is_terminal

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client
    from pypto_serving_router.terminal.console import Console

LOOK_EVERY: Final = 1.0
"""Seconds between two looks, each of which is a command on the replica's host."""
WINDOW: Final = 400
"""Lines of each look: what is written in between has to be among them."""

_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)")


def run(console: Console, client: Client, *, name: str, lines: int, follow: bool) -> int:
    """Show the end of a startup log, and with `follow` what is added to it until somebody ends that."""
    tail = Tail()
    new = tail.new(client.log(name, max(lines, WINDOW) if follow else lines))
    _show(console, new[-lines:] if follow else [*new, *tail.rest])
    while follow:
        console.sleep(LOOK_EVERY)
        _show(console, tail.new(client.log(name, WINDOW)))
    return 0


class Tail:
    """Finds out what is new when the same end of a file is looked at again and again."""

    def __init__(self) -> None:
        self._seen: list[str] | None = None
        self.rest: list[str] = []
        """The last line, if it is not complete: it is new once it is."""

    def new(self, log: bytes) -> list[str]:
        """Return the lines that were not there before, with one that says so where some have been missed."""
        *lines, rest = log.decode(errors="replace").split("\n")
        seen, self._seen, self.rest = self._seen, lines, [rest] if rest else []
        if not seen:
            return lines
        for gone in range(len(seen)):
            kept = len(seen) - gone
            if seen[gone:] == lines[:kept]:
                return lines[kept:]
        return ["… lines are missing here", *lines]


def _show(console: Console, lines: list[str]) -> None:
    """Write lines as they are; to a terminal, with nothing in them but text and colours."""
    if lines:
        console.say(*(map(_tame, lines) if is_terminal(console.out) else lines))


def _tame(line: str) -> str:
    """Leave colours in, and only the last of what a progress bar has drawn over itself."""
    shown = line.rstrip("\r").rpartition("\r")[2].replace("\t", "    ")
    pieces = _COLOUR.split(shown)
    tamed = "".join(piece if number % 2 else escape(piece) for number, piece in enumerate(pieces))
    return f"{tamed}\x1b[0m" if len(pieces) > 1 else tamed
