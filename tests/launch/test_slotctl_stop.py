"""The program run on hosts: stopping, and what brokers run."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from tests.support.slots import SlotHost, find_processes, handle_in, lives
from tests.support.waiting import wait_until

from pypto_serving_router.launch import slotctl

IGNORES_TERM = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


def children_of(pid: int) -> list[int]:
    return [process.pid for process in slotctl.list_processes().values() if process.parent == pid]


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
