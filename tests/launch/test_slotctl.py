"""The program run on hosts, as the router runs it: starting, and the program as such."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.owned import wait_for_command
from tests.support.slots import PROGRAM, SlotHost, find_processes, handle_in, lives
from tests.support.waiting import wait_until

from pypto_serving_router.launch import slotctl

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
    threads_own = 0b11 << 31  # signals 32 and 33 are the C library's, which lets nobody set them
    masks = [int(line.split()[1], 16) & ~threads_own for line in slot_host.log.read_text().splitlines()[1:]]
    assert masks == [0, 0]


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

    assert second["state"] == "occupied"
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
        assert wait_for_command(slot_host.logs / "n-d0.lock", "n-d0", "start") == starter.pid
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
