"""kill -9 of the router at any step: no slot is free while its process lives, and no process is forgotten."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fleet import sim_host
from tests.support.owned import launch, phases, recorded, retire, slot_held_up, slot_processes, unconfirmed
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.harness import Harness
    from tests.support.router import Router

ROUNDS = int(os.environ.get("PYPTO_TEST_CRASHES", "3"))
"""Crashes at a random moment, each with a restart."""


class Crashing:
    """A fleet whose router is killed again and again; after each restart it is compared with the machine."""

    def __init__(
        self, harness: Harness, hosts: list[dict[str, Any]], *args: str, env: dict[str, str | None] | None = None
    ) -> None:
        self.logs = harness.folder / "logs"
        self.state = harness.folder / "state"
        self.slots = [f"{host['name']}-d{device}" for host in hosts for device in host["devices"]]
        self._harness = harness
        self._hosts = hosts
        self._args = args
        self._env = env
        self.router = self._start()

    def _start(self) -> Router:
        options = ("--state-file", str(self.state), "--initial-replicas", "0", "--health-interval", "0.2")
        return self._harness.start_router({"hosts": self._hosts}, *options, *self._args, env=self._env)

    def crash(self) -> None:
        """Kill the router and start another, which must know of every process."""
        self.router.kill()
        self.router = self._start()
        self.check()

    def check(self) -> None:
        """Compare what the router says with what runs."""
        view = self.router.replicas()
        free = set(view["capacity"]["free_slots"])
        held = {one["slot"] for one in view["replicas"]} | {one["slot"] for one in view["capacity"]["unconfirmed"]}
        running = slot_processes(self.logs)
        story = f"{view}\n{running}\n{self.state.read_text() if self.state.exists() else 'no state'}"
        assert not free & set(running), f"free, and yet running:\n{story}"
        assert set(running) <= held, f"forgotten:\n{story}"
        assert free | held >= set(self.slots), f"neither free nor held:\n{story}"
        for found in running.values():
            assert len(set(found.values())) == 1, f"two launches on one slot:\n{story}"

    def settle(self) -> None:
        """Retire whatever is there: in the end nothing runs, and every slot is free."""
        deadline = time.monotonic() + 120
        while True:
            names = set(phases(self.router)) | set(unconfirmed(self.router))
            if not names:
                break
            assert time.monotonic() < deadline, f"not settled: {self.router.replicas()}"
            with ThreadPoolExecutor(len(names)) as pool:
                list(pool.map(lambda name: retire(self.router, name), names))
        assert slot_processes(self.logs) == {}
        assert set(self.router.replicas()["capacity"]["free_slots"]) == set(self.slots)


def in_background(act: Callable[[], object]) -> threading.Thread:
    """Do something whose answer a crash may well cut off."""

    def run() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def wait_recorded(state: Path, slot: str, *wanted: str) -> None:
    wait_until(
        lambda: recorded(state).get(slot, {}).get("state") in wanted, timeout=45, what=f"{slot} recorded as {wanted}"
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_crash_at_each_step_of_a_launch_and_a_stop(harness: Harness) -> None:
    """X1: At every state that is written down the router is killed, and the next knows what runs (spec 7.12, 7.13)."""
    crashing = Crashing(harness, [sim_host([0], sim={"load_delay": 1.5})], "--drain-timeout", "30")
    slot = "node-d0"

    # launching, before the start command has left
    waiting = [in_background(lambda: launch(crashing.router))]
    wait_recorded(crashing.state, slot, "launching")
    crashing.crash()
    crashing.settle()

    # launching, with the start command on its way: it lands when the next router runs
    with slot_held_up(crashing.logs, slot) as wait_for:
        waiting.append(in_background(lambda: launch(crashing.router)))
        wait_for("start")
        crashing.crash()
        assert unconfirmed(crashing.router) == {slot: "unreachable-at-startup"}
        assert launch(crashing.router).status == 409
    wait_until(lambda: slot in slot_processes(crashing.logs), timeout=45, what="the late start")
    crashing.check()
    wait_until(lambda: phases(crashing.router) == {slot: "ready"}, timeout=45, what="its adoption")
    crashing.settle()

    # launching, and retired by the next router before the late start lands: whichever is first, nothing is left
    with slot_held_up(crashing.logs, slot) as wait_for:
        waiting.append(in_background(lambda: launch(crashing.router)))
        wait_for("start")
        crashing.crash()
        waiting.append(in_background(lambda: retire(crashing.router, slot)))
        wait_for("stop")
    wait_until(lambda: not unconfirmed(crashing.router) and not phases(crashing.router), timeout=45, what="the end")
    crashing.settle()

    # starting
    assert launch(crashing.router).status == 202
    wait_recorded(crashing.state, slot, "starting")
    (pid,) = slot_processes(crashing.logs)[slot]
    crashing.crash()
    wait_until(lambda: phases(crashing.router) == {slot: "ready"}, timeout=45, what="its adoption")

    # ready, and stopping with the stop command on its way
    crashing.crash()
    assert phases(crashing.router) == {slot: "ready"}
    assert set(slot_processes(crashing.logs)[slot]) == {pid}
    with slot_held_up(crashing.logs, slot) as wait_for:
        waiting.append(in_background(lambda: retire(crashing.router, slot)))
        wait_for("stop")
        crashing.crash()
        assert set(slot_processes(crashing.logs)[slot]) == {pid}
        assert launch(crashing.router).status == 409
    wait_until(lambda: not phases(crashing.router), timeout=45, what="the end of the resumed stop")
    crashing.check()
    crashing.settle()
    for thread in waiting:
        thread.join(60)


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * ROUNDS)
@pytest.mark.parametrize("far", [False, pytest.param(True, marks=pytest.mark.ssh)], ids=["local", "ssh"])
def test_crashes_at_any_moment(harness: Harness, request: pytest.FixtureRequest, far: bool) -> None:
    """Launches and stops cut off at random moments: the books always agree with the machine (spec 7.13)."""
    seed = int(os.environ.get("PYPTO_TEST_SEED", random.SystemRandom().randrange(1_000_000)))
    chance = random.Random(seed)
    slow = {"load_delay": 1.0, "escape": 600}
    env: dict[str, str | None] | None = None
    if far:
        env = {"PATH": f"{request.getfixturevalue('sshd').bin}{os.pathsep}{os.environ['PATH']}"}
        hosts = [sim_host([0, 1], ssh="node01", address="127.0.0.1"), sim_host([2], name="slow", sim=slow)]
    else:
        hosts = [sim_host([0, 1]), sim_host([2], name="slow", sim=slow)]
    crashing = Crashing(harness, hosts, env=env)
    threads = []
    try:
        for _ in range(ROUNDS):
            plan = [(chance.choice(crashing.slots), chance.random() < 0.5) for _ in range(4)]
            for slot, start in plan:
                act = launch if start else retire
                where = {"slot": slot} if start else {"name": slot}
                threads.append(in_background(lambda act=act, where=where: act(crashing.router, **where)))  # type: ignore[misc]
            threading.Event().wait(chance.choice([chance.uniform(0, 0.1), chance.uniform(0, 1.5)]))
            crashing.crash()
        crashing.settle()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        for thread in threads:
            thread.join(60)
    assert json.loads(crashing.state.read_bytes())["version"] == 1
