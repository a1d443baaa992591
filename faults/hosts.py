"""What happens to a host behind ssh: it is cut off at each step, and comes back."""

from __future__ import annotations

import contextlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.support.fleet import sim_host
from tests.support.netlab import AVAILABLE, Lab
from tests.support.owned import wait_for_command
from tests.support.processes import installed

from faults.cell import Outcome, Unavailable, cell
from faults.scene import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faults.scene import Scene

_SLOT = "far-d0"


class _Far:
    """A host in a network of its own, behind ssh, and a router that can reach it."""

    def __init__(self, scene: Scene, lab: Lab, inside: ThreadPoolExecutor) -> None:
        self._scene = scene
        self._lab = lab
        self._inside = inside
        folder = str(lab.disk / "logs")
        far = sim_host([0], name="far", ssh="far", address=lab.address("far"), log_dir=folder, sim={"keep_alive": 0.2})
        self.do(
            scene.start,
            {"hosts": [far]},
            *("--initial-replicas", "0", "--replace-after", "600", "--connect-timeout", "1"),
            env={"PATH": f"{lab.bin}{os.pathsep}{os.environ['PATH']}"},
            executable=lab.router(installed("pypto-serving-router")),
        )
        assert self.do(self.status, "GET", f"/replicas/{_SLOT}/log") == 200  # the first command leaves a pipe for all
        self.do(scene.count)

    def do(self, act: Callable[..., Any], *args: Any, **how: Any) -> Any:
        """Do something where the router is."""
        return self.begin(act, *args, **how).result()

    def begin(self, act: Callable[..., Any], *args: Any, **how: Any) -> Any:
        """Begin something where the router is."""
        return self._inside.submit(act, *args, **how)

    def status(self, method: str, path: str) -> int:
        """Return what a request to the router's own paths is answered."""
        status: int = self._scene.router.request(method, path, timeout=120).status
        return status

    def launch(self) -> None:
        """Launch the replica, and wait until it is ready."""
        assert self.do(self._scene.post) == 202
        self.do(self._scene.until_ready, 1)

    def stop(self) -> int:
        """Retire the replica."""
        status: int = self.do(self.status, "DELETE", f"/replicas/{_SLOT}")
        return status

    def held(self) -> list[str]:
        """Return why slots are held."""
        return [one["reason"] for one in self.do(self._scene.router.replicas)["capacity"]["unconfirmed"]]

    def replicas(self) -> int:
        """Count the replicas on the host, be it cut off or not."""
        return self._lab.run_on("far", ["ps", "-eo", "args"]).count("pypto-serving-sim --model")

    def cut(self) -> None:
        """Let packets vanish."""
        self._lab.drop("far")

    def heal(self) -> None:
        """Undo it."""
        self._lab.heal("far")

    def reboot(self) -> None:
        """Kill everything on the host, and boot it again."""
        self._lab.reboot("far")

    @contextlib.contextmanager
    def held_up(self) -> Iterator[None]:
        """Hold up the commands on the slot, on the host."""
        logs = self._lab.disk / "logs"
        self._lab.run_on("far", ["mkdir", "-p", "-m", "700", str(logs)])
        argv = [*self._lab.on("far"), "flock", str(logs / f"{_SLOT}.lock"), "sh", "-c", "echo held; exec cat"]
        holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert holder.stdout
            assert holder.stdout.readline() == b"held\n"
            yield
        finally:
            holder.communicate()

    def wait_command(self, action: str) -> None:
        """Wait until a command on the slot has arrived and is held up."""
        wait_for_command(self._lab.disk / "logs" / f"{_SLOT}.lock", _SLOT, action)


@contextlib.contextmanager
def _far(scene: Scene) -> Iterator[_Far]:
    if not AVAILABLE:
        raise Unavailable("networks of their own need root, iproute2 and sshd")
    lab = Lab(scene.harness.folder, "far")
    try:
        with ThreadPoolExecutor(8, initializer=lab.enter) as inside:
            yield _Far(scene, lab, inside)
            left_over = inside.submit(scene.left_over).result()
            assert not left_over, left_over
            scene.router.stop(60)
    finally:
        lab.close()


