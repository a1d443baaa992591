"""What commands write to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.terminal.conftest import Desk


def test_where_lines_go(desk: Desk) -> None:
    """What was asked for goes to stdout, and how the command gets on to stderr, with its name (spec 1.5)."""
    desk.console.say("one", "two")
    desk.console.note("it goes on")

    assert desk.out.lines == ["one", "two"]
    assert desk.err.lines == ["router: it goes on"]
    assert not desk.console.painter.coloured


def test_progress_where_lines_stay(desk: Desk) -> None:
    """In a file, progress is a line for each change, and not too many of them (spec 9)."""
    with desk.console.progress() as progress:
        for second in range(20):
            desk.time = float(second)
            progress.show(f"{20 - second // 2} left", f"{second} s")

    assert desk.err.lines == ["20 left (0 s)", "18 left (5 s)", "15 left (10 s)", "13 left (15 s)"]
    assert "\x1b" not in desk.err.getvalue()


def test_progress_on_a_terminal(terminal: Desk) -> None:
    """On a terminal, progress is one line, which is written over and is gone at the end (spec 9)."""
    with terminal.console.progress() as progress:
        progress.show("3 left", "1 s")
        progress.show("2 left\x1b[2J\r\n", "2 s")

    written = terminal.err.getvalue()
    assert "\n" not in written
    assert "2 left\\x1b[2J\\x0d\\x0a (2 s)" in written
    assert written.endswith("\r\x1b[K")
    assert written.count("\x1b[?7l") == written.count("\x1b[?7h") == 2


def test_progress_that_never_showed(terminal: Desk) -> None:
    """Where nothing took its time, nothing is erased (spec 9)."""
    with terminal.console.progress():
        pass

    assert terminal.err.getvalue() == ""


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_dumb_terminal(terminal: Desk, term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that can't move its cursor is written to as a file is (spec 9)."""
    monkeypatch.setenv("TERM", term)
    with terminal.console.progress() as progress:
        progress.show("3 left", "1 s")

    assert ("\x1b" in terminal.err.getvalue()) is (term == "xterm")
