"""The program run on hosts: which processes are whose, what is told of them, and their log."""

from __future__ import annotations

import base64
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.slots import SlotHost, handle_in, lives
from tests.support.waiting import wait_until

from pypto_serving_router.launch import slotctl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# --- inspect ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ("echo out of memory; exit 3", 3, "exited with status 3; its log ends:\nout of memory"),
        ("kill -KILL $$", -9, "ended by SIGKILL (9)"),
    ],
)
def test_an_end_is_told_with_its_status(slot_host: SlotHost, script: str, status: int, words: str) -> None:
    """The exit status and the last lines of this launch's log explain a failed launch (spec 7.5)."""
    slot_host.logs.mkdir()
    slot_host.log.write_text("of an earlier launch\n")
    slot_host.start(script)

    answer = wait_until(lambda: (it := slot_host.ask("inspect"))["state"] == "gone" and it)

    assert answer == {"state": "gone", "exit_status": status, "detail": words}


def test_a_status_that_is_being_written_is_waited_for(slot_host: SlotHost) -> None:
    """A look in the moment between the end and its record does not lose the reason (spec 7.5)."""
    pid = slot_host.start("until [ -e go ]; do sleep 0.01; done; exit 5", workdir=str(slot_host.folder))["pid"]
    process = slotctl.find_process(pid)
    assert process
    os.kill(process.parent, signal.SIGSTOP)
    (slot_host.folder / "go").touch()
    wait_until(lambda: not lives(pid))
    with ThreadPoolExecutor() as pool:
        looking = pool.submit(slot_host.ask, "inspect")
        time.sleep(0.2)  # whether the look is early or late, its answer is to be the same
        os.kill(process.parent, signal.SIGCONT)

    assert looking.result()["exit_status"] == 5


def test_only_the_last_lines_are_told(slot_host: SlotHost) -> None:
    """A detail is for reading: neither a long log nor long lines flood it (spec 7.5)."""
    slot_host.start("seq 1000; head -c 9999 /dev/zero | tr '\\0' x; echo; echo last; exit 1")

    answer = wait_until(lambda: (it := slot_host.ask("inspect"))["state"] == "gone" and it)

    lines = answer["detail"].splitlines()
    assert lines[-1] == "last"
    assert len(lines) <= slotctl.DETAIL_LINES + 1
    assert len(answer["detail"]) <= slotctl.DETAIL_BYTES + 100


def test_a_launch_that_left_processes_is_not_gone(slot_host: SlotHost) -> None:
    """A first process that ends and leaves others, still on the devices, is told apart from an end (spec 7.7, X7)."""
    slot_host.start("sleep 60 & exit 1")

    answer = wait_until(lambda: (it := slot_host.ask("inspect"))["state"] == "left" and it)

    assert answer["exit_status"] == 1
    assert "exited with status 1; it left process " in answer["detail"]


def test_a_launch_that_never_came_is_gone(slot_host: SlotHost) -> None:
    """Looking at a slot that was never used makes no file (spec 7.13)."""
    answer = slot_host.ask("inspect")

    assert answer == {"state": "gone", "exit_status": None, "detail": "nothing of this launch is on the host"}
    assert not slot_host.logs.exists()


def test_a_swept_folder_does_not_hide_a_process(slot_host: SlotHost) -> None:
    """The router's handle is enough where the host's files were removed, as in /tmp (spec 7.13)."""
    handle = handle_in(slot_host.start("exec sleep 60"))
    shutil.rmtree(slot_host.logs)

    assert slot_host.ask("inspect", handle=handle) == {"state": "running", **handle}
    assert slot_host.ask("inspect")["state"] == "left", "the mark is there, but not which process was launched"
    assert slot_host.ask("stop", handle=handle)["state"] == "gone"
    assert not lives(handle["pid"])


@pytest.mark.parametrize("difference", [{"started_at": "1"}, {"boot_id": "another"}], ids=["pid reused", "rebooted"])
def test_a_reused_pid_is_never_signalled(slot_host: SlotHost, innocent: int, difference: dict[str, str]) -> None:
    """Start time and boot id tell the launched process from one that got its pid later (spec 7.6)."""
    process = slotctl.find_process(innocent)
    assert process
    handle = {"pid": innocent, "started_at": process.started_at, "boot_id": slotctl.read_boot_id()} | difference

    inspected = slot_host.ask("inspect", handle=handle)
    stopped = slot_host.ask("stop", handle=handle, grace=0)

    assert (inspected["state"], stopped["state"]) == ("gone", "gone")
    assert ("rebooted" in inspected["detail"]) == ("boot_id" in difference)
    assert lives(innocent)


