"""What happens to the router itself: signals, a sudden end, a second router."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from tests.support.fleet import sim_host
from tests.support.waiting import wait_until
from tests.support.wire import Wire

from faults.cell import Outcome, cell
from faults.scene import tell

if TYPE_CHECKING:
    from pathlib import Path

    from faults.scene import Scene


def _owned(scene: Scene, count: int, **sim: Any) -> dict[str, Any]:
    """Start a router that launches its replicas and keeps a state file."""
    fleet = {"hosts": [sim_host(range(count), sim={"keep_alive": 0.2, "decode_rate": 200, **sim})]}
    scene.start(fleet, *_state(scene), "--initial-replicas", str(count))
    scene.until_ready(count)
    scene.count()
    return fleet


def _state(scene: Scene) -> tuple[str, str]:
    state: Path = scene.harness.folder / "state"
    return "--state-file", str(state)


@cell()
def sigterm(scene: Scene) -> Outcome:
    """SIGTERM with streams under way, in front of two launched replicas."""
    _owned(scene, 2)
    streams = scene.ask_many(6, tokens=200)
    scene.under_way(6)
    began = time.monotonic()
    scene.router.signal(signal.SIGTERM)
    status = scene.router.wait()
    took = time.monotonic() - began
    assert status == 0
    assert tell(streams) == "6x complete"
    assert scene.harness.launched() == {}
    return Outcome(f"{tell(streams)}; exit status 0 after {took:.1f} s, and no replica is left")


@cell()
def sigint_twice(scene: Scene) -> Outcome:
    """SIGINT twice with streams under way, and the next router with the same state file."""
    fleet = _owned(scene, 2)
    streams = scene.ask_many(4, tokens=1000)
    scene.under_way(4)
    scene.router.signal(signal.SIGINT)
    scene.router.wait_log("stopping")
    scene.router.signal(signal.SIGINT)
    status = scene.router.wait()
    assert status == 3
    assert tell(streams) == "4x cut"
    began = time.monotonic()
    scene.start(fleet, *_state(scene), "--initial-replicas", "2")
    scene.until_ready(2, timeout=60)
    back = time.monotonic() - began
    scene.count()
    return Outcome(f"{tell(streams)}; exit status 3, which says what was left", back)


@cell()
def sighup(scene: Scene) -> Outcome:
    """SIGHUP with streams under way."""
    scene.start_sims(2)
    streams = scene.ask_many(4, tokens=200)
    scene.under_way(4)
    scene.router.signal(signal.SIGHUP)
    assert tell(streams) == "4x complete"
    return Outcome(tell(streams), scene.until_served())


@cell()
def router_killed(scene: Scene) -> Outcome:
    """The router is killed with streams under way; the next takes back what it launched."""
    fleet = _owned(scene, 2)
    before = set(scene.harness.launched())
    streams = scene.ask_many(4, tokens=1000)
    scene.under_way(4)
    scene.router.kill()
    assert tell(streams) == "4x cut"
    began = time.monotonic()
    scene.start(fleet, *_state(scene), "--initial-replicas", "2")
    scene.until_ready(2)
    back = time.monotonic() - began
    assert before & set(scene.harness.launched()), "the replicas were started anew"
    scene.count()
    return Outcome(tell(streams), back)


@cell()
def router_killed_in_a_launch(scene: Scene) -> Outcome:
    """The router is killed while a replica loads; the next one reserves it, and adopts it once it has loaded."""
    fleet = {"hosts": [sim_host([0], sim={"keep_alive": 0.2, "load_delay": 3})]}
    scene.start(fleet, *_state(scene), "--initial-replicas", "0")
    assert scene.post() == 202
    scene.router.kill()
    scene.start(fleet, *_state(scene), "--initial-replicas", "1")
    held = scene.router.replicas()["capacity"]["unconfirmed"]
    assert [one["reason"] for one in held] == ["unreachable-at-startup"]
    assert scene.post() == 409
    back = scene.until_ready(1)
    scene.count()
    return Outcome("POST /replicas 409 while nobody can tell", back)


@cell()
def router_killed_in_a_stop(scene: Scene) -> Outcome:
    """The router is killed while it stops a replica that ignores SIGTERM; the next finishes the stop."""
    fleet = _owned(scene, 1, ignore_sigterm=True)
    deleting = scene.begin(scene.router.request, "DELETE", "/replicas/node-d0", timeout=60)
    scene.router.wait_log("slot changed", to="stopping")
    scene.router.kill()
    assert deleting.exception() is not None
    scene.start(fleet, *_state(scene), "--initial-replicas", "0")

    def free() -> object:
        return scene.router.replicas()["capacity"]["free_slots"] == ["node-d0"]

    back = scene.until(free, 90, "the end of the stop")
    assert scene.harness.launched() == {}
    return Outcome("the DELETE was cut", back)


@cell()
def two_routers(scene: Scene) -> Outcome:
    """Two routers with one state file."""
    fleet = _owned(scene, 1)
    second = scene.harness.start_router(fleet, *_state(scene), wait=False)
    status = second.wait()
    assert status == 1
    assert "is held by another router" in second.stderr
    assert len({one for one in scene.harness.launched().values() if "--devices" in one}) == 1
    return Outcome(f"the second one ends with status {status}; {tell([scene.ask()])} by the first")


@cell()
def address_in_use(scene: Scene) -> Outcome:
    """A stranger listens where a replica is to be launched, and goes."""
    host = sim_host([0, 1])
    stranger = scene.harness.start_sim("--port", str(host["port_base"]), keep_alive=0.2)
    scene.start({"hosts": [host]}, "--initial-replicas", "1")
    scene.until_ready(1)
    scene.count()
    held = scene.router.replicas()["capacity"]["unconfirmed"]
    assert [(one["slot"], one["reason"]) for one in held] == [("node-d0", "address-in-use")]
    assert stranger.state()["requests"] == 0
    stranger.stop()
    freed = scene.router.request("DELETE", "/replicas/node-d0", timeout=30).status
    assert freed == 200
    return Outcome(f"the next slot was taken; the stranger's was freed by DELETE ({freed})", scene.until_served())


@cell()
def launched_replica_killed(scene: Scene) -> Outcome:
    """A launched replica is killed with streams under way, and replaced (after 1 s and the back-off of 10 s)."""
    fleet = {"hosts": [sim_host([0, 1], sim={"keep_alive": 0.2, "decode_rate": 200})]}
    scene.start(fleet, "--initial-replicas", "2", "--replace-after", "1")
    scene.until_ready(2)
    scene.count()
    streams = scene.ask_many(4, tokens=200)
    scene.under_way(4)
    victim = next(pid for pid, what in scene.harness.launched().items() if "--devices 0" in what)
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    scene.until_ready(1)
    seen = [scene.ask() for _ in range(4)]
    assert tell(seen) == "4x complete"
    scene.until_ready(2, timeout=60)
    return Outcome(f"{tell(streams)}; then {tell(seen)}", time.monotonic() - began)


@cell()
def shutdown_with_stubborn_clients(scene: Scene) -> Outcome:
    """SIGTERM with clients that never read, never write and never end their head (drain timeout of 3 s)."""
    scene.start_sims(1)
    wires = [Wire.connect(scene.router.port, receive_buffer=4096) for _ in range(3)]
    wires[0].send(b"POST /v1/x HT")
    scene.begin(scene.ask, X_Sim_Faults='{"break_with": "hang", "break_after": 1}')
    scene.under_way(1)
    began = time.monotonic()
    scene.router.signal(signal.SIGTERM)
    status = scene.router.wait()
    took = time.monotonic() - began
    for wire in wires:
        wire.close()
    assert status == 0
    assert took < 10
    wait_until(lambda: scene.sims[0].state()["running"] == 0, what="the end of the generation")
    return Outcome(f"exit status 0 after {took:.1f} s")
