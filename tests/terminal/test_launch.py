"""`launch` as far as it goes without a router."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import click
import pytest
from tests.terminal.conftest import Desk, FakeRouter

from pypto_serving_router.errors import LaunchFailed, RouterRefused, TransportError
from pypto_serving_router.terminal import launch
from pypto_serving_router.terminal.background import Background

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client


def run(desk: Desk, router: FakeRouter, **given: Any) -> int:
    asked: dict[str, Any] = {"slot": None, "host": None, "wait": False} | given
    return launch.run(desk.console, cast("Client", router), **asked)


@pytest.mark.parametrize(
    ("given", "where"), [({}, {}), ({"slot": "node-d1"}, {"slot": "node-d1"}), ({"host": "node"}, {"host": "node"})]
)
def test_a_launch(desk: Desk, given: dict[str, str], where: dict[str, str]) -> None:
    """A launch is asked for where it is wanted, and is over once it is accepted (spec 6.3)."""
    router = FakeRouter()

    assert run(desk, router, **given) == 0

    assert router.asked == [("launch", where)]
    assert desk.out.lines == ["node-d1 is starting at http://node-d1:8001; `logs node-d1 -f` shows how it gets on"]


def test_one_place_only(desk: Desk) -> None:
    """A slot names its host (spec 6.3)."""
    router = FakeRouter()

    with pytest.raises(click.UsageError, match="--host is not allowed beside it"):
        run(desk, router, slot="node-d1", host="node")

    assert router.asked == []


def test_what_cannot_be_launched(desk: Desk) -> None:
    """Nothing is said of a launch that there is not (spec 6.3, 1.5)."""
    router = FakeRouter()
    router.errors["launch"] = RouterRefused(404, "unknown_slot", "there is no slot nope")

    with pytest.raises(RouterRefused, match="no slot nope"):
        run(desk, router, slot="nope")

    assert desk.err.lines == []


def test_a_host_that_takes_its_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a moment it is shown what is waited for (spec 9)."""
    monkeypatch.setattr(launch, "LOOK_EVERY", 0.01)
    router = FakeRouter()
    answered, at_once = threading.Event(), router.launch

    def launch_slowly(where: dict[str, str]) -> dict[str, Any]:
        assert answered.wait(10)
        return at_once(where)

    router.launch = launch_slowly  # type: ignore[method-assign]
    monkeypatch.setattr(desk.err, "flush", answered.set)

    assert run(desk, router) == 0
    assert desk.err.lines == ["launching a replica (its host is being asked)"]


def test_waiting(terminal: Desk) -> None:
    """Until the replica is ready, how long it has been and what it says last are shown (spec 9)."""
    router = FakeRouter()
    router.text = b"loading shard 1 of 2\n"

    def load(passed: float) -> None:
        if passed == 70:
            router.text += b"loading shard 2 of 2\n"
        if passed == 130:
            router.rows[0] |= {"phase": "ready", "ready": True}

    terminal.at = load

    assert run(terminal, router, wait=True) == 0

    shown = terminal.err.getvalue()
    assert "node-d1 is starting: loading shard 1 of 2 (1 min 5 s)" in shown
    assert "node-d1 is starting: loading shard 2 of 2 (2 min)" in shown
    assert terminal.out.lines == ["node-d1 is ready at http://node-d1:8001 after 2 min 10 s"]
    looks = [question for question in router.asked if question[0] == "log"]
    assert len(looks) == 44, "each is a command on the host: not more than one in three seconds"


def test_a_log_that_cannot_be_read_now(desk: Desk) -> None:
    """The launch goes on where its log can't be fetched (spec 6.5)."""
    router = FakeRouter()
    router.errors["log"] = TransportError("no")
    desk.at = lambda passed: router.rows[0].update(phase="ready") if passed > 6 else None

    assert run(desk, router, wait=True) == 0
    assert desk.err.lines == ["node-d1 is starting (0 s)"]


def test_a_replica_that_ends(desk: Desk) -> None:
    """A replica that is gone before it was ready is an error, with what is known of it (spec 7.5)."""
    router = FakeRouter()

    def fail(passed: float) -> None:
        if passed == 5:
            router.rows[0] |= {"phase": "draining", "draining": True}
        if passed == 20:
            router.rows.clear()
            router.capacity["last_errors"] = {"node-d1": "exit status 1:\nno such model"}

    desk.at = fail

    with pytest.raises(LaunchFailed) as failed:
        run(desk, router, wait=True)

    assert str(failed.value) == (
        "node-d1 is gone before it was ready: exit status 1: | no such model; `logs node-d1` shows what it said"
    )
    assert "node-d1 is being stopped (5 s)" in desk.err.lines
    assert desk.out.lines == []


def test_a_slot_that_stays_reserved(desk: Desk) -> None:
    """If it could not even be stopped, that is said, too (spec 7.7)."""
    router = FakeRouter()

    def fail(_: float) -> None:
        router.rows.clear()
        router.capacity["unconfirmed"] = [{"slot": "node-d1", "reason": "stop-unconfirmed", "since": ""}]

    desk.at = fail

    with pytest.raises(LaunchFailed, match=r"gone before it was ready \(stop-unconfirmed\): no reason is known; "):
        run(desk, router, wait=True)


def test_a_replica_that_fails_at_once(desk: Desk) -> None:
    """A replica that was ready between two looks, and is not any more, is not waited for (spec 5.5)."""
    router = FakeRouter()
    desk.at = lambda _: router.rows[0].update(phase="failed", last_error="connection refused")

    with pytest.raises(LaunchFailed, match="was ready, and does not answer any more: connection refused"):
        run(desk, router, wait=True)


@pytest.mark.parametrize("launched", [True, False])
def test_interrupted(terminal: Desk, launched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops waiting is told what goes on, on a line of its own (spec 9)."""
    router = FakeRouter()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    terminal.at = interrupt
    if not launched:
        monkeypatch.setattr(Background, "answered", interrupt)  # while the host is being asked

    with pytest.raises(KeyboardInterrupt):
        run(terminal, router, wait=True)

    said = terminal.err.getvalue().rpartition("\x1b[K")[2]
    goes_on = "node-d1 goes on loading; `retire node-d1` stops it" if launched else "the launch may go on in the router"
    assert said == f"router: {goes_on}; `status` shows it\n"
