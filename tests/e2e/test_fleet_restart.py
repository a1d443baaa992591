"""A router that was killed and comes back: what it adopts, what it reserves, what it refuses to start with."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import chat, request
from tests.support.fleet import sim_host
from tests.support.owned import capacity, launch, phases, recorded, retire, slot_processes, unconfirmed
from tests.support.processes import installed
from tests.support.slots import lives
from tests.support.sshd import write_ssh_wrapper
from tests.support.talk import CHAT, held
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.harness import Harness
    from tests.support.router import Router
    from tests.support.sim import Sim


@pytest.fixture
def restart(harness: Harness) -> Callable[..., Router]:
    """Start a router on the test's state file, after killing the one before."""
    routers: list[Router] = []

    def start(fleet: dict[str, Any], *args: str, **options: Any) -> Router:
        for earlier in routers:
            with contextlib.suppress(ProcessLookupError):
                earlier.kill()
        options_ = ("--state-file", str(harness.folder / "state"), "--health-interval", "0.3", *args)
        routers.append(harness.start_router(fleet, *options_, **options))
        return routers[-1]

    return start


def gated(gate: Path, device: int, **fields: Any) -> dict[str, Any]:
    """A host whose replica loads until a file is there."""
    script = 'until [ -e "$0" ]; do sleep 0.05; done; exec "$@"'
    command = ["sh", "-c", script, str(gate), installed("pypto-serving-sim")]
    return sim_host([device], name="gated", serve_command=command, **fields)


def test_each_kind_of_replica_is_taken_back(harness: Harness, restart: Callable[..., Router]) -> None:
    """200 is adopted and routable, 503 adopted and starting, silence reserved, be it loading or dead (spec 7.13)."""
    hosts = [sim_host([0, 1, 2]), gated(harness.folder / "gate", 3)]
    first = restart({"hosts": hosts}, "--initial-replicas", "4")
    first.wait_ready(3)
    logs = harness.folder / "logs"
    before = slot_processes(logs)
    assert set(before) == {"node-d0", "node-d1", "node-d2", "gated-d3"}
    base = hosts[0]["port_base"]
    first.kill()
    request(f"http://127.0.0.1:{base + 1}/sim/faults", "POST", body={"health": "unready"})
    for pid in before.pop("node-d2"):
        os.kill(pid, signal.SIGKILL)

    router = restart({"hosts": hosts}, "--initial-replicas", "4", "--replace-after", "600")
    assert phases(router) == {"node-d0": "ready", "node-d1": "starting"}, "as soon as it listens"
    assert router.request("POST", CHAT, body=chat("Hello")).status == 200
    assert unconfirmed(router) == {"node-d2": "unreachable-at-startup", "gated-d3": "unreachable-at-startup"}
    assert capacity(router)["free_slots"] == []
    assert launch(router, slot="node-d2").status == 409

    request(f"http://127.0.0.1:{base + 1}/sim/faults", "DELETE")
    (harness.folder / "gate").touch()
    router.wait_ready(3)
    assert phases(router) == {"node-d0": "ready", "node-d1": "ready", "gated-d3": "ready"}
    # A slot's processes may be more by now, since what was held at the gate has gone on: not its launches.
    launches = {slot: set(found.values()) for slot, found in slot_processes(logs).items()}
    assert launches == {slot: set(found.values()) for slot, found in before.items()}, "not one was launched anew"
    assert unconfirmed(router) == {"node-d2": "unreachable-at-startup"}
    assert retire(router, "node-d2").status == 200
    assert capacity(router)["free_slots"] == ["node-d2"]

    router.signal(signal.SIGTERM)
    assert router.wait() == 0
    assert slot_processes(logs) == {}, "what was adopted is stopped like what was launched"
    assert {one["state"] for one in recorded(harness.folder / "state").values()} == {"free"}


