"""Launches through a broker: one that queues, one that runs the work elsewhere, one that refuses."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import chat, request
from tests.support.fleet import sim_host
from tests.support.owned import capacity, launch, phases, retire, slot_processes, unconfirmed
from tests.support.slots import lives
from tests.support.talk import CHAT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.harness import Harness

SUBMIT = 'printf %s "$1" > "$0.part" && mv "$0.part" "$0" && echo submitted'
"""Leaves the work in a file, and has no more to do with it."""


class Broker:
    """Runs what is left in its folder, as processes that have nothing to do with whoever left it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids: dict[str, int] = {}
        self._jobs: list[subprocess.Popen[bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def host(self, devices: list[int], **fields: Any) -> dict[str, Any]:
        """A host whose launches go through this broker."""
        wrapper = ["sh", "-c", SUBMIT, f"{self.folder}/{{slot}}.job"]
        return sim_host(devices, launch_wrapper=wrapper, **fields)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for job in self._jobs:
            job.kill()
            job.wait()

    def _run(self) -> None:
        clean = {"PATH": os.environ["PATH"]}
        while not self._stop.wait(0.02):
            for path in self.folder.glob("*.job"):
                job = subprocess.Popen(["sh", "-c", f"exec {path.read_text()}"], env=clean, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
                path.unlink()
                self._jobs.append(job)
                self.pids[path.stem] = job.pid
                (self.folder / f"{path.stem}.pid").write_text(str(job.pid))
            for job in self._jobs:
                job.poll()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker; what it runs ends with the test."""
    folder = tmp_path / "spool"
    folder.mkdir()
    running = Broker(folder)
    yield running
    running.close()


def test_a_broker_that_queues(harness: Harness) -> None:
    """A wrapper that waits for its turn and then runs the work is a process like any other, all along (spec 7.5)."""
    gate = harness.folder / "your-turn"
    wrapper = ["sh", "-c", 'echo queued; until [ -e "$0" ]; do sleep 0.05; done; sh -c "$1"', str(gate)]
    host = sim_host([0, 1], launch_wrapper=wrapper, served_model_name='it\'s "my" $MODEL')
    router = harness.start_router({"hosts": [host]}, "--initial-replicas", "2")
    logs = harness.folder / "logs"
    wait_until(lambda: set(slot_processes(logs)) == {"node-d0", "node-d1"}, what="both in the queue")

    assert retire(router, "node-d1").status == 200, "taken back from the queue"
    assert set(slot_processes(logs)) == {"node-d0"}
    assert phases(router) == {"node-d0": "starting"}
    gate.touch()
    router.wait_ready(1)
    models = router.request("GET", "/v1/models").json()
    assert [model["id"] for model in models["data"]] == ['it\'s "my" $MODEL'], "one argument, quoted once"
    assert len(slot_processes(logs)["node-d0"]) >= 2, "the wrapper and what it runs"
    assert retire(router, "node-d0").status == 200
    assert slot_processes(logs) == {}


def test_a_broker_that_runs_it_elsewhere(harness: Harness, broker: Broker) -> None:
    """Exit 0 means submitted: the replica's answer decides, and the stop command recalls it (spec 7.5, 7.6, 7.7)."""
    recall = ["sh", "-c", f"test ! -e {broker.folder}/deaf && kill $(cat {broker.folder}/{{slot}}.pid)"]
    host = broker.host([0], stop_command=recall)
    options = ("--state-file", str(harness.folder / "state"), "--health-interval", "0.3")
    router = harness.start_router({"hosts": [host]}, *options)
    router.wait_ready(1)
    pid = broker.pids["node-d0"]

    assert request(f"http://127.0.0.1:{host['port_base']}/sim/state").json()["pid"] == pid
    assert slot_processes(harness.folder / "logs") == {}, "no mark leads to it"
    router.kill()
    router = harness.start_router({"hosts": [host]}, *options)
    assert phases(router) == {"node-d0": "ready"}, "adopted on the strength of its answer"
    assert router.request("POST", CHAT, body=chat("Hello")).status == 200
    (broker.folder / "deaf").touch()
    assert retire(router, "node-d0").status == 500
    assert unconfirmed(router) == {"node-d0": "stop-unconfirmed"}
    (broker.folder / "deaf").unlink()
    assert retire(router, "node-d0").status == 200
    wait_until(lambda: not lives(pid), what="its end: the router could see no more than a silent address")
    assert launch(router).status == 202
    router.wait_ready(1)
    router.stop()
    wait_until(lambda: not lives(broker.pids["node-d0"]), what="the end of the second")


def test_work_that_cannot_be_recalled(harness: Harness, broker: Broker) -> None:
    """Submitted, never heard of, and no stop command: nobody knows whether it will still run (spec 7.5, 7.7)."""
    broker.close()  # it takes submissions and does nothing
    router = harness.start_router({"hosts": [broker.host([0])]}, "--launch-timeout", "1.5")

    wait_until(lambda: unconfirmed(router) == {"node-d0": "stop-unconfirmed"}, timeout=45, what="the launch timeout")

    assert "left it to a broker" in capacity(router)["last_errors"]["node-d0"]
    assert capacity(router)["free_slots"] == []
    assert retire(router, "node-d0").status == 500
    with suppress(FileNotFoundError):
        (broker.folder / "node-d0.job").unlink()
    assert retire(router, "node-d0", force=True).status == 200, "the operator has taken it out of the queue"
    router.signal(15)
    assert router.wait() == 0


def test_a_broker_that_refuses(harness: Harness) -> None:
    """A wrapper that ends with a status is a failed launch, with what it said (spec 7.5, 6.2)."""
    wrapper = ["sh", "-c", "echo no quota left >&2; exit 17"]
    router = harness.start_router({"hosts": [sim_host(launch_wrapper=wrapper)]}, "--initial-replicas", "0")

    assert launch(router).status in (202, 502)
    wait_until(lambda: capacity(router)["free_slots"], timeout=45, what="the end of the launch")

    assert capacity(router)["last_errors"]["node-d0"] == "exited with status 17; its log ends:\nno quota left"
    assert capacity(router)["unconfirmed"] == []
