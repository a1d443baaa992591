"""Text for people."""

from __future__ import annotations

import os
import pty
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.telemetry.text import begin_record, escape, one_line, wants_colour, word


@given(st.text())
def test_escape(text: str) -> None:
    """What is printable stays as it is, and what is not becomes visible."""
    escaped = escape(text)

    assert escaped.isprintable()
    assert escaped == text or not text.isprintable()


@given(st.text())
def test_one_line(text: str) -> None:
    """Several lines become one (spec 1.5)."""
    assert one_line(text).isprintable()
    assert one_line("exit status 1:\nno such model\r\n\x1b[2J") == "exit status 1: | no such model | \\x1b[2J"


@given(st.text() | st.integers() | st.floats() | st.none() | st.lists(st.text()))
def test_word(value: object) -> None:
    """A value has no blank but in quotes or brackets, so that a line of fields can be told apart (spec 9)."""
    written = word(value)

    assert written
    assert written.isprintable()
    assert " " not in written or written[0] in '"['


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_the_beginnings_of_records(level: str) -> None:
    """Fields stand below fields whatever the level, and colours change nothing about where (spec 9)."""
    plain = begin_record("2023-11-14T22:13:20.250Z", level, "slot changed", coloured=False)
    coloured = begin_record("2023-11-14T22:13:20.250Z", level, "slot changed", coloured=True)

    assert len(plain) == 24 + 1 + 7 + 1 + 32 + 1
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    assert coloured != plain


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_wants_colour(environment: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours are for a terminal, unless it has none or its user wants none (spec 9)."""
    for name, value in ({"NO_COLOR": "", "TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    leader, follower = pty.openpty()
    reader, writer = os.pipe()
    try:
        assert wants_colour(follower) is wanted
        assert not wants_colour(writer)
    finally:
        for fd in (leader, follower, reader, writer):
            os.close(fd)