def test_a_signal_goes_only_to_who_was_seen(innocent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the signal a pid may have gone to another (spec 7.6)."""
    seen = slotctl.find_process(innocent)
    assert seen
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))

    slotctl.signal_all([seen._replace(started_at="1")], signal.SIGKILL)
    assert sent == []
    slotctl.signal_all([seen], signal.SIGTERM)
    assert sent == [(innocent, signal.SIGTERM)]


def test_a_zombie_does_not_live() -> None:
    """What only waits to be reaped holds no device, although it still answers to signals (spec 7.7, X17)."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    process = slotctl.find_process(child.pid)

    assert process
    assert process.state == "Z"
    assert not process.lives
    child.wait()


def test_a_process_whose_first_thread_ended_lives(slot_host: SlotHost) -> None:
    """It looks like a zombie, and its other threads still hold the device (spec 7.7)."""
    number = {"x86_64": 60, "aarch64": 93}[platform.machine()]
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start();"
        f"ctypes.CDLL(None).syscall({number}, 0)"
    )
    answer = slot_host.ask("start", argv=[sys.executable, "-c", code])
    wait_until(lambda: (process := slotctl.find_process(answer["pid"])) and process.state == "Z")

    assert slot_host.ask("inspect")["state"] == "running"
    assert slot_host.ask("stop")["state"] == "gone"


def test_a_process_table_with_odd_names_is_read(tmp_path: Path) -> None:
    """The name of a process may contain spaces and parentheses (spec 7.6)."""
    odd = tmp_path / "a) S 1 1 (b"
    odd.symlink_to(shutil.which("sleep") or "sleep")
    with subprocess.Popen([odd, "60"]) as child:
        process = wait_until(lambda: (it := slotctl.find_process(child.pid)) and it.name.startswith("a)") and it)
        child.kill()

    assert process
    assert (process.name, process.parent) == ("a) S 1 1 (b", os.getpid())


# --- inspect all -----------------------------------------------------------------------------


def test_many_are_told_as_each_would_be(slot_host: SlotHost) -> None:
    """One answer has an entry for each slot, whatever its state, and none spoils another's (spec 7.13)."""
    scripts = {"runs": "exec sleep 60", "ended": "echo out of memory; exit 3", "left": "sleep 60 & exit 1"}
    launches: dict[str, Any] = {
        name: {"log": str(slot_host.logs / f"{name}.log")} for name in (*scripts, "never", "damaged", "broker")
    }
    handles = {name: handle_in(slot_host.start(script, **launches[name])) for name, script in scripts.items()}
    handles["broker"] = handle_in(slot_host.start("sleep 60 & exit 0", **launches["broker"], wrapped=True))
    (slot_host.logs / "damaged.json").write_text("{")
    jobs: list[dict[str, Any]] = [
        {"generation": 1, "wrapped": name == "broker", "handle": handles.get(name), **where}
        for name, where in launches.items()
    ]

    def alone() -> list[dict[str, object]]:
        return [slot_host.ask("inspect", **job) for job in jobs]

    states = ["running", "gone", "left", "gone", "failed", "running"]
    wait_until(lambda: [answer["state"] for answer in alone()] == states)

    answer = slot_host.ask("inspect-all", launches=jobs)

    assert answer == {"state": "inspected", "answers": alone()}


def test_many_are_told_from_one_look(slot_host: SlotHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after the records: a launch that is recorded in between would seem gone while it runs (spec 7.13)."""
    order: list[str] = []

    def noted(what: str, act: Callable[..., object]) -> Callable[..., object]:
        def note(*arguments: object) -> object:
            order.append(what)
            return act(*arguments)

        return note

    monkeypatch.setattr(slotctl.Slot, "read", noted("record", slotctl.Slot.read))
    monkeypatch.setattr(slotctl, "list_processes", noted("look", slotctl.list_processes))
    job = json.loads(slot_host.job("inspect-all", 1))

    slotctl.inspect_all({"launches": [job, job, job]})

    assert order == ["record"] * 3 + ["look"]


# --- log -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "lines", "read"),
    [(b"a\nb\nc\n", 2, b"b\nc\n"), (b"a\nb", 5, b"a\nb"), (b"\xff\n", 1, b"\xff\n"), (None, 3, b"")],
    ids=["last", "all", "not text", "no log"],
)
def test_the_end_of_a_log_is_read(slot_host: SlotHost, written: bytes | None, lines: int, read: bytes) -> None:
    """A log is fetched as it is, whichever launch wrote it; a slot that was never used has none (spec 6.5)."""
    slot_host.logs.mkdir()
    if written is not None:
        slot_host.log.write_bytes(written)

    answer = slot_host.ask("log", generation=0, lines=lines)

    assert base64.b64decode(answer["data"]) == read


def test_a_huge_log_is_read_at_its_end(slot_host: SlotHost) -> None:
    """However long a log and its lines are, an answer is at most 1 MiB (spec 6.5)."""
    slot_host.logs.mkdir()
    slot_host.log.write_bytes(b"x" * 3_000_000 + b"\nlast\n")

    data = base64.b64decode(slot_host.ask("log", generation=0, lines=2)["data"])

    assert len(data) == slotctl.LOG_BYTES
    assert data.endswith(b"x\nlast\n")


def test_a_log_that_cannot_be_read_is_told(slot_host: SlotHost) -> None:
    """An operator sees why there is nothing to see (spec 6.5)."""
    slot_host.log.mkdir(parents=True)

    assert slot_host.ask("log") == {"state": "failed", "detail": f"Is a directory: {slot_host.log}"}
