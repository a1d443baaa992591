"""Lines of text for people."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.terminal.render import Cell, Painter, clock, count, duration, number, since, until

PLAIN = Painter(coloured=False)
COLOURED = Painter(coloured=True)
CODES = re.compile(r"\x1b\[\d+m")


def test_a_table() -> None:
    """Columns stand below each other, numbers at the right, and nothing trails (spec 9)."""
    lines = PLAIN.table(("NAME", "N", "WHY"), [("a", number(1), "because"), (Cell("longer", "bad"), number(12345), "")])

    assert lines == ["NAME         N  WHY", "a            1  because", "longer  12,345"]


def test_a_column_without_content_is_left_out() -> None:
    """A column in which nothing is said takes no room (spec 9)."""
    assert PLAIN.table(("A", "B", "C"), [("1", "", "3")]) == ["A  C", "1  3"]


@given(st.lists(st.tuples(st.text(max_size=6), st.sampled_from(["", "good", "bad"]), st.booleans()), min_size=1))
def test_colours_and_hostile_text_keep_the_columns(cells: list[tuple[str, str, bool]]) -> None:
    """Whatever is in a cell, the columns stand, and nothing in it drives the terminal (spec 9)."""
    rows = [(Cell(*cell), "x") for cell in cells]

    coloured = COLOURED.table(("HEAD", "B"), rows)

    assert [CODES.sub("", line) for line in coloured] == PLAIN.table(("HEAD", "B"), rows)
    assert all(line.isprintable() for line in PLAIN.table(("HEAD", "B"), rows))
    if any(text for text, *_ in cells):
        assert len({len(CODES.sub("", line)) for line in coloured}) == 1


def test_no_colour_where_none_is_wanted() -> None:
    """Without colours no code is written, and no style is no code (spec 9)."""
    assert PLAIN.paint("text", "bad") == "text"
    assert COLOURED.paint("text", "bad") == "\x1b[31mtext\x1b[0m"
    assert COLOURED.paint("text", "") == "text"
    assert COLOURED.paint("", "bad") == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1, "0 s"), (0, "0 s"), (0.9, "0 s"), (59.9, "59 s"), (60, "1 min"), (80, "1 min 20 s"), (3600, "1 h"),
        (3661, "1 h 1 min"), (3605, "1 h"), (86_400 + 7200 + 60, "1 d 2 h"), (10 * 86_400 + 59, "10 d"),
    ],
)  # fmt: skip
def test_duration(seconds: float, said: str) -> None:
    """A time reads in its two largest units (spec 9)."""
    assert duration(seconds) == said


def test_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment of the router's reads as the time here, and clocks that differ give no negative times (spec 9)."""
    now = 1_700_000_000.0
    assert since("2023-11-14T22:13:08.500Z", now) == 11.5
    assert until("2023-11-14T22:13:28.500Z", now) == 8.5
    assert since("2023-11-14T22:13:28.500Z", now) == until("2023-11-14T22:13:08.500Z", now) == 0.0
    assert re.fullmatch(r"2023-11-1\d \d\d:\d\d:08", clock("2023-11-14T22:13:08.500Z"))


def test_count() -> None:
    """One is not many (spec 9)."""
    assert [count(n, "request") for n in (0, 1, 2, 1234)] == ["0 requests", "1 request", "2 requests", "1,234 requests"]
