"""`top` as far as it goes without a router."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from tests.terminal.conftest import Desk, FakeRouter, row

from pypto_serving_router.errors import RouterUnreachable
from pypto_serving_router.terminal import overview, top
from pypto_serving_router.terminal.top import Rates

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client

EVENT = {
    "number": 1, "timestamp": "2023-11-14T22:13:20.000Z", "level": "warning", "event": "replica is not routable",
    "replica": "node-d0", "error": "two words",
}  # fmt: skip


def run(desk: Desk, router: FakeRouter) -> int:
    return top.run(desk.console, cast("Client", router), interval=2.0)


def pictures(desk: Desk) -> list[list[str]]:
    """Return what was on the screen, picture after picture, without what ends each line and each picture."""
    written = desk.out.getvalue().split("\x1b[H")[1:]
    return [picture.partition("\x1b[J")[0].replace("\x1b[K", "").split("\r\n") for picture in written]


def test_once_where_it_is_not_a_terminal(desk: Desk) -> None:
    """Into a file or a pipe the picture is written once, plain, and the status tells how the fleet is (spec 9)."""
    router = FakeRouter(row(), row("b", phase="failed"))
    router.events = [EVENT]

    assert run(desk, router) == 3

    assert "\x1b" not in desk.out.getvalue()
    assert desk.out.lines[0] == "http://router:8000 needs attention: 1 of 2 replicas routable"
    assert desk.out.lines[-1].endswith('replica is not routable  replica=node-d0 error="two words"')
    assert desk.time == 0


def test_live(terminal: Desk) -> None:
    """On a terminal each picture is written over the last; at the end the terminal is as it was (spec 9)."""
    router = FakeRouter(row(routed=10))

    def serve(passed: float) -> None:
        if passed > 4:
            raise KeyboardInterrupt
        router.rows[0]["routed"] += 3
        router.counters["routed"] += 3

    terminal.at = serve

    with pytest.raises(KeyboardInterrupt):
        run(terminal, router)

    first, second, third = pictures(terminal)
    assert "512 routed, 97 %" in first[1]
    assert "PER S" not in first[3]
    assert "515 routed (1.5/s)" in second[1]
    assert third[4].split()[6:9] == ["16", "1.5", "http://node-d0:8001"]
    written = terminal.out.getvalue()
    assert written.startswith("\x1b[?1049h\x1b[?25l\x1b[?7l")
    assert written.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")


def test_a_router_that_goes_and_comes_back(terminal: Desk) -> None:
    """While the router does not answer the last picture stays, with how old it is (spec 9)."""
    router = FakeRouter(row())

    def story(passed: float) -> None:
        if passed == 2:
            router.errors["health"] = RouterUnreachable("http://router:8000: can't be asked: no")
        if passed == 6:
            router.errors.clear()
        if passed > 6:
            raise KeyboardInterrupt

    terminal.at = story

    with pytest.raises(KeyboardInterrupt):
        run(terminal, router)

    there, gone, longer, back = pictures(terminal)
    assert gone[0] == "http://router:8000: can't be asked: no; what is below is 2 s old"
    assert gone[1:4] == there[:3]
    assert "4 s old" in longer[0]
    assert back[0] == there[0]


def test_a_router_that_is_not_there_at_first(terminal: Desk) -> None:
    """A router that can't be asked at all is an error, before the screen is touched (spec 1.5)."""
    router = FakeRouter()
    router.errors["health"] = RouterUnreachable("no")

    with pytest.raises(RouterUnreachable):
        run(terminal, router)

    assert terminal.out.getvalue() == ""


def test_a_low_screen(terminal: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture has no more lines than the screen: one more would scroll it away (spec 9)."""
    monkeypatch.setenv("LINES", "5")
    router = FakeRouter(*(row(f"r{n}") for n in range(50)))

    def end(_: float) -> None:
        raise KeyboardInterrupt

    terminal.at = end

    with pytest.raises(KeyboardInterrupt):
        run(terminal, router)

    assert len(pictures(terminal)[0]) == 5


def test_rates_of_new_and_restarted_replicas() -> None:
    """A counter that is new, or went down, has no rate yet (spec 9)."""
    router = FakeRouter(row("a", routed=10), row("b", routed=10))
    rates = Rates()
    rates.add(overview.look(cast("Client", router)), 1.0)
    assert (rates.of, rates.all) == ({}, None)

    router.rows = [row("a", routed=30), row("b", routed=2), row("c", routed=5)]
    router.counters["routed"] = 0
    rates.add(overview.look(cast("Client", router)), 11.0)

    assert (rates.of, rates.all) == ({"a": 2.0}, None)
