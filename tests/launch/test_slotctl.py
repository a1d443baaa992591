"""The program run on hosts: in processes of its own, as the router runs it, and by its functions."""

from __future__ import annotations

import ast
import base64
import contextlib
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.slots import PROGRAM, SlotHost, find_processes, lives
from tests.support.waiting import wait_until

from pypto_serving_router.launch import slotctl

if TYPE_CHECKING:
    from collections.abc import Iterator

IGNORES_TERM = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


def handle_in(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: answer[key] for key in ("pid", "started_at", "boot_id")}


def children_of(pid: int) -> list[int]:
    return [process.pid for process in slotctl.list_processes().values() if process.parent == pid]


# --- start -----------------------------------------------------------------------------------


def test_a_started_process_is_detached(slot_host: SlotHost) -> None:
    """It has its own session and group, no input, and its output is appended to the log (spec 7.3)."""
    slot_host.logs.mkdir()
    slot_host.log.write_text("of an earlier launch\n")

    answer = slot_host.start("echo out; echo err >&2; exec sleep 60")

    process = wait_until(lambda: (it := slotctl.find_process(answer["pid"])) and it.name == "sleep" and it)
    assert process
    assert (process.group, process.session, process.started_at) == (process.pid, process.pid, answer["started_at"])
    files = {fd.name: str(fd.readlink()) for fd in Path(f"/proc/{process.pid}/fd").iterdir()}
    assert files == {"0": "/dev/null", "1": str(slot_host.log), "2": str(slot_host.log)}
    lines = slot_host.log.read_text().splitlines()
    assert lines[0] == "of an earlier launch"
    assert lines[1].startswith("--- n-d0 launch 1 at 2")
    assert lines[2:] == ["out", "err"]


def test_a_started_process_outlives_what_started_it(slot_host: SlotHost) -> None:
    """Nothing of the starter's session, group or descriptors is kept, so that ssh can end (spec 7.3, X13, X16)."""
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    starter = subprocess.Popen(
        slot_host.command("start"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8",
        start_new_session=True, pass_fds=[write_end],
    )  # fmt: skip
    os.close(write_end)
    output, _ = starter.communicate(slot_host.program("start", argv=["sleep", "60"]), timeout=20)
    pid = json.loads(output.split(" ", 1)[1])["pid"]

    assert os.read(read_end, 1) == b"", "every copy of the descriptor is closed"
    os.close(read_end)
    with pytest.raises(ProcessLookupError):
        os.killpg(starter.pid, signal.SIGKILL)
    assert lives(pid)


def test_arguments_arrive_as_they_are(slot_host: SlotHost) -> None:
    """Arguments, variables and paths mean nothing to any shell on the way (spec 7.3)."""
    awkward = ["", " ", "two words", "it's", 'a "b"', "$HOME", "`id`", "$(id)", "a\nb", "*", "\\", "ü→😀", "!x", "-n"]
    workdir = slot_host.folder / "work dir $HOME ü"
    workdir.mkdir()
    slot_host.log = slot_host.folder / "log dir 'q' $HOME ü" / "n-d0.log"
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['AWKWARD'], os.getcwd()]), flush=True)"

    slot_host.ask(
        "start", argv=[sys.executable, "-c", show, *awkward], env={"AWKWARD": "\n".join(awkward)}, workdir=str(workdir)
    )

    slot_host.wait_for_output("\n[")
    assert json.loads(slot_host.log.read_text().splitlines()[1]) == [awkward, "\n".join(awkward), str(workdir)]


