"""`logs` as far as it goes without a router."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.terminal.conftest import Desk, FakeRouter

from pypto_serving_router.errors import RouterUnreachable
from pypto_serving_router.terminal import logs
from pypto_serving_router.terminal.logs import WINDOW, Tail

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client


def run(desk: Desk, router: FakeRouter, *, lines: int = 100, follow: bool = False) -> int:
    return logs.run(desk.console, cast("Client", router), name="node-d0", lines=lines, follow=follow)


class Over(Exception):
    """Ends a command that follows."""


def test_the_end_of_a_log(desk: Desk) -> None:
    """The last lines are shown as they were written, whole or not (spec 6.5)."""
    router = FakeRouter()
    router.text = b"one\ntwo\n\x1b[31mthree\xff\nfo"

    assert run(desk, router, lines=3) == 0

    assert desk.out.getvalue() == "two\n\x1b[31mthree\ufffd\nfo\n"
    assert router.asked == [("log", "node-d0", 3)]


def test_an_empty_log(desk: Desk) -> None:
    """Nothing is nothing (spec 6.5)."""
    assert run(desk, FakeRouter()) == 0
    assert desk.out.getvalue() == ""


def test_on_a_terminal(terminal: Desk) -> None:
    """On a terminal a log may have colours, and nothing else that drives it (spec 9)."""
    router = FakeRouter()
    router.text = b"\x1b[32mINFO\x1b[0m:\tup\n 10%\r 50%\r100%\r\n\x1b]0;title\x07\x1b[2Jgone\n"

    run(terminal, router)

    assert terminal.out.lines == [
        "\x1b[32mINFO\x1b[0m:    up\x1b[0m",
        "100%",
        "\\x1b]0;title\\x07\\x1b[2Jgone",
    ]


def test_following(desk: Desk) -> None:
    """With `-f` each line is shown once, when it is complete (spec 6.5, 9)."""
    router = FakeRouter()
    router.text = b"one\ntwo\nthree\nfo"
    added = [b"", b"ur\n", b"five\nfive\n", b""]

    def write(_: float) -> None:
        if not added:
            raise Over
        router.text += added.pop(0)

    desk.at = write

    with pytest.raises(Over):
        run(desk, router, lines=2, follow=True)

    assert desk.out.lines == ["two", "three", "four", "five", "five"]
    assert {question[2] for question in router.asked} == {WINDOW}


def test_following_what_was_longer(desk: Desk) -> None:
    """More lines than a look has may be asked for first (spec 6.5)."""
    router = FakeRouter()
    router.text = b"".join(b"%d\n" % n for n in range(2 * WINDOW))

    def write(passed: float) -> None:
        if passed > 2:
            raise Over
        router.text += b"new %d\n" % passed

    desk.at = write

    with pytest.raises(Over):
        run(desk, router, lines=WINDOW + 7, follow=True)

    assert desk.out.lines == [*map(str, range(WINDOW - 7, 2 * WINDOW)), "new 1", "new 2"]


def test_a_router_that_goes_while_it_is_followed(desk: Desk) -> None:
    """A router that goes ends it with an error (spec 1.5)."""
    router = FakeRouter()
    desk.at = lambda _: router.errors.update(log=RouterUnreachable("gone"))

    with pytest.raises(RouterUnreachable):
        run(desk, router, follow=True)


@given(
    start=st.lists(st.integers(), max_size=9, unique=True),
    parts=st.lists(st.integers(0, 6), max_size=5),
    window=st.integers(1, 9),
)
def test_tail(start: list[int], parts: list[int], window: int) -> None:
    """Whatever is written between two looks, each line comes once and in order, or it is said that some did not."""
    written = [f"a{n}" for n in start]
    tail = Tail()

    def look() -> list[str]:
        return tail.new("".join(f"{line}\n" for line in written[-window:]).encode())

    shown = look()
    assert shown == written[-window:]
    for part, count in enumerate(parts):
        had = len(written)
        written += [f"b{part}.{n}" for n in range(count)]
        new = look()
        missed = had > 0 and count >= window
        assert new == ["… lines are missing here"] * missed + written[max(had, len(written) - window) :]


def test_a_log_that_begins_anew() -> None:
    """A log that was emptied is told from its beginning (spec 6.5)."""
    tail = Tail()
    tail.new(b"one\ntwo\n")

    assert tail.new(b"") == ["… lines are missing here"]
    assert tail.new(b"three\n") == ["three"]