def test_a_drain_and_a_reservation_outlive_a_crash(harness: Harness, restart: Callable[..., Router]) -> None:
    """A recorded drain is resumed as a stop; an unconfirmed slot stays so, though its replica answers (spec 7.13)."""
    hosts = [sim_host([0, 1]), sim_host([2], name="stuck", stop_command=["false"])]
    first = restart({"hosts": hosts}, "--initial-replicas", "3", "--drain-timeout", "60")
    first.wait_ready(3)
    logs = harness.folder / "logs"
    assert retire(first, "stuck-d2").status == 500
    with held(first, count=2), first.connect() as wire:
        wire.send(b"DELETE /replicas/node-d0 HTTP/1.1\r\nHost: router\r\n\r\n")
        wait_until(lambda: recorded(harness.folder / "state")["node-d0"]["state"] == "draining", what="the drain")
        first.kill()
    assert set(slot_processes(logs)) == {"node-d0", "node-d1", "stuck-d2"}

    router = restart({"hosts": hosts}, "--initial-replicas", "2")

    wait_until(lambda: "node-d0" not in slot_processes(logs), timeout=45, what="the end of what was draining")
    wait_until(lambda: phases(router) == {"node-d1": "ready"}, what="the end of its row")
    assert capacity(router)["free_slots"] == ["node-d0"]
    assert unconfirmed(router) == {"stuck-d2": "stop-unconfirmed"}
    assert request(f"http://127.0.0.1:{hosts[1]['port_base'] + 2}/health").status == 200
    router.signal(signal.SIGTERM)
    assert router.wait() == 3


def test_what_is_adopted_unready_has_a_launch_timeout_of_its_own(
    harness: Harness, restart: Callable[..., Router]
) -> None:
    """It counts from the adoption; after it the replica is stopped like any that never got ready (spec 7.13, 7.5)."""
    host = sim_host()
    first = restart({"hosts": [host]})
    first.wait_ready(1)
    first.kill()
    request(f"http://127.0.0.1:{host['port_base']}/sim/faults", "POST", body={"health": "unready"})

    router = restart({"hosts": [host]}, "--launch-timeout", "2")

    assert phases(router) == {"node-d0": "starting"}
    wait_until(lambda: capacity(router)["free_slots"] == ["node-d0"], what="the end of the launch timeout")
    assert "not ready within 2 s" in capacity(router)["last_errors"]["node-d0"]
    assert slot_processes(harness.folder / "logs") == {}


def test_a_stranger_is_not_adopted(
    start_sim: Callable[..., Sim], harness: Harness, restart: Callable[..., Router]
) -> None:
    """Where the recorded process is gone and another one answers, that one is left alone (spec 7.13, 7.14)."""
    host = sim_host()
    first = restart({"hosts": [host]})
    first.wait_ready(1)
    logs = harness.folder / "logs"
    (pid,) = slot_processes(logs)["node-d0"]
    first.kill()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not lives(pid), what="its end")
    stranger = start_sim("--port", str(host["port_base"]))
    router = restart({"hosts": [host]})

    assert phases(router) == {}
    assert unconfirmed(router) == {"node-d0": "address-in-use"}
    assert "a stranger answers" in capacity(router)["last_errors"]["node-d0"]
    assert retire(router, "node-d0").status == 500
    router.signal(signal.SIGTERM)
    assert router.wait() == 0, "nothing there was the router's"
    assert stranger.status is None
    assert stranger.state()["requests"] == 0