def test_what_is_the_routers_own_is_not_inherited(slot_host: SlotHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The router's settings and its ssh agent stay with the router; the rest of the environment is kept (spec 2.3)."""
    for name in ("PYPTO_ROUTER_ADMIN_TOKEN", "SSH_AUTH_SOCK", "SSH_CONNECTION", "PYPTO_OTHER"):
        monkeypatch.setenv(name, "x")

    slot_host.start("env; echo done", env={"GIVEN": "y"})

    slot_host.wait_for_output("done")
    names = {line.partition("=")[0] for line in slot_host.log.read_text().splitlines()}
    assert {"PYPTO_OTHER", "GIVEN", "PATH", slotctl.MARK} <= names
    assert not {name for name in names if name.startswith(("PYPTO_ROUTER_", "SSH_"))}


def test_signals_have_their_defaults(slot_host: SlotHost) -> None:
    """A replica ignores and blocks nothing that the router or its service manager did (spec 7.6)."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

    program = slot_host.program("start", argv=["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"])
    subprocess.run(
        slot_host.command("start"), input=program, encoding="utf-8", check=True, stdout=subprocess.PIPE,
        preexec_fn=ignore,
    )  # fmt: skip

    slot_host.wait_for_output("SigIgn")
    assert {int(line.split()[1], 16) for line in slot_host.log.read_text().splitlines()[1:]} == {0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"argv": ["no-such-program"]}, "cannot run no-such-program: No such file or directory"),
        ({"argv": ["/etc/passwd"]}, "cannot run /etc/passwd: Permission denied: /etc/passwd"),
        ({"argv": ["nul\0byte"]}, "embedded null byte"),
        ({"workdir": "/no/such/folder"}, "No such file or directory: /no/such/folder"),
        ({"log": "/dev/null/n-d0.log"}, "/dev/null"),
        ({"log": "/proc/no/n-d0.log"}, "/proc/no"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_start_that_fails_says_so_at_once(slot_host: SlotHost, change: dict[str, Any], words: str) -> None:
    """What the system will not do is told in its words, and nothing was started (spec 6.3, 7.2)."""
    answer = slot_host.ask("start", **change)

    assert answer["state"] == "refused"
    assert words in answer["detail"]
    assert not find_processes(str(slot_host.folder))


def test_a_full_disk_refuses_a_start(slot_host: SlotHost) -> None:
    """A log that cannot be written is told at once, not by a replica that dies of it (spec 7.3)."""
    slot_host.logs.mkdir()
    slot_host.log.symlink_to("/dev/full")

    assert slot_host.ask("start") == {"state": "refused", "detail": "[Errno 28] No space left on device"}
    assert not slot_host.record.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a folder away")
def test_another_users_folder_is_refused(slot_host: SlotHost) -> None:
    """In /tmp anybody can make the folder first, and lie in the record about which process is ours (spec 7.14)."""
    slot_host.folder.chmod(0o1777)
    slot_host.logs.mkdir()
    os.chown(slot_host.logs, 12345, 12345)

    answer = slot_host.ask("start")

    assert answer == {"state": "refused", "detail": f"the folder was made by another user: {slot_host.logs}"}


def test_files_are_their_owners(slot_host: SlotHost) -> None:
    """Prompts may be in a log: a folder that is made for it is readable by its owner only (spec 7.3)."""
    slot_host.start("exit 0")

    assert slot_host.logs.stat().st_mode & 0o777 == 0o700
    assert slot_host.record.stat().st_mode & 0o777 == 0o600


def test_a_slot_holds_one_launch_at_a_time(slot_host: SlotHost) -> None:
    """A start is refused while anything of an earlier launch lives, be it only a process that left it (spec 7.7)."""
    first = slot_host.start("setsid sleep 60 & exec sleep 60", generation=1)
    wait_until(lambda: len(find_processes(str(slot_host.logs))) == 2)

    os.kill(first["pid"], signal.SIGKILL)
    wait_until(lambda: not lives(first["pid"]))
    second = slot_host.ask("start", generation=2)

    assert second["state"] == "refused"
    assert second["detail"].startswith("an earlier process of this slot lives: process ")
    assert "(sleep, state S)" in second["detail"]


def test_a_start_said_twice_starts_once(slot_host: SlotHost) -> None:
    """Starts of one generation at the same time are one process, and all are told which (spec 7.1)."""
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: slot_host.ask("start", argv=["sleep", "60"]), range(4)))

    assert answers == [answers[0]] * 4
    assert answers[0]["state"] == "running"
    assert find_processes(str(slot_host.logs)) == [answers[0]["pid"]]


def test_a_start_said_again_after_the_end_starts_nothing(slot_host: SlotHost) -> None:
    """A generation is launched once (spec 7.10)."""
    slot_host.start("exit 4")
    wait_until(lambda: json.loads(slot_host.record.read_text())["exit_status"] == 4)

    again = slot_host.ask("start", argv=["sleep", "60"])

    assert (again["state"], again["exit_status"]) == ("gone", 4)


def test_a_held_lock_refuses_a_start(slot_host: SlotHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command waits for ever for another one that hangs (spec 7.2)."""
    monkeypatch.setattr(slotctl, "LOCK_PATIENCE", 0.1)
    slot_host.logs.mkdir()
    with (slot_host.logs / "n-d0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        answer = slotctl.start(json.loads(slot_host.job("start", 1)))

    assert answer == {"state": "refused", "detail": f"held by another command: {slot_host.logs}/n-d0.lock"}


# --- the fence -------------------------------------------------------------------------------


def test_a_stopped_generation_never_starts(slot_host: SlotHost) -> None:
    """A start that arrives after the stop of its generation, or of a later one, is refused (spec 7.7)."""
    assert slot_host.ask("stop", generation=5)["state"] == "gone"

    for generation in (4, 5):
        answer = slot_host.ask("start", generation=generation)
        words = f"the fence is up: this is launch {generation}, and the slot is at 5"
        assert answer == {"state": "refused", "detail": words}
    assert slot_host.ask("start", generation=6)["state"] == "running"


def test_an_older_generation_never_starts(slot_host: SlotHost) -> None:
    """A start that arrives after a later launch is refused, even if that has ended (spec 7.10)."""
    slot_host.start("exit 0", generation=7)

    answer = slot_host.ask("start", generation=6)

    assert answer["state"] == "refused"


def test_a_late_stop_does_not_touch_a_newer_launch(slot_host: SlotHost) -> None:
    """Cleanup belongs to the instance: neither signals nor a stop command reach the one that came after (spec 7.10)."""
    old = slot_host.start("exec sleep 60", generation=1)
    slot_host.ask("stop", generation=1)
    new = slot_host.start("exec sleep 60", generation=2)

    answer = slot_host.ask("stop", generation=1, handle=handle_in(old), stop_argv=["kill", str(new["pid"])])

    assert answer["state"] == "gone"
    assert lives(new["pid"])
    assert slot_host.ask("inspect", generation=2)["state"] == "running"


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


@pytest.fixture
def innocent() -> Iterator[int]:
    """A process that has nothing to do with us, and leads a group as ours do."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


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


# --- stop ------------------------------------------------------------------------------------


def test_a_stop_asks_first(slot_host: SlotHost) -> None:
    """SIGTERM comes first, once; what it makes the replica do is waited for, and no longer than that (spec 7.6)."""
    slot_host.start("trap 'echo asked; sleep 0.3; echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    slot_host.wait_for_output("ready")

    started_at = time.monotonic()
    answer = slot_host.ask("stop", grace=30)

    assert time.monotonic() - started_at < 15
    assert answer["state"] == "gone"
    assert slot_host.log.read_text().splitlines()[-2:] == ["asked", "cleaned"]


def test_a_stop_ends_what_ignores_it(slot_host: SlotHost) -> None:
    """After the grace comes SIGKILL, and the stop is done when everything is gone (spec 7.6, X3)."""
    pid = slot_host.start(IGNORES_TERM)["pid"]
    slot_host.wait_for_output("ready")

    answer = slot_host.ask("stop", grace=0.3)

    assert answer["state"] == "gone"
    assert not lives(pid)


@pytest.mark.parametrize(
    "script",
    [
        "sleep 60 & sleep 60 & wait",
        "setsid sleep 60 & wait",
        "setsid sh -c 'sleep 60 & sleep 60'; wait",
        'setsid env -u PYPTO_SLOT_MARK TESTED="$0" sleep 60 & wait',
        "setsid sh -c 'trap \"\" TERM; sleep 60; sleep 60' & wait",
        "(setsid sh -c 'sleep 60; sleep 60' &) ; sleep 60",
    ],
    ids=["group", "own session", "grandchildren", "unmarked child", "ignores TERM", "orphan"],
)
def test_a_stop_ends_every_descendant(slot_host: SlotHost, script: str) -> None:
    """Those who left the group are found by their mark or their parent, and ended too (spec 7.6, X7)."""
    slot_host.start(script)
    wait_until(lambda: len(find_processes(str(slot_host.folder))) >= 2)

    answer = slot_host.ask("stop", grace=0.5)

    assert answer["state"] == "gone", answer
    assert not find_processes(str(slot_host.folder))


def test_a_stop_leaves_the_asking_to_the_leader(slot_host: SlotHost) -> None:
    """A broker passes SIGTERM on to what it runs in another session: that is not asked a second time (spec 7.6)."""
    child = "trap 'echo asked' TERM; echo ready; until [ -e done ]; do sleep 0.05; done"
    on_term = "sleep 0.2; kill $!; sleep 0.2; touch done; wait; exit"
    slot_host.start(f"setsid sh -c \"{child}\" & trap '{on_term}' TERM; wait", workdir=str(slot_host.folder))
    slot_host.wait_for_output("ready")

    assert slot_host.ask("stop")["state"] == "gone"
    assert slot_host.log.read_text().splitlines()[1:] == ["ready", "asked"]


@pytest.mark.parametrize("marked", [True, False])
def test_a_stop_ends_the_group_of_a_dead_leader(slot_host: SlotHost, marked: bool) -> None:
    """A crashed engine's workers are ended, even those that overwrote their environment (spec 7.6, X7)."""
    worker = f'env {"" if marked else "-u PYPTO_SLOT_MARK"} TESTED="$0" sleep 60'
    leader = slot_host.start(f"{worker} & wait")["pid"]
    [worker_pid] = wait_until(lambda: children_of(leader))
    wait_until(lambda: slotctl.find_process(worker_pid).name == "sleep")  # type: ignore[union-attr]  # it is there
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: not lives(leader))

    answer = slot_host.ask("stop")

    assert answer["state"] == "gone"
    assert not lives(worker_pid)
    wait_until(lambda: slotctl.find_process(leader) is None)  # its supervisor reaps it once the group is empty


def test_a_stop_of_nothing_is_confirmed(slot_host: SlotHost) -> None:
    """Where the launch never came, there is nothing to stop and no stop command to run (spec 7.7)."""
    answer = slot_host.ask("stop", stop_argv=["false"])

    assert answer == {"state": "gone", "exit_status": None, "detail": "nothing of this launch is on the host"}


def test_a_stop_that_cannot_raise_the_fence_is_not_confirmed(slot_host: SlotHost) -> None:
    """Without the fence the launch may still come (spec 7.7)."""
    answer = slot_host.ask("stop", log="/dev/null/n-d0.log")

    assert answer["state"] == "failed"
    assert "/dev/null" in answer["detail"]


def test_what_survives_sigkill_is_told(slot_host: SlotHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot be ended is named and the stop is not confirmed, in bounded time (spec 7.6, X3)."""
    monkeypatch.setattr(slotctl, "KILL_PATIENCE", 0.1)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    pid = slot_host.start("exec sleep 60")["pid"]

    answer = slotctl.stop(json.loads(slot_host.job("stop", 1, grace=0)))
    monkeypatch.undo()

    assert answer == {"state": "left", "detail": f"still there after SIGKILL: process {pid} (sleep, state S)"}


# --- brokers ---------------------------------------------------------------------------------


def test_a_stop_command_is_run_instead_of_a_signal(slot_host: SlotHost) -> None:
    """It runs in the slot's folder and environment, and what it does is waited for (spec 7.6)."""
    slot_host.start("trap 'echo signalled' TERM; until [ -e stop ]; do sleep 0.05; done", workdir=str(slot_host.folder))

    answer = slot_host.ask(
        "stop", stop_argv=["sh", "-c", "echo stopping $JOB; touch stop"], env={"JOB": "j1"},
        workdir=str(slot_host.folder),
    )  # fmt: skip

    assert answer["state"] == "gone"
    assert slot_host.log.read_text().splitlines()[1:] == ["stopping j1"]


@pytest.mark.parametrize(
    ("stop_argv", "grace", "words"),
    [
        (["sh", "-c", "echo no job; exit 2"], 30, "the stop command exited with status 2; its log ends:\nno job"),
        (["no-such-program"], 30, "the stop command did not run: No such file or directory: no-such-program"),
        (["sleep", "60"], 0.3, "the stop command was not done after 0.3 s"),
    ],
    ids=["fails", "is missing", "hangs"],
)
def test_a_stop_command_that_fails_confirms_nothing(
    slot_host: SlotHost, stop_argv: list[str], grace: float, words: str
) -> None:
    """The command must succeed; who knows the job then is the broker, so nothing else is ended (spec 7.7)."""
    pid = slot_host.start("exec sleep 60")["pid"]

    answer = slot_host.ask("stop", stop_argv=stop_argv, grace=grace)

    assert answer == {"state": "left", "detail": words}
    assert lives(pid)


def test_what_a_stop_command_leaves_is_killed(slot_host: SlotHost) -> None:
    """A stop command that succeeds and changes nothing on this host is followed by SIGKILL (spec 7.6)."""
    pid = slot_host.start("exec sleep 60")["pid"]

    assert slot_host.ask("stop", stop_argv=["true"], grace=1)["state"] == "gone"
    assert not lives(pid)


def test_a_wrapper_that_submitted_is_gone_with_status_0(slot_host: SlotHost) -> None:
    """The router takes exit status 0 of a wrapper for `submitted` (spec 7.5)."""
    slot_host.start("exit 0", wrapped=True)

    answer = wait_until(lambda: (it := slot_host.ask("inspect", wrapped=True))["state"] == "gone" and it)

    assert answer["exit_status"] == 0


def test_a_wrapper_whose_work_is_on_the_host_runs(slot_host: SlotHost) -> None:
    """A broker may run the work in a session of its own and return: it is found, and ended, by its mark (spec 7.6)."""
    handle = handle_in(slot_host.start("setsid sleep 60 >/dev/null & exit 0", wrapped=True))
    wait_until(lambda: json.loads(slot_host.record.read_text())["exit_status"] == 0)

    assert slot_host.ask("inspect", wrapped=True) == {"state": "running", **handle}
    assert slot_host.ask("stop", wrapped=True)["state"] == "gone"
    assert not find_processes(str(slot_host.logs))


def test_a_wrapper_whose_end_is_not_known_is_unknown(slot_host: SlotHost, innocent: int) -> None:
    """Whether it had submitted its work before it went cannot be told (spec 7.13)."""
    handle = {"pid": innocent, "started_at": "1", "boot_id": slotctl.read_boot_id()}

    answer = slot_host.ask("inspect", wrapped=True, handle=handle)

    assert answer["state"] == "unknown"


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


# --- the program -----------------------------------------------------------------------------


def test_a_truncated_program_does_nothing(slot_host: SlotHost) -> None:
    """A connection that breaks while the program is sent leaves a prefix, which must not act (spec 7.3)."""
    program = slot_host.program("start", argv=["sleep", "60"])
    end = len(program) - 1  # the whole but its last end of line would be whole
    cuts = {*range(0, end, 499), *range(len(PROGRAM) - 20, end, 20), end - 1}

    for cut in cuts:
        try:
            code = compile(program[:cut], "cut", "exec")
        except SyntaxError:
            continue
        with contextlib.suppress(ImportError, NameError):  # of half a name
            exec(code, {"__name__": "cut"})
    for cut in (end - 1, len(PROGRAM)):
        starter = slot_host.command("start")
        subprocess.run(starter, input=program[:cut], encoding="utf-8", capture_output=True, check=False)

    assert not slot_host.logs.exists()


def test_a_start_survives_the_loss_of_its_starter(slot_host: SlotHost) -> None:
    """A starter that is killed while it waits for its turn has started nothing (spec 7.3)."""
    slot_host.logs.mkdir()
    with (slot_host.logs / "n-d0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        starter = subprocess.Popen(slot_host.command("start"), stdin=subprocess.PIPE, encoding="utf-8")
        assert starter.stdin
        starter.stdin.write(slot_host.program("start", argv=["sleep", "60", str(slot_host.folder)]))
        starter.stdin.close()
        files = Path(f"/proc/{starter.pid}/fd")
        wait_until(lambda: any(slot_host.logs in fd.readlink().parents for fd in files.iterdir()))
        starter.kill()
        starter.wait()

    assert slot_host.ask("inspect")["state"] == "gone"
    assert not find_processes(str(slot_host.folder))


def test_a_damaged_record_is_told(slot_host: SlotHost) -> None:
    """A record that cannot be read may be of a living process: an operator must look first (spec 7.7)."""
    slot_host.logs.mkdir()
    slot_host.record.write_text("{")

    words = f"damaged; remove it when nothing of the slot runs: {slot_host.record}"
    assert slot_host.ask("inspect") == {"state": "failed", "detail": words}
    assert slot_host.ask("stop") == {"state": "failed", "detail": words}
    assert slot_host.ask("start") == {"state": "refused", "detail": words}


def test_the_program_is_written_for_old_pythons() -> None:
    """Hosts are not upgraded for the router: no syntax newer than Python 3.7 (spec 7.3)."""
    ast.parse(PROGRAM, feature_version=(3, 7))


def test_every_python_here_runs_the_program(tmp_path: Path) -> None:
    """A replica can be launched and stopped with each Python installed beside this one (spec 7.3)."""
    old_enough = "import sys; sys.exit(sys.version_info < (3, 7))"
    beside = [str(path) for path in Path(sys.base_prefix).parent.glob("*/bin/python3")]
    pythons = {path for path in beside if subprocess.run([path, "-c", old_enough], check=False).returncode == 0}

    for index, python in enumerate({sys.executable, *pythons}):
        folder = tmp_path / str(index)
        folder.mkdir()
        host = SlotHost(folder, python)
        both = host.program("start", argv=["sleep", "60"]) + f"main({host.job('stop', 1)!r})\n"
        output = subprocess.run(host.command("start"), input=both, encoding="utf-8", capture_output=True, check=True)
        answers = [json.loads(line.split(" ", 1)[1]) for line in output.stdout.split("\n") if line]
        assert [answer["state"] for answer in answers] == ["running", "gone"], (python, output)


def test_nothing_is_imported_from_elsewhere() -> None:
    """The program is sent alone: it knows only the standard library (spec 7.3)."""
    imports = [node for node in ast.walk(ast.parse(PROGRAM)) if isinstance(node, ast.Import | ast.ImportFrom)]

    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}

    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
