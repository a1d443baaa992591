"""What a command writes to, and the time it goes by."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pypto_serving_router.telemetry.text import escape, wants_colour
from pypto_serving_router.terminal.render import Painter

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self, TextIO

QUIET: Final = 5.0
"""Seconds between two lines of progress, where each stays."""

_HIDE_WRAP, _SHOW_WRAP, _ERASE = "\x1b[?7l", "\x1b[?7h", "\x1b[K"


@dataclass(frozen=True)
class Console:
    """Two streams and three clocks: `now` is monotonic, `wall` counts from the epoch, `sleep` lets seconds pass."""

    out: TextIO
    err: TextIO
    now: Callable[[], float]
    wall: Callable[[], float]
    sleep: Callable[[float], None]
    program: str
    """What the command is called in messages."""

    @cached_property
    def painter(self) -> Painter:
        """What is written to `out` is coloured if that is a terminal."""
        return Painter(coloured=is_terminal(self.out) and wants_colour(self.out.fileno()))

    @property
    def height(self) -> int:
        """The lines that the terminal shows."""
        return shutil.get_terminal_size().lines

    def say(self, *lines: str) -> None:
        """Write lines that were asked for."""
        self.out.write("".join(f"{line}\n" for line in lines))
        self.out.flush()

    def note(self, line: str) -> None:
        """Write a line about how the command itself gets on."""
        self.err.write(f"{self.program}: {line}\n")
        self.err.flush()

    def progress(self) -> Progress:
        """Show how something gets on."""
        return Progress(self)


class Progress:
    """One line that is written over while something takes its time; where lines stay, one for each change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = is_terminal(console.err)
        self._shown = False
        self._news = ""
        self._quiet_until = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown:
            self._write(f"\r{_ERASE}")

    def show(self, news: str, waited: str) -> None:
        """Show what is new, and how long it has been."""
        line = escape(f"{news} ({waited})")
        if self._live:
            self._shown = True
            self._write(f"\r{_HIDE_WRAP}{line}{_ERASE}{_SHOW_WRAP}")
        elif news != self._news and self._console.now() >= self._quiet_until:
            self._news = news
            self._quiet_until = self._console.now() + QUIET
            self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        self._console.err.write(text)
        self._console.err.flush()


def is_terminal(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"
