"""Hosts over ssh: what can go wrong on the way, with a real sshd, and hosts that are cut off or rebooted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.processes import open_files
from tests.support.slots import Hand, all_ended, find_processes, lives
from tests.support.sshd import write_ssh_wrapper
from tests.support.waiting import wait_until

from pypto_serving_router.core.slot import Gone, Launched, Unknown
from pypto_serving_router.errors import TransportError
from pypto_serving_router.launch.ssh import SshTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.netlab import Lab
    from tests.support.sshd import Sshd


def put_first_in_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def hand(tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hand]]:
    """Make launchers for a slot that is reached by one of the sshd's aliases."""
    put_first_in_path(monkeypatch, sshd.bin)

    def make(ssh: str, **fields: Any) -> Hand:
        return Hand(tmp_path, "sh", "-c", "exec sleep 60", ssh=ssh, **fields)

    with all_ended():
        yield make


# --- the command line ------------------------------------------------------------------------


@pytest.mark.parametrize("identity_file", [None, "/keys/100% mine"])
def test_the_client_is_told_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity_file: str | None
) -> None:
    """It never asks, gives up in bounded time, uses the key it is given and takes nothing for an option (spec 7.3)."""
    write_ssh_wrapper(tmp_path / "bin", ["printf", "'%s\\n'"])
    put_first_in_path(monkeypatch, tmp_path / "bin")
    transport = SshTransport("me@node01", identity_file=identity_file, connect_timeout=2.5, alive_interval=5)

    completed = asyncio.run(transport.run(["two words", "it's", "$HOME"], timeout=10))

    said = completed.stdout.decode().splitlines()
    assert said[-3:] == ["--", "me@node01", """'two words' 'it'"'"'s' '$HOME'"""]
    assert {"-oBatchMode=yes", "-oConnectTimeout=3", "-oServerAliveInterval=5", "-oControlPath=none"} <= set(said)
    identity = {"-oIdentitiesOnly=yes", '-oIdentityFile="/keys/100%% mine"'}
    assert identity & set(said) == (identity if identity_file else set())


@pytest.mark.ssh
def test_a_destination_is_never_an_option(hand: Callable[..., Hand], tmp_path: Path) -> None:
    """What stands in the fleet file runs nothing on the router's machine (spec 7.3)."""
    answer = hand(f"-oProxyCommand=touch {tmp_path}/trace").start()

    assert isinstance(answer, Gone)
    assert answer.refused
    assert not (tmp_path / "trace").exists()


# --- ways that lead nowhere ------------------------------------------------------------------


@pytest.mark.ssh
@pytest.mark.parametrize(
    ("alias", "words"),
    [
        ("key-refused", "Permission denied"),
        ("host-unknown", "Host key verification failed."),
        ("host-changed", "has changed and you have requested strict checking"),
        ("port-closed", "Connection refused"),
    ],
)
def test_a_host_that_does_not_let_us_in_refuses(hand: Callable[..., Hand], alias: str, words: str) -> None:
    """Nothing was started, and ssh's own words say why (spec 6.3, 7.3)."""
    answer = hand(alias).start()

    assert isinstance(answer, Gone)
    assert answer.refused
    assert answer.detail.startswith(f"ssh {alias}: ")
    assert words in answer.detail


@pytest.mark.ssh
def test_a_host_that_says_nothing_refuses(hand: Callable[..., Hand]) -> None:
    """Where a connection is accepted and nothing follows, the wait is bounded (spec 7.3)."""
    started_at = time.monotonic()

    answer = hand("port-silent", options={"connect_timeout": 1.0}).start()

    assert isinstance(answer, Gone)
    assert answer.refused
    assert "timed out" in answer.detail
    assert time.monotonic() - started_at < 20


@pytest.mark.ssh
@pytest.mark.parametrize("alias", ["noisy", "self-willed"])
def test_a_host_with_ways_of_its_own_is_used(hand: Callable[..., Hand], alias: str) -> None:
    """Neither login files that print nor settings for sessions by hand are in the way (spec 7.3)."""
    one = hand(alias)

    assert isinstance(one.start(), Launched)
    assert isinstance(one.stop(), Gone)


@pytest.mark.ssh
def test_an_identity_file_is_used(hand: Callable[..., Hand], sshd: Sshd, tmp_path: Path) -> None:
    """Where ssh_config names no key, the host's `identity_file` does, whatever its name (spec 2.3, 7.3)."""
    key = tmp_path / "100% 'mine' %h \\ \"it\""
    key.write_bytes((sshd.folder / "id").read_bytes())
    key.chmod(0o600)

    assert isinstance(hand("no-key").inspect(), Unknown)
    assert isinstance(hand("no-key", identity_file=str(key)).inspect(), Gone)


