"""What the router's own machine does wrong: names, descriptors, disk, clock, a stalled process."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.client import chat
from tests.support.fleet import sim_host
from tests.support.ports import free_port
from tests.support.processes import installed
from tests.support.talk import post
from tests.support.waiting import wait_until
from tests.support.wire import Wire

from faults.cell import Outcome, Unavailable, cell
from faults.scene import tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faults.scene import Scene

_FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


# --- names -----------------------------------------------------------------------------------


class _Names:
    """A hosts file and a resolver of the router's own, in a mount namespace."""

    def __init__(self, scene: Scene) -> None:
        if os.getuid() or not shutil.which("unshare"):
            raise Unavailable("a hosts file of the router's own needs root")
        folder = scene.harness.folder
        self._hosts = folder / "hosts"
        self.write("127.0.0.1")
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        script = folder / "router-with-names"
        script.write_text(
            "#!/bin/sh\nexec unshare --mount --propagation private sh -c '"
            f"mount --bind {self._hosts} /etc/hosts && mount --bind {folder}/resolv.conf /etc/resolv.conf && "
            f'exec "$@"\' sh {installed("pypto-serving-router")} "$@"\n'
        )
        script.chmod(0o755)
        self.router = str(script)

    def write(self, address: str | None) -> None:
        """Let the name stand for an address, or for nothing; the file stays the same one."""
        line = "" if address is None else f"{address} replica.test\n"
        self._hosts.write_text(f"127.0.0.1 localhost\n{line}")


@cell()
def name_stops_resolving(scene: Scene) -> Outcome:
    """The name of a replica stops resolving, and resolves again."""
    names = _Names(scene)
    sim, other = scene.sims = [scene.harness.start_sim(keep_alive=0.2) for _ in range(2)]
    scene.start([f"http://replica.test:{sim.port}", other.url], executable=names.router)
    names.write(None)
    seen = [scene.ask() for _ in range(6)]
    assert sum(one.what == "502" for one in seen) <= 1, tell(seen)
    scene.until_ready(1)
    names.write("127.0.0.1")
    return Outcome(tell(seen), scene.until_ready(2))


@cell()
def name_changes_its_address(scene: Scene) -> Outcome:
    """The name of a replica changes its address, and what was there is killed."""
    names = _Names(scene)
    before = scene.harness.start_sim(keep_alive=0.2)
    after = scene.harness.start_sim("--host", "127.0.0.2", "--port", str(before.port), keep_alive=0.2)
    scene.sims = [before, after]
    scene.start([f"http://replica.test:{before.port}"], executable=names.router)
    names.write("127.0.0.2")
    before.kill()
    seen = [scene.ask()]
    back = max(scene.until_served(), scene.until_ready(1))
    assert after.state()["requests"] > 0
    return Outcome(tell(seen), back)


# --- descriptors -----------------------------------------------------------------------------


@cell(quick=True)
def no_descriptors(scene: Scene) -> Outcome:
    """No descriptor is left, with a stream under way; then there are some again."""
    scene.start_sims(1)
    streams = scene.ask_many(1, tokens=300)
    scene.under_way(1)
    kept = scene.router.connect()
    kept.send(b"POST ")
    scene.connected(3)
    limits = resource.prlimit(scene.router.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(scene.router.pid, resource.RLIMIT_NOFILE, (8, limits[1]))
    kept.send(post(chat("x"))[5:])
    status = kept.read_answer("POST").status
    with contextlib.suppress(OSError, AssertionError), Wire.connect(scene.router.port, timeout=1) as newcomer:
        newcomer.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        newcomer.read_some()
    resource.prlimit(scene.router.pid, resource.RLIMIT_NOFILE, limits)
    back = scene.until_served()
    assert status == 503
    assert tell(streams) == "complete"
    assert not scene.router.log_events("replica is not routable"), "its replica was blamed"
    kept.close()
    return Outcome(f"{status} for a new connection to a replica; the stream {tell(streams)}", back)


# --- disk ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _small_disk(scene: Scene) -> Iterator[Path]:
    """Mount a disk of 1 MiB, for the router and what it launches."""
    if os.getuid():
        raise Unavailable("a small disk needs root")
    disk = scene.harness.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(disk)], check=True)
    try:
        yield disk
        scene.router.signal(signal.SIGTERM)
        scene.router.wait()
    finally:
        scene.router.kill()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(b"x" * 4096)
            file.flush()
    return ballast