@cell()
def host_cut_off_before_a_launch(scene: Scene) -> Outcome:
    """A host behind ssh is cut off; then a launch; then it is back."""
    with _far(scene) as far:
        far.cut()
        launched = far.do(scene.post)
        assert launched == 502
        assert far.held() == [], "nothing can have been started"
        far.heal()
        back = far.do(scene.until, lambda: scene.post() == 202, 30, "a launch")
        assert far.replicas() == 1
        assert far.stop() == 200
        return Outcome(f"POST /replicas {launched}; the slot stays free", back)


@cell()
def host_cut_off_in_a_launch(scene: Scene) -> Outcome:
    """A host behind ssh is cut off while it carries out a launch."""
    with _far(scene) as far:
        with far.held_up():
            launching = far.begin(scene.post)
            far.wait_command("start")
            far.cut()
        launched = launching.result()
        assert launched == 502, launched
        far.do(scene.router.wait_log, "slot changed", to="unconfirmed", timeout=90)
        assert far.held() == ["stop-unconfirmed"]
        assert far.do(scene.post) == 409
        far.heal()
        freed = far.stop()
        assert freed == 200
        assert far.replicas() == 0
        return Outcome(f"POST /replicas {launched}, then 409: the slot is held; DELETE {freed} once it is back", 0.0)


@cell()
def host_cut_off_while_it_serves(scene: Scene) -> Outcome:
    """A host behind ssh is cut off while its replica serves, and is back."""
    with _far(scene) as far:
        far.launch()
        far.cut()
        seen = [far.do(scene.ask) for _ in range(2)]
        assert {one.what for one in seen} <= {"502", "503"}, tell(seen)
        far.heal()
        back = far.do(scene.until_ready, 1)
        assert far.do(scene.ask).what == "complete"
        assert far.stop() == 200
        return Outcome(tell(seen), back)


@cell()
def host_cut_off_in_a_stop(scene: Scene) -> Outcome:
    """A host behind ssh is cut off while it carries out a stop."""
    with _far(scene) as far:
        far.launch()
        with far.held_up():
            stopping = far.begin(far.status, "DELETE", f"/replicas/{_SLOT}")
            far.wait_command("stop")
            far.cut()
        stopped = stopping.result()
        assert stopped == 500
        assert far.held() == ["stop-unconfirmed"]
        far.heal()
        freed = far.stop()
        assert freed == 200
        assert far.replicas() == 0
        return Outcome(f"DELETE {stopped}, and the slot is held; DELETE {freed} once it is back", 0.0)


@cell()
def host_cut_off_before_a_log(scene: Scene) -> Outcome:
    """A host behind ssh is cut off; its replica's log is asked for."""
    with _far(scene) as far:
        far.launch()
        far.cut()
        asked = far.do(far.status, "GET", f"/replicas/{_SLOT}/log")
        assert asked == 502
        far.heal()
        back = far.do(scene.until, lambda: far.status("GET", f"/replicas/{_SLOT}/log") == 200, 30, "the log")
        assert far.stop() == 200
        return Outcome(f"GET .../log {asked}", back)


@cell()
def host_rebooted(scene: Scene) -> Outcome:
    """A host behind ssh is rebooted under its replica."""
    with _far(scene) as far:
        far.launch()
        far.reboot()
        seen = [far.do(scene.ask) for _ in range(2)]
        assert {one.what for one in seen} <= {"502", "503"}, tell(seen)
        assert far.stop() == 200
        back = far.do(scene.until, lambda: scene.post() == 202, 30, "a launch") + far.do(scene.until_ready, 1)
        assert far.replicas() == 1
        assert far.stop() == 200
        return Outcome(tell(seen), back)