@pytest.mark.ssh
def test_a_remote_exit_of_255_is_an_error(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't be told from a failure of ssh itself (spec 7.7)."""
    put_first_in_path(monkeypatch, sshd.bin)
    transport = SshTransport("node01", connect_timeout=5, alive_interval=5)

    with pytest.raises(TransportError, match="ssh node01: bye"):
        asyncio.run(transport.run(["sh", "-c", "echo bye >&2; exit 255"], timeout=10))


# --- hosts that are lost and found -----------------------------------------------------------


@pytest.fixture
def remote(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hand]:
    """Make launchers for a slot on a host of the laboratory."""
    put_first_in_path(monkeypatch, lab.bin)

    def make(folder: Path, script: str) -> Hand:
        options = {"connect_timeout": 5.0, "alive_interval": 1.0}
        return Hand(folder, "sh", "-c", script, ssh="node01", options=options)

    return make


def find_slotctl(lab: Lab, action: str) -> int | None:
    """Find the program on the host: its arguments stand apart, those of the shell that ran it do not."""
    return next(iter({*find_processes(f"slotctl\0{action}\0")} & {*lab.pids("node01")}), None)


@pytest.mark.netns
@pytest.mark.slow
def test_a_start_that_is_cut_off_never_comes_late(remote: Callable[..., Hand], lab: Lab) -> None:
    """Packets vanish in the middle of a start: unknown in bounded time. Once the host is back, a stop is confirmed, and
    the start, which has been on the host all the time, finds the fence and refuses (spec 7.7)."""
    one = remote(lab.disk, "exec sleep 60")
    logs = f"{lab.disk}/logs"
    lab.run_on("node01", ["mkdir", logs])
    lab.run_on("node01", ["sh", "-c", f"flock {logs}/n-d0.lock sleep 60 >/dev/null & echo"])
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(one.start, 1)
        slotctl = wait_until(lambda: find_slotctl(lab, "start"))
        assert slotctl
        wait_until(lambda: "n-d0.lock" in {path.name for path in open_files(slotctl)})
        os.kill(slotctl, signal.SIGSTOP)
        lab.drop("node01")
        cut_at = time.monotonic()
        answer = starting.result()
    assert isinstance(answer, Unknown)
    assert "not responding" in answer.detail
    assert time.monotonic() - cut_at < 20

    lab.heal("node01")
    lab.run_on("node01", ["pkill", "-x", "sleep"])
    assert isinstance(one.stop(1, None), Gone)
    os.kill(slotctl, signal.SIGCONT)
    wait_until(lambda: not lives(slotctl))

    assert isinstance(one.inspect(1), Gone)
    assert not [command for command in lab.commands("node01") if "sleep 60" in command]
    assert isinstance(one.start(2), Launched)


@pytest.mark.netns
@pytest.mark.slow
def test_a_stop_that_is_cut_off_goes_on(remote: Callable[..., Hand], lab: Lab) -> None:
    """The cable is pulled in the middle of a stop: unknown in bounded time, while the host ends the replica. Once the
    host is back, the same stop is confirmed (spec 7.6, 7.7, X12)."""
    one = remote(lab.disk, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    launched = one.launch()
    one.wait_for_log("ready")
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(one.stop, 1, launched.handle, grace=2.0)
        slotctl = wait_until(lambda: find_slotctl(lab, "stop"))
        assert slotctl
        lab.cut("node01")
        cut_at = time.monotonic()
        answer = stopping.result()
    assert isinstance(answer, Unknown)
    assert time.monotonic() - cut_at < 20

    wait_until(lambda: not lives(slotctl))
    assert str(launched.handle.pid) not in lab.run_on("node01", ["ps", "-eo", "pid"]).split()
    lab.heal("node01")
    assert isinstance(one.stop(1, launched.handle), Gone)


@pytest.mark.netns
def test_a_pid_that_is_reused_after_a_reboot_is_not_touched(
    remote: Callable[..., Hand], lab: Lab, tmp_path: Path
) -> None:
    """Pids start low again: the recorded process is gone, and its pid is somebody else's (spec 7.6)."""
    one = remote(tmp_path, "exec sleep 60")
    lab.run_on("node01", ["sh", "-c", "for _ in $(seq 200); do /bin/true; done"])  # pids that the next boot begins with
    launched = one.launch()
    lab.reboot("node01")
    take_pid = (
        "import os, signal, sys\n"
        "while (pid := os.fork()) != int(sys.argv[1]):\n"
        "    if not pid:\n"
        "        os.setsid(); os.execvp('sleep', ['sleep', '60'])\n"
        "    assert pid < int(sys.argv[1]), pid\n"
        "    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)\n"
    )
    lab.run_on("node01", ["sh", "-c", f'{sys.executable} -c "$1" {launched.handle.pid} >/dev/null', "sh", take_pid])
    state = ["ps", "-o", "comm=", "-p", str(launched.handle.pid)]
    wait_until(lambda: "sleep" in lab.run_on("node01", state))

    assert isinstance(one.inspect(1, launched.handle), Gone)
    assert isinstance(one.stop(1, launched.handle, grace=0), Gone)

    assert "sleep" in lab.run_on("node01", state)
    assert isinstance(one.start(2), Launched)
