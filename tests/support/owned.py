"""What a router has launched, as the machine sees it: the living processes that carry a slot's mark."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.processes import open_files
from tests.support.waiting import wait_until

from pypto_serving_router.launch import slotctl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.client import Answer
    from tests.support.router import Router


def slot_processes(log_dir: Path) -> dict[str, dict[int, int]]:
    """Return the living processes by slot, for slots that log into `log_dir`: pid and generation."""
    found: dict[str, dict[int, int]] = {}
    for process in slotctl.list_processes().values():
        base, _, rest = slotctl.read_mark(process.pid).partition("#")
        generation = rest.partition("#")[0]
        if process.lives and generation and Path(base).parent == log_dir:
            found.setdefault(Path(base).name, {})[process.pid] = int(generation)
    return found


def wait_for_command(lock: Path, slot: str, action: str) -> int:
    """Return the process of a command on a slot, `start` or `stop`, once it has the slot's lock file open."""

    def find() -> int | None:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if words[-4:-1] == [b"slotctl", action.encode(), slot.encode()] and lock in open_files(
                    int(folder.name)
                ):
                    return int(folder.name)
        return None

    found = wait_until(find, timeout=60, what=f"a {action} of {slot} that waits")
    assert found
    return found


@contextlib.contextmanager
def slot_held_up(log_dir: Path, slot: str) -> Iterator[Callable[[str], None]]:
    """Hold up every start and stop on a slot, as if its host were slow.

    The function that is given waits until a command of that name (`start`, `stop`) has come as far, and freezes it: on
    its own it would give up after ten seconds.
    """
    log_dir.mkdir(exist_ok=True)
    path = log_dir / f"{slot}.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    frozen: list[int] = []

    def freeze(action: str) -> None:
        frozen.append(wait_for_command(path, slot, action))
        os.kill(frozen[-1], signal.SIGSTOP)

    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield freeze
    finally:
        os.close(lock)
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def launch(router: Router, **where: str) -> Answer:
    """Ask for a replica, on a slot or a host if one is given."""
    return router.request("POST", "/replicas", body=where or None, timeout=60)


def retire(router: Router, name: str, *, force: bool = False) -> Answer:
    """Have a replica stopped."""
    return router.request("DELETE", f"/replicas/{name}{'?force=true' if force else ''}", timeout=120)


def capacity(router: Router) -> dict[str, Any]:
    """Return what is left to launch on."""
    left: dict[str, Any] = router.replicas()["capacity"]
    return left


def unconfirmed(router: Router) -> dict[str, str]:
    """Return the reserved slots with their reasons."""
    return {one["slot"]: one["reason"] for one in capacity(router)["unconfirmed"]}


def phases(router: Router) -> dict[str, str]:
    """Return the replicas with their phases."""
    return {one["name"]: one["phase"] for one in router.replicas()["replicas"]}


def recorded(state_file: Path) -> dict[str, dict[str, Any]]:
    """Return the slots that a state file is about, by name; none if there is no file."""
    try:
        document = json.loads(state_file.read_bytes())
    except FileNotFoundError:
        return {}
    return {one["slot"]: one for one in document["slots"]}