def test_a_signal_does_not_wait_for_a_host_that_is_slow_to_answer(
    harness: Harness, restart: Callable[..., Router]
) -> None:
    """While it looks around after a crash, too, it stops what it has launched, and ends (spec 7.11)."""
    hosts = [sim_host([0]), sim_host([1], name="far", ssh="far", address="127.0.0.1")]
    ssh = harness.folder / "ssh.sh"
    ssh.write_text('for command; do :; done; exec sh -c "$command"')
    write_ssh_wrapper(harness.folder / "bin", ["sh", str(ssh)])
    path = {"PATH": f"{harness.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    first = restart({"hosts": hosts}, "--initial-replicas", "2", env=path)
    first.wait_ready(2)
    first.kill()
    slow = f'case "$*" in *" inspect-all "*) echo $$ >"{harness.folder}/asked"; exec sleep 60; esac\n'
    ssh.write_text(slow + ssh.read_text())

    router = restart({"hosts": hosts}, env=path, wait=False)
    wait_until((harness.folder / "asked").exists, what="the question")
    router.signal(signal.SIGTERM)

    assert router.wait(20) == 0
    assert slot_processes(harness.folder / "logs") == {}
    assert {one["state"] for one in recorded(harness.folder / "state").values()} == {"free"}
    assert router.log_events("listening") == []
    assert not lives(int((harness.folder / "asked").read_text())), "nobody waits for its answer any more"


def test_a_slot_that_is_no_longer_declared_is_kept(harness: Harness, restart: Callable[..., Router]) -> None:
    """Its record is kept, logged and listed, and its devices stay taken until someone says otherwise (spec 7.13)."""
    host = sim_host([0, 1])
    restart({"hosts": [host]}, "--initial-replicas", "2").wait_ready(2)

    router = restart({"hosts": [{**host, "devices": [0]}]}, "--initial-replicas", "1")

    assert phases(router) == {"node-d0": "ready"}
    assert unconfirmed(router) == {"node-d1": "undeclared"}
    assert b'slot_state{host="node",slot="node-d1",state="unconfirmed"} 1' in router.request("GET", "/metrics").body
    assert router.wait_log("slot is not declared any more")["slot"] == "node-d1"
    assert retire(router, "node-d1").status == 500
    assert set(recorded(harness.folder / "state")) == {"node-d0", "node-d1"}
    assert set(slot_processes(harness.folder / "logs")) == {"node-d0", "node-d1"}
    back = restart({"hosts": [host]}, "--initial-replicas", "1")
    assert phases(back) == {"node-d0": "ready", "node-d1": "ready"}, "declared again, it is adopted after all"


@pytest.mark.parametrize("lock", ["in place", "removed"])
def test_a_state_file_has_one_router(harness: Harness, restart: Callable[..., Router], lock: str) -> None:
    """It is private, and a second router that wants it ends with status 1 and says why (spec 7.12, 1.4)."""
    host = sim_host()
    restart({"hosts": [host]}).wait_ready(1)
    state = harness.folder / "state"
    if lock == "removed":
        state.with_name("state.lock").unlink()

    second = harness.start_router({"hosts": [sim_host()]}, "--state-file", str(state), wait=False)

    assert second.wait() == 1
    assert f"the state file {state} is held by another router" in second.stderr
    assert [one.name for one in harness.folder.glob("state*") if stat.S_IMODE(one.stat().st_mode) != 0o600] == []
    assert set(slot_processes(harness.folder / "logs")) == {"node-d0"}, "it launched nothing"


@pytest.mark.parametrize("content", [b"{", b'{"version": 99, "slots": []}'], ids=["cut", "of another version"])
def test_a_state_file_that_cannot_be_read_stops_the_start(
    harness: Harness, restart: Callable[..., Router], content: bytes
) -> None:
    """Forgetting in silence who holds the cards would be worse: exit 1, and the file is left alone (spec 7.13)."""
    state = harness.folder / "state"
    state.write_bytes(content)

    router = restart({"hosts": [sim_host()]}, wait=False)

    assert router.wait() == 1
    complaint = router.stderr.splitlines()[-1]
    assert complaint.startswith(f"pypto-serving-router: the state file {state} ")
    assert router.log_events("slot changed") == []
    assert state.read_bytes() == content


def test_nothing_is_launched_that_cannot_be_written_down(harness: Harness) -> None:
    """Where the state file can't be written, a launch is refused before its command leaves (spec 7.12)."""
    folder = harness.folder / "disk"
    folder.mkdir()
    router = harness.start_router(
        {"hosts": [sim_host()]}, "--initial-replicas", "0", "--state-file", str(folder / "state")
    )
    shutil.rmtree(folder)

    refused = launch(router)

    assert (refused.status, refused.json()["error"]["code"]) == (502, "launch_failed")
    assert "can't be written" in refused.json()["message"]
    assert slot_processes(harness.folder / "logs") == {}
    assert capacity(router)["free_slots"] == ["node-d0"]
    folder.mkdir()
    assert launch(router).status == 202
    assert recorded(folder / "state")["node-d0"]["state"] in ("starting", "ready")
