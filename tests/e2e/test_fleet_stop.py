"""Stopping replicas: draining, confirming, and what is left where a stop can't be confirmed."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import chat, request
from tests.support.fleet import sim_host
from tests.support.owned import (
    capacity,
    launch,
    phases,
    recorded,
    retire,
    slot_held_up,
    slot_processes,
    unconfirmed,
    wait_for_command,
)
from tests.support.processes import installed
from tests.support.slots import lives
from tests.support.talk import CHAT, held, post
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.harness import Harness
    from tests.support.router import Router
    from tests.support.sim import Sim
    from tests.support.talk import Talker


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests that take their time."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def stoppable(folder: Path, devices: tuple[int, ...] = (0,), **fields: Any) -> dict[str, Any]:
    """A host whose stop command works only where the file `may-stop` is in `folder`."""
    script = 'echo $$ >"$0"; exec "$@"'
    stop = f'test -e {folder}/may-stop && kill "$(cat {folder}/{{slot}}.pid)" || {{ echo no such job; exit 4; }}'
    return sim_host(
        devices,
        serve_command=["sh", "-c", script, f"{folder}/{{slot}}.pid", installed("pypto-serving-sim")],
        stop_command=["sh", "-c", stop],
        **fields,
    )


# --- draining ------------------------------------------------------------------------------------


def test_a_stop_drains_first(
    harness: Harness, talk: Callable[[Router], Talker], background: ThreadPoolExecutor
) -> None:
    """F15: What is in flight finishes, sessions old and new go elsewhere, then it is stopped (spec 6.4, 7.8, 3.8)."""
    router = harness.start_router({"hosts": [sim_host([0, 1])]}, "--initial-replicas", "2", "--drain-timeout", "60")
    router.wait_ready(2)
    talker = talk(router)
    home = talker.say("Hello")
    name = home.replica
    other = ({"node-d0", "node-d1"} - {name}).pop()
    logs = harness.folder / "logs"

    with router.connect(timeout=60) as wire:
        wire.send(
            post(chat("Hello", stream=True, max_tokens=2), X_Sim_Faults='{"trickle": 0.002}', X_Session_Id=home.session)
        )
        wire.read_until(b"data: ")
        answers = [background.submit(retire, router, name) for _ in range(3)]
        wait_until(lambda: phases(router)[name] == "draining", what="the draining")
        draining = next(one for one in router.replicas()["replicas"] if one["name"] == name)
        turns = [talker.say("More", session=home.session), *(talker.say("Hello") for _ in range(2))]
        assert not any(answer.done() for answer in answers)
        wire.read_until(b"data: [DONE]")
        wire.read_until(b"0\r\n\r\n")
    retired = [answer.result(90) for answer in answers]

    assert (draining["draining"], draining["outstanding"], draining["sessions"]) == (True, 1, 0)
    assert [turn.replica for turn in turns] == [other] * 3
    assert [turn.placement for turn in turns] == ["new"] * 3, "its pin was dropped at once"
    assert [answer.status for answer in retired] == [200] * 3, "they share one retirement"
    assert set(slot_processes(logs)) == {other}
    assert capacity(router)["free_slots"] == [name]
    assert len(router.wait_logs(1, "slot changed", slot=name, to="stopping")) == 1
    assert retire(router, name).status == 404


def test_what_outlasts_the_drain_is_cut(harness: Harness) -> None:
    """After `--drain-timeout` the replica is stopped whatever is in flight, and that ends cut (spec 7.8, 4.6)."""
    router = harness.start_router({"hosts": [sim_host()]}, "--drain-timeout", "0.5")
    router.wait_ready(1)

    with held(router) as requests:
        assert retire(router, "node-d0").status == 200
        requests[0].wire.read_to_end()

    assert not requests[0].wire.received.endswith(b"0\r\n\r\n")
    causes = [one["cause"] for one in router.wait_logs(1, "slot changed", to="stopping")]
    assert causes == ["drain-timeout"]


def test_a_stop_goes_on_without_its_caller(harness: Harness) -> None:
    """A caller that leaves takes nothing back (spec 6.4)."""
    router = harness.start_router({"hosts": [sim_host()]}, "--drain-timeout", "1")
    router.wait_ready(1)

    with held(router):
        with router.connect() as wire:
            wire.send(b"DELETE /replicas/node-d0 HTTP/1.1\r\nHost: router\r\n\r\n")
            wait_until(lambda: phases(router) == {"node-d0": "draining"}, what="the draining")
        wait_until(lambda: capacity(router)["free_slots"] == ["node-d0"], what="the slot's freedom", timeout=45)

    assert slot_processes(harness.folder / "logs") == {}


def test_who_can_be_retired(start_sim: Callable[..., Sim], harness: Harness) -> None:
    """404 for what is not there or was never launched, 409 for what the router did not launch (spec 6.4, 7.14)."""
    sim = start_sim()
    router = harness.start_router(
        {"replicas": [{"host": "127.0.0.1", "port": sim.port}], "hosts": [sim_host()]}, "--initial-replicas", "0"
    )

    answers = [retire(router, name) for name in ("nothing", "node-d0", "node%2Dd0", f"127.0.0.1:{sim.port}")]

    assert [answer.status for answer in answers] == [404, 404, 404, 409]
    assert [answer.json()["error"]["code"] for answer in answers] == ["unknown_replica"] * 3 + ["not_owned"]
    assert retire(router, f"127.0.0.1%3A{sim.port}").status == 409
    assert router.request("POST", CHAT, body=chat("Hello")).status == 200


# --- stopping what has not even started ----------------------------------------------------------


def test_a_replica_that_loads_can_be_stopped(harness: Harness) -> None:
    """It need not be ready to be retired (spec 6.4)."""
    router = harness.start_router({"hosts": [sim_host(sim={"load_delay": 600})]})
    wait_until(lambda: slot_processes(harness.folder / "logs"), what="the process")

    assert retire(router, "node-d0").status == 200

    assert slot_processes(harness.folder / "logs") == {}
    assert capacity(router)["free_slots"] == ["node-d0"]
    assert capacity(router)["last_errors"] == {}, "that was no failure"


def test_a_launch_under_way_is_awaited_and_stopped(harness: Harness, background: ThreadPoolExecutor) -> None:
    """DELETE while the start command runs waits for its outcome, then stops it; both callers hear of it (spec 6.4)."""
    state_file = harness.folder / "state"
    router = harness.start_router({"hosts": [sim_host()]}, "--initial-replicas", "0", "--state-file", str(state_file))
    logs = harness.folder / "logs"

    with slot_held_up(logs, "node-d0") as wait_for:
        launching = background.submit(launch, router)
        wait_for("start")
        retiring = background.submit(retire, router, "node-d0")
        wait_until(lambda: recorded(state_file)["node-d0"].get("leaving"), what="the slot to be leaving")
        assert not launching.done()
        assert not retiring.done()
    launched, retired = launching.result(90), retiring.result(90)

    assert retired.status == 200
    assert (launched.status, launched.json()["error"]["code"]) == (502, "launch_failed")
    assert "retired while it was launched" in launched.json()["message"]
    assert slot_processes(logs) == {}
    assert capacity(router)["free_slots"] == ["node-d0"]


@pytest.mark.parametrize("by_command", [False, True], ids=["by signals", "by a stop command"])
def test_a_late_stop_does_not_touch_the_next_replica(
    harness: Harness, background: ThreadPoolExecutor, by_command: bool
) -> None:
    """A stop that was held up on its host, and outlived its router, finds a newer launch there (spec 7.10).

    Neither its signals nor its stop command, which knows the slot by its name alone, reach that.
    """
    host = stoppable(harness.folder) if by_command else sim_host()
    (harness.folder / "may-stop").touch()
    state, logs = ("--state-file", str(harness.folder / "state")), harness.folder / "logs"
    first = harness.start_router({"hosts": [host]}, *state)
    first.wait_ready(1)
    (old,) = slot_processes(logs)["node-d0"].values()

    with slot_held_up(logs, "node-d0"):
        background.submit(retire, first, "node-d0")
        late = wait_for_command(logs / "node-d0.lock", "node-d0", "stop")
        os.kill(late, signal.SIGSTOP)
        first.kill()
    router = harness.start_router({"hosts": [host]}, *state, "--initial-replicas", "0")
    wait_until(lambda: capacity(router)["free_slots"] == ["node-d0"], what="the end of the stop, done again")
    assert launch(router).status == 202
    router.wait_ready(1)
    new = slot_processes(logs)["node-d0"]
    assert min(new.values()) > old

    os.kill(late, signal.SIGCONT)
    wait_until(lambda: not lives(late), what="the end of the late stop")

    assert slot_processes(logs)["node-d0"] == new
    assert router.request("POST", CHAT, body=chat("Hello")).status == 200
    assert phases(router) == {"node-d0": "ready"}
    assert retire(router, "node-d0").status == 200
    assert slot_processes(logs) == {}


# --- ending all of it ----------------------------------------------------------------------------


def test_what_left_the_group_is_ended_too(harness: Harness) -> None:
    """A child in a session of its own is found by its mark, and ended before the slot is free (spec 7.6, 7.7)."""
    host = sim_host(sim={"escape": 600})
    router = harness.start_router({"hosts": [host]})
    router.wait_ready(1)
    state = request(f"http://127.0.0.1:{host['port_base']}/sim/state").json()
    assert lives(state["escaped_pid"])

    assert retire(router, "node-d0").status == 200

    assert not lives(state["pid"])
    assert not lives(state["escaped_pid"])


def test_a_stop_that_cannot_be_confirmed_reserves_the_slot(harness: Harness) -> None:
    """A failing stop command is a 500; its slot is reserved until a stop succeeds or someone says so (spec 6.4)."""
    folder = harness.folder
    router = harness.start_router({"hosts": [stoppable(folder, (0, 1))]}, "--initial-replicas", "2")
    router.wait_ready(2)
    logs = folder / "logs"
    pids = {slot: next(iter(found)) for slot, found in slot_processes(logs).items()}

    failed = retire(router, "node-d0")
    assert retire(router, "node-d1").status == 500
    assert (failed.status, failed.json()["error"]["code"]) == (500, "stop_unconfirmed")
    assert (failed.json()["slot"], failed.json()["reason"]) == ("node-d0", "stop-unconfirmed")
    assert "no such job" in failed.json()["message"]
    left = capacity(router)
    assert (left["free_slots"], left["owned"], phases(router)) == ([], 2, {})
    assert unconfirmed(router) == {"node-d0": "stop-unconfirmed", "node-d1": "stop-unconfirmed"}
    assert "no such job" in left["last_errors"]["node-d0"]
    assert launch(router).status == launch(router, slot="node-d0").status == 409
    assert all(lives(pid) for pid in pids.values())
    assert router.request("POST", CHAT, body=chat("Hello")).status == 503, "it is out of rotation all the same"

    assert retire(router, "node-d0").status == 500, "tried again, in vain"
    (folder / "may-stop").touch()
    assert retire(router, "node-d0").status == 200
    assert not lives(pids["node-d0"])
    (folder / "may-stop").unlink()
    assert retire(router, "node-d1", force=True).status == 200
    assert lives(pids["node-d1"]), "freed on the operator's word alone"
    assert capacity(router)["free_slots"] == ["node-d0", "node-d1"]

    again = launch(router, slot="node-d1")
    assert again.status == 409, "the word was wrong: something answers there"
    assert unconfirmed(router) == {"node-d1": "address-in-use"}
    router.may_leave_processes = True


def test_the_end_stops_what_was_launched(start_sim: Callable[..., Sim], harness: Harness) -> None:
    """SIGTERM stops every owned replica, at the same time, and leaves static ones alone (spec 7.11, 7.14)."""
    sim = start_sim()
    static = {"host": "127.0.0.1", "port": sim.port}
    hosts = [sim_host([0, 1, 2]), sim_host([3], name="loading", sim={"load_delay": 600})]
    router = harness.start_router({"replicas": [static], "hosts": hosts}, "--initial-replicas", "4")
    router.wait_ready(4)
    assert set(slot_processes(harness.folder / "logs")) == {"node-d0", "node-d1", "node-d2", "loading-d3"}

    router.signal(signal.SIGTERM)
    assert router.wait() == 0

    assert slot_processes(harness.folder / "logs") == {}
    assert sim.status is None
    moves = [(one["to"], one["slot"]) for one in router.log_events("slot changed")]
    first_free = next(index for index, (to, _) in enumerate(moves) if to == "free")
    assert len([slot for to, slot in moves[:first_free] if to == "stopping"]) == 4


def test_the_end_lets_owned_replicas_finish(harness: Harness) -> None:
    """What an owned replica is at when SIGTERM comes is finished before it is stopped (spec 7.11, 7.8)."""
    router = harness.start_router({"hosts": [sim_host()]}, "--drain-timeout", "60")
    router.wait_ready(1)

    with router.connect(timeout=60) as wire:
        wire.send(post(chat("Hello", stream=True, max_tokens=2), X_Sim_Faults='{"trickle": 0.002}'))
        wire.read_until(b"data: ")
        router.signal(signal.SIGTERM)
        router.wait_log("slot changed", to="draining", cause="shutdown")
        assert slot_processes(harness.folder / "logs")
        wire.read_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert router.wait() == 0
    assert router.log_events("slot changed", to="stopping")[0]["cause"] == "idle"
    assert slot_processes(harness.folder / "logs") == {}


def test_an_end_without_confirmation_is_told(harness: Harness) -> None:
    """Exit status 3 says that a replica may still run (spec 1.4)."""
    router = harness.start_router({"hosts": [stoppable(harness.folder)]})
    router.wait_ready(1)

    router.signal(signal.SIGTERM)
    assert router.wait() == 3

    assert router.log_events("stopped")[0]["confirmed"] is False
    assert router.log_events("slot changed", to="unconfirmed")[0]["slot"] == "node-d0"
    assert slot_processes(harness.folder / "logs")


def test_the_end_awaits_launches(harness: Harness, background: ThreadPoolExecutor) -> None:
    """A launch under way at SIGTERM is awaited and stopped; its caller gets an answer (spec 7.11)."""
    state_file = harness.folder / "state"
    router = harness.start_router({"hosts": [sim_host()]}, "--initial-replicas", "0", "--state-file", str(state_file))
    logs = harness.folder / "logs"

    with slot_held_up(logs, "node-d0") as wait_for:
        launched = background.submit(launch, router)
        wait_for("start")
        router.signal(signal.SIGTERM)
        wait_until(lambda: recorded(state_file)["node-d0"].get("leaving"), what="the slot to be leaving")
        assert router.status is None
    assert router.wait() == 0

    assert launched.result(90).status == 502
    assert slot_processes(logs) == {}