@cell()
def disk_full_for_the_state_file(scene: Scene) -> Outcome:
    """The disk of the state file is full: launches and a stop; then it has room again."""
    with _small_disk(scene) as disk:
        scene.start({"hosts": [sim_host([0, 1])]}, "--state-file", str(disk / "state"), "--initial-replicas", "1")
        scene.until_ready(1)
        ballast = _fill(disk)
        launched = scene.post()
        assert launched == 502
        seen = [scene.ask() for _ in range(4)]
        assert tell(seen) == "4x complete"
        assert not [one for one in scene.harness.launched().values() if "--port" in one and "-d1" in one]
        ballast.unlink()
        back = scene.until(lambda: scene.post() == 202, 30, "a launch") + scene.until_ready(2)
        return Outcome(f"POST /replicas {launched}; requests {tell(seen)}", back)


@cell()
def disk_full_for_startup_logs(scene: Scene) -> Outcome:
    """The disk of the startup logs is full: a launch; then it has room again."""
    with _small_disk(scene) as disk:
        scene.start({"hosts": [sim_host([0], log_dir=str(disk / "logs"))]}, "--initial-replicas", "0")
        ballast = _fill(disk)
        launched = scene.post()
        assert launched == 502
        ballast.unlink()
        back = scene.until(lambda: scene.post() == 202, 30, "a launch") + scene.until_ready(1)
        return Outcome(f"POST /replicas {launched}", back)


@cell()
def stderr_takes_nothing(scene: Scene) -> Outcome:
    """The router's stderr is a full device."""
    script = scene.harness.folder / "router-without-words"
    script.write_text(f'#!/bin/sh\nexec {installed("pypto-serving-router")} "$@" 2>/dev/full\n')
    script.chmod(0o755)
    sim = scene.harness.start_sim(keep_alive=0.2)
    port = free_port()
    router = scene.harness.start_router([sim], "--port", str(port), "--access-log", wait=False, executable=str(script))
    router.port, router.url = port, f"http://127.0.0.1:{port}"
    wait_until(lambda: _listens(port), what="the router")
    scene.adopt(router)
    seen = [scene.ask() for _ in range(6)]
    assert tell(seen) == "6x complete"
    metrics = router.request("GET", "/metrics").body.decode()
    lost = next(line for line in metrics.splitlines() if line.startswith("pypto_router_log_records_lost_total "))
    assert int(lost.split()[1]) > 0
    return Outcome(f"{tell(seen)}; {lost.split()[1]} log records lost, and counted")


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), Wire.connect(port, timeout=1):
        return True
    return False


# --- time ------------------------------------------------------------------------------------


@cell(quick=True)
def stalled(scene: Scene) -> Outcome:
    """The router is stopped for 3 s with streams under way (SIGSTOP, SIGCONT)."""
    scene.start_sims(2)
    streams = scene.ask_many(6, tokens=200)
    scene.under_way(6)
    scene.router.signal(signal.SIGSTOP)
    scene.pause(3.0)
    scene.router.signal(signal.SIGCONT)
    back = scene.until_served()
    wait(streams)
    assert tell(streams) == "6x complete"
    assert not scene.router.log_events("replica is not routable"), "replicas were blamed for the router's own stall"
    return Outcome(tell(streams), back)


@cell()
def clock_jumps(scene: Scene) -> Outcome:
    """The time of day jumps ahead by a year, and back by two, with streams under way."""
    if _FAKETIME is None:
        raise Unavailable("libfaketime is not installed")
    jump = scene.harness.folder / "time"
    jump.write_text("+0")
    env = {
        "LD_PRELOAD": str(_FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(jump),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    scene.sims = [scene.harness.start_sim(keep_alive=0.2, decode_rate=200) for _ in range(2)]
    scene.start(list(scene.sims), env=env)
    first = scene.ask()
    seen = []
    for offset in ("+365d", "-365d"):
        streams = scene.ask_many(4, tokens=200)
        scene.under_way(4)
        jump.write_text(offset)
        scene.pause(1.0)
        seen += [one.result() for one in streams] + [scene.ask()]
    assert tell([first, *seen]) == "11x complete"
    assert not scene.router.log_events("replica is not routable")
    years = {record["timestamp"][:4] for record in scene.router.log_events()}
    scene.router.request("POST", "/v1/nothing")
    jump.write_text("+0")
    return Outcome(f"{tell(seen)}; the log has records of {len(years)} year(s)", scene.until_served())
