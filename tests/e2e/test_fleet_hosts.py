"""Replicas on other machines: over ssh, and over a network that is cut."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import chat
from tests.support.fleet import sim_host
from tests.support.owned import (
    capacity,
    launch,
    phases,
    retire,
    slot_processes,
    unconfirmed,
    wait_for_command,
)
from tests.support.processes import installed
from tests.support.talk import CHAT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.harness import Harness
    from tests.support.netlab import Lab
    from tests.support.router import Router
    from tests.support.sshd import Sshd


@pytest.mark.ssh
def test_a_host_behind_ssh(harness: Harness, sshd: Sshd) -> None:
    """Local hosts come first; a remote one is launched on, read, stopped and adopted all the same (spec 7.1, 7.3)."""
    folder = harness.folder
    remote: dict[str, Any] = {"ssh": "node01", "address": "127.0.0.1", "log_dir": str(folder / "remote logs")}
    hosts = [
        sim_host([1, 2], name="far", env={"PYPTO_PROG_BUILD_DIR": "/scratch/it's d{device}"}, **remote),
        sim_host([0], name="near"),
        sim_host([3], name="shut", **{**remote, "ssh": "key-refused"}),
    ]
    path = {"PATH": f"{sshd.bin}{os.pathsep}{os.environ['PATH']}"}
    state = ("--state-file", str(folder / "state"), "--health-interval", "0.3")
    first = harness.start_router({"hosts": hosts}, *state, "--initial-replicas", "2", env=path)
    first.wait_ready(2)
    launched = [one["slot"] for one in first.wait_logs(2, "slot changed", to="launching")]
    assert launched == ["near-d0", "far-d1"]
    far = slot_processes(folder / "remote logs")
    assert set(far) == {"far-d1"}

    refused = launch(first, host="shut")
    assert (refused.status, refused.json()["slot"]) == (502, "shut-d3")
    assert "ssh key-refused: " in refused.json()["message"]
    assert "Permission denied" in refused.json()["message"]
    log = first.request("GET", "/replicas/far-d1/log", timeout=60)
    assert b"/scratch/it's d1" in log.body
    assert first.request("GET", "/replicas/shut-d3/log", timeout=60).status == 502

    first.kill()
    second = harness.start_router({"hosts": hosts}, *state, "--initial-replicas", "3", env=path)
    assert {"near-d0": "ready", "far-d1": "ready"}.items() <= phases(second).items()
    assert far.items() <= slot_processes(folder / "remote logs").items(), "the same process"
    assert retire(second, "far-d1").status == 200
    assert "far-d1" not in slot_processes(folder / "remote logs")
    second.wait_ready(2)
    assert set(phases(second)) == {"near-d0", "far-d2"}, "one more was launched for the third"
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    assert slot_processes(folder / "remote logs") == {}


@contextmanager
def locked_on(lab: Lab, host: str, *slots: str) -> Iterator[None]:
    """Hold up the commands on slots of a host."""
    logs = lab.disk / "logs"
    lab.run_on(host, ["mkdir", "-p", "-m", "700", str(logs)])
    holders = [
        subprocess.Popen(
            [*lab.on(host), "flock", str(logs / f"{slot}.lock"), "sh", "-c", "echo held; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for slot in slots
    ]
    try:
        for holder in holders:
            assert holder.stdout
            assert holder.stdout.readline() == b"held\n"
        yield
    finally:
        for holder in holders:
            holder.communicate()


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_host_that_is_cut_off(harness: Harness, lab: Lab) -> None:
    """Cut off in the middle of a launch, of a stop and of serving, its slots are held until it is back (spec 7.7)."""

    def host(name: str, devices: list[int], **more: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {"ssh": name, "address": lab.address(name), "log_dir": str(lab.disk / "logs")}
        return sim_host(devices, name=name, **fields, **more)

    def ask(router: Router) -> int:
        return router.request("POST", CHAT, body=chat("Hello")).status

    def replicas_on(name: str) -> int:
        return sum("pypto-serving-sim --model" in command for command in lab.commands(name))

    hosts = [host("node01", [0, 1, 2]), host("node02", [0])]
    path = {"PATH": f"{lab.bin}{os.pathsep}{os.environ['PATH']}"}
    options = ("--initial-replicas", "0", "--connect-timeout", "1", "--replace-after", "2")
    router = harness.start_router(
        {"hosts": hosts}, *options, env=path, executable=lab.router(installed("pypto-serving-router"))
    )

    with ThreadPoolExecutor(8, initializer=lab.enter) as inside:

        def there(act: Any, *args: Any, **options: Any) -> Any:
            return inside.submit(act, router, *args, **options).result()

        for slot in ("node01-d0", "node01-d1", "node02-d0"):
            assert there(launch, slot=slot).status == 202
        inside.submit(router.wait_ready, 3).result()

        with locked_on(lab, "node01", "node01-d1", "node01-d2"):
            stopping = inside.submit(retire, router, "node01-d1")
            launching = inside.submit(launch, router, slot="node01-d2")
            for slot, action in (("node01-d1", "stop"), ("node01-d2", "start")):
                wait_for_command(lab.disk / "logs" / f"{slot}.lock", slot, action)
            lab.drop("node01")
        # What had been told to the host goes on there: one replica is stopped and another one started.
        router.wait_log("replica is not routable", replica="node01-d0", timeout=45)
        assert {there(ask) for _ in range(5)} == {200}
        stopped, launched = stopping.result(), launching.result()
        assert (stopped.status, launched.status) == (500, 502)
        router.wait_log("slot changed", slot="node01-d0", to="unconfirmed", timeout=60)
        router.wait_log("slot changed", slot="node01-d2", to="unconfirmed", timeout=60)
        assert there(unconfirmed) == dict.fromkeys(("node01-d0", "node01-d1", "node01-d2"), "stop-unconfirmed")
        assert there(launch).status == 409
        wait_until(lambda: replicas_on("node01") == 2, what="what the host was told before it was cut off")

        lab.heal("node01")
        for slot in ("node01-d0", "node01-d1", "node01-d2"):
            assert there(retire, slot).status == 200
        assert replicas_on("node01") == 0
        assert there(capacity)["free_slots"] == ["node01-d0", "node01-d1", "node01-d2"]
        assert there(launch, host="node01").status == 202
        inside.submit(router.wait_ready, 2).result()

        router.signal(signal.SIGTERM)
        assert router.wait() == 0
        assert [replicas_on(name) for name in ("node01", "node02")] == [0, 0]
