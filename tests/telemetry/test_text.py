"""Text for people."""

from __future__ import annotations

import os
import pty

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.telemetry.text import escape, wants_colour, word


@given(st.text())
def test_escape(text: str) -> None:
    """What is printable stays as it is, and what is not becomes visible."""
    escaped = escape(text)

    assert escaped.isprintable()
    assert escaped == text or not text.isprintable()


@given(st.text() | st.integers() | st.floats() | st.none() | st.lists(st.text()))
def test_word(value: object) -> None:
    """A value has no blank but in quotes or brackets, so that a line of fields can be told apart (spec 9)."""
    written = word(value)

    assert written
    assert written.isprintable()
    assert " " not in written or written[0] in '"['


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
