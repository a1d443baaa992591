"""`retire` as far as it goes without a router."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.waiting import wait_until
from tests.terminal.conftest import Desk, FakeRouter, row

from pypto_serving_router.errors import RouterRefused, RouterUnreachable
from pypto_serving_router.terminal import retire

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypto_serving_router.terminal.client import Client


class SlowRouter(FakeRouter):
    """Answers a retirement when it is told to; each look at the fleet is a step of the story."""

    def __init__(self, *steps: Callable[[SlowRouter], None]) -> None:
        super().__init__(row(outstanding=3, phase="draining", draining=True))
        self.steps = list(steps)
        self.done = threading.Event()

    def retire(self, name: str, *, force: bool) -> None:
        super().retire(name, force=force)
        assert self.done.wait(10)

    def fleet(self, events: int = 0) -> dict[str, Any]:
        (self.steps.pop(0) if self.steps else lambda router: router.done.set())(self)
        return super().fleet(events)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once."""
    monkeypatch.setattr(retire, "LOOK_EVERY", 0.01)


def run(desk: Desk, router: FakeRouter, *, force: bool = False) -> int:
    return retire.run(desk.console, cast("Client", router), name="node-d0", force=force)


def test_a_drain_tells_what_is_left(terminal: Desk) -> None:
    """While a replica drains, the requests that are left are counted (spec 6.4, 9)."""

    def leave(left: int) -> Callable[[SlowRouter], None]:
        return lambda router: router.rows[0].update(outstanding=left)

    def trouble(router: SlowRouter) -> None:
        router.errors["fleet"] = RouterUnreachable("no")

    def gone(router: SlowRouter) -> None:
        router.errors.clear()
        router.rows.clear()

    assert run(terminal, SlowRouter(leave(2), leave(1), leave(0), trouble, gone)) == 0

    shown = [
        piece.partition("\x1b[K")[0].partition(" (")[0] for piece in terminal.err.getvalue().split("\r\x1b[?7l")[1:]
    ]
    assert shown[:5] == [
        "node-d0: draining, 2 requests left",
        "node-d0: draining, 1 request left",
        "node-d0: being stopped",
        "node-d0: the router does not answer",
        "node-d0: its slot is being looked at",
    ]
    assert terminal.out.lines == ["node-d0 is retired: its slot is free"]


def test_a_quick_one_shows_nothing(desk: Desk) -> None:
    """Where the answer comes at once there is no progress; `--force` is passed on (spec 6.4)."""
    router = FakeRouter(row())

    assert run(desk, router, force=True) == 0

    assert router.asked[0] == ("retire", "node-d0", True)
    assert desk.err.lines in ([], ["node-d0: being stopped (0 s)"])


def test_unconfirmed(desk: Desk) -> None:
    """A stop that can't be confirmed has a status of its own, and says what to do (spec 1.4, 6.4)."""
    router = FakeRouter(row())
    router.errors["retire"] = RouterRefused(500, "stop_unconfirmed", "node-d0 stays reserved (stop-unconfirmed)")

    assert run(desk, router) == 3

    assert desk.err.lines[-1] == "router: node-d0 stays reserved (stop-unconfirmed)"
    assert desk.out.lines == []


def test_refused(desk: Desk) -> None:
    """Any other error is an error like all others (spec 1.5)."""
    router = FakeRouter(row())
    router.errors["retire"] = RouterRefused(404, "unknown_replica", "there is no slot node-d0")

    with pytest.raises(RouterRefused, match="there is no slot"):
        run(desk, router)


def test_interrupted(terminal: Desk) -> None:
    """Whoever stops waiting is told that the retirement goes on, and it does (spec 6.4, 9)."""

    def interrupt(_: SlowRouter) -> None:
        raise KeyboardInterrupt

    router = SlowRouter(interrupt)

    with pytest.raises(KeyboardInterrupt):
        run(terminal, router)

    assert terminal.err.getvalue() == (
        "router: the retirement of node-d0 goes on in the router; `retire node-d0` waits for its end again\n"
    )
    assert not router.done.is_set()
    router.done.set()
    wait_until(lambda: ("retire", "node-d0", False) in router.asked)
