"""Tables, times and colours: from values to lines of text."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pypto_serving_router.telemetry.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STYLES: Final = {
    "good": "\x1b[32m",
    "busy": "\x1b[36m",
    "warn": "\x1b[33m",
    "bad": "\x1b[31m",
    "dim": "\x1b[2m",
    "bold": "\x1b[1m",
}
_PLAIN: Final = "\x1b[0m"

PHASES: Final = {"ready": "good", "starting": "busy", "draining": "warn", "failed": "bad"}
"""The style of each phase."""

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class Cell(NamedTuple):
    """A piece of text with a style; numbers stand at the right of their column."""

    text: str
    style: str = ""
    right: bool = False


def number(value: float, digits: int = 0) -> Cell:
    """Make a cell of a number."""
    return Cell(f"{value:,.{digits}f}", right=True)


class Painter:
    """Styles text, or leaves it as it is where nobody wants colours."""

    def __init__(self, *, coloured: bool) -> None:
        self.coloured = coloured

    def paint(self, text: str, style: str) -> str:
        """Return the text in a style; an empty style is none."""
        return f"{_STYLES[style]}{text}{_PLAIN}" if style and text and self.coloured else text

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> list[str]:
        """Return lines in which columns stand below each other; a column in which nothing is said is left out."""
        cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
        shown = [column for column in range(len(heads)) if any(row[column].text for row in cells)]
        right = {column for column in shown if any(row[column].right for row in cells)}
        lines = [[Cell(head, "dim", column in right) for column, head in enumerate(heads)], *cells]
        widths = {column: max(len(one_line(line[column].text)) for line in lines) for column in shown}
        return [self._line([(line[column], widths[column]) for column in shown]) for line in lines]

    def _line(self, row: Iterable[tuple[Cell, int]]) -> str:
        """Pad each cell to its width as it is shown, which is less than is written where there are colours."""
        pieces = []
        for cell, width in row:
            text = one_line(cell.text)
            space = " " * (width - len(text))
            painted = self.paint(text, cell.style)
            pieces.append(space + painted if cell.right else painted + space)
        return "  ".join(pieces).rstrip()


def duration(seconds: float) -> str:
    """Say how long, in the two largest units that matter."""
    left = max(0, int(seconds))
    said: list[str] = []
    for size, unit in _UNITS:
        if left >= size and len(said) < 2:
            said.append(f"{left // size} {unit}")
            left %= size
        elif said:
            break
    return " ".join(said) or "0 s"


def since(iso: str, now: float) -> float:
    """Return the seconds since a moment that the router names; `now` counts from the epoch. Clocks may differ a bit."""
    return max(0.0, now - datetime.fromisoformat(iso).timestamp())


def until(iso: str, now: float) -> float:
    """Return the seconds until a moment that the router names."""
    return max(0.0, datetime.fromisoformat(iso).timestamp() - now)


def clock(iso: str) -> str:
    """Return a moment that the router names as the day and time of this machine."""
    return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def count(number: int, what: str) -> str:
    """Say how many there are of something."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
