"""What a launcher makes of answers, and of none; what it does for slots is in tests/contract/test_launcher.py."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import uvloop
from tests.support.slots import Hand, all_ended
from tests.support.sshd import write_ssh_wrapper

from pypto_serving_router.config.load import parse_fleet
from pypto_serving_router.config.model import HostSpec, SlotSpec
from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.core.slot import Gone, Launched, Slot, Unknown
from pypto_serving_router.errors import TransportError
from pypto_serving_router.launch import launcher as launchers
from pypto_serving_router.launch.launcher import Launcher
from pypto_serving_router.launch.local import LocalTransport
from pypto_serving_router.launch.transport import Completed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


RUNS = 'sh -c "$command"'


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[Callable[..., Hand]]:
    """Make launchers for a slot in the test's folder; whatever they leave is killed."""

    def make(*serve_command: str, **fields: Any) -> Hand:
        return Hand(tmp_path, *serve_command, **fields)

    with all_ended():
        yield make


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a script in place of ssh; in it, `$command` is what ssh would run."""

    def write(script: str) -> None:
        last = 'for command; do :; done; case "$command" in'
        (tmp_path / "fake").write_text(f"{last}\n{script}\nesac\n")
        write_ssh_wrapper(tmp_path / "bin", ["/bin/sh", str(tmp_path / "fake")])
        monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")

    return write


@pytest.mark.parametrize("loss", [f"{RUNS} >/dev/null", "true"], ids=["the answer", "the command"])
def test_a_break_in_the_middle_of_a_start_is_unknown(
    hand: Callable[..., Hand], fake_ssh: Callable[[str], None], loss: str
) -> None:
    """Once the command has left, an error says nothing of what it did (spec 7.5)."""
    fake_ssh(f"*' start '*) {loss}; echo broken >&2; exit 255;; *) {RUNS};; esac; case x in")
    one = hand("sh", "-c", "exec sleep 60", ssh="node01")

    assert one.start() == Unknown(1, "ssh node01: broken")
    assert isinstance(one.inspect(), Gone if loss == "true" else Launched)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("*) echo permission denied >&2; exit 255;;", "ssh node01: permission denied"),
        ("*) exit 255;;", "ssh node01: failed without a word"),
        ("*) echo 'python3: not found' >&2; exit 127;;", "no answer, exit status 127: python3: not found"),
        ('*) echo \'{"state": "running"}\';;', "no answer, exit status 0: without a word"),
        (f"*) {RUNS} | head -c 50;;", "an answer that cannot be read: Input data was truncated"),
    ],
)
def test_a_host_that_cannot_be_used_refuses_a_start(
    hand: Callable[..., Hand], fake_ssh: Callable[[str], None], script: str, words: str
) -> None:
    """Where not even a look succeeds nothing was started; to a look or a stop, the same is unknown (spec 6.3, 7.7)."""
    fake_ssh(script)
    one = hand("true", ssh="node01")

    assert one.start(3) == Gone(3, None, words, refused=True)
    assert one.inspect(3) == Unknown(3, words)
    assert one.stop(3) == Unknown(3, words)
    slots = [Slot(one.slot.id, HostId("n"), "127.0.0.1", 8001, (0,), generation=3)] * 2
    assert uvloop.run(one.launcher.inspect_all(slots)) == {one.slot.id: Unknown(3, words)}
    with pytest.raises(TransportError, match=words.partition(":")[0]):
        one.log()


def test_an_answer_is_found_among_other_lines(hand: Callable[..., Hand], fake_ssh: Callable[[str], None]) -> None:
    """Login files may print before, after and without the end of a line (spec 7.3)."""
    fake_ssh(f"*) echo Welcome; printf MOTD; {RUNS}; echo Bye;;")

    assert isinstance(hand("sh", "-c", "exec sleep 60", ssh="node01").start(), Launched)


def test_an_answer_that_does_not_come_is_bounded(hand: Callable[..., Hand], tmp_path: Path) -> None:
    """A host that hangs is unknown after `patience` and `connect_timeout` (spec 7.3)."""
    one = hand("true", options={"connect_timeout": 0.5, "patience": 2.5})
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / "n-d0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        answer = one.start()

    assert isinstance(answer, Unknown)
    assert answer.detail.endswith("was not done after 3 s")


def test_every_command_is_told_once(hand: Callable[..., Hand]) -> None:
    """Each command on a host is measured and logged, with what it was and how it ended (spec 9)."""
    seen: list[tuple[str, str, float, str]] = []
    one = hand("true", options={"observe": lambda *what: seen.append(what)})

    with structlog.testing.capture_logs() as logs:
        one.start(7)

    assert [(host, action, outcome) for host, action, _, outcome in seen] == [
        ("n", "inspect", "ok"),
        ("n", "start", "ok"),
    ]
    assert all(0 < seconds < 60 for _, _, seconds, _ in seen)
    assert [(log["event"], log["host"], log["action"], log["generation"], log["exit"]) for log in logs] == [
        ("command run on host", "n", "inspect", 7, 0),
        ("command run on host", "n", "start", 7, 0),
    ]


def test_a_command_without_an_answer_is_told_as_an_error(
    hand: Callable[..., Hand], fake_ssh: Callable[[str], None]
) -> None:
    """An operator sees which host does not answer (spec 9)."""
    fake_ssh("*) exit 255;;")
    seen: list[str] = []
    one = hand("true", ssh="node01", options={"observe": lambda *what: seen.append(what[3])})

    with structlog.testing.capture_logs() as logs:
        one.inspect()

    assert seen == ["error"]
    assert [log["exit"] for log in logs] == [None]


@pytest.mark.parametrize("page", ["brokers", "ssh"])
def test_the_fleet_files_that_are_shown_are_accepted(page: str) -> None:
    """An operator who copies a fleet file from the pages on launching gets slots that can be launched (spec 2.3)."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    examples = re.findall(r"^ *```json\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert len(examples) == 2

    for example in examples:
        Launcher(parse_fleet(example.encode(), source=page).slots)


def test_no_more_commands_at_once_than_a_host_admits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default sshd drops some of more than ten connections that log in at the same time (spec 7.2)."""
    running = {"one": 0, "two": 0}
    most = dict(running)

    class Counting(LocalTransport):
        async def run(self, argv: Any, **_: Any) -> Completed:
            host = argv[-1].partition("-")[0]
            running[host] += 1
            most[host] = max(most[host], running[host])
            await asyncio.sleep(0.01)
            running[host] -= 1
            return Completed(0, b"", b"")

    monkeypatch.setattr(launchers, "LocalTransport", Counting)
    hosts = [HostSpec(name=name, address="127.0.0.1", devices=(0,), model="m", log_dir=str(tmp_path)) for name in most]
    slots = [SlotSpec(SlotId(f"{host.name}-d{n}"), host, (n,), 8001 + n) for host in hosts for n in range(30)]
    launcher = Launcher(slots)

    async def inspect_all() -> None:
        await asyncio.gather(*(launcher.inspect(slot.id, 1, None) for slot in slots))

    asyncio.run(inspect_all())

    assert most == {"one": launchers.AT_ONCE, "two": launchers.AT_ONCE}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b'{"state": "log", "data": "a"}', "a log that cannot be read"),
        (b'{"state": "failed"}', "does not say why"),
        (b'{"state": "failed", "detail": "' + b"x" * 100_000 + b'"}', "x" * 100),
        (b"\xff", "an answer that cannot be read"),
        (b'{"state": "log", "x": ' + b"[" * 50_000, "an answer that cannot be read"),
        (b'{"state": "\xff"}', "an answer that cannot be read"),
        (b'{"state": "inspected", "answers": [1]}', "an answer that cannot be read"),
    ],
)
def test_a_host_that_answers_nonsense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, says: str
) -> None:
    """Whatever a host answers is an observation or *unknown*, in words of bounded length (spec 7.7)."""

    class Lying(LocalTransport):
        async def run(self, *_: Any, **__: Any) -> Completed:
            return Completed(0, b"m " + answer, b"")

    monkeypatch.setattr(launchers, "LocalTransport", Lying)
    monkeypatch.setattr("secrets.token_hex", lambda _: "m")
    host = HostSpec(name="n", address="127.0.0.1", devices=(0,), model="m", log_dir=str(tmp_path))
    launcher = Launcher([SlotSpec(SlotId("n-d0"), host, (0,), 8001)])

    with pytest.raises(TransportError, match=says):
        asyncio.run(launcher.log(SlotId("n-d0"), lines=1))
    observed = asyncio.run(launcher.inspect(SlotId("n-d0"), 1, None))
    assert isinstance(observed, Unknown)
    assert len(observed.detail) <= launchers.LONGEST_DETAIL
    slots = [Slot(SlotId("n-d0"), HostId("n"), "127.0.0.1", 8001, (0,), generation=1)]
    assert isinstance(asyncio.run(launcher.inspect_all(slots))[SlotId("n-d0")], Unknown)


# --- brokers ---------------------------------------------------------------------------------


def write_program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_broker_that_queues(hand: Callable[..., Hand], tmp_path: Path) -> None:
    """It is alive while it waits for devices, then runs the one argument it was given, and passes the end on
    (spec 2.3, 7.5)."""
    wait = f'until [ -e "{tmp_path}/granted" ]; do sleep 0.05; done; exec sh -c "$2"'
    broker = write_program(tmp_path / "task-submit", wait)
    one = hand("sh", "-c", "echo 'it runs'; exit 7", launch_wrapper=(broker, "--run"))
    launched = one.launch()
    assert one.inspect(1, launched.handle) == launched

    (tmp_path / "granted").touch()

    assert one.wait_for_end(launched) == Gone(1, 7, "exited with status 7; its log ends:\nit runs")


def test_a_broker_that_refuses(hand: Callable[..., Hand], tmp_path: Path) -> None:
    """What it says, and the status it ends with, are the reason that the launch failed (spec 7.5)."""
    broker = write_program(tmp_path / "task-submit", "echo no device is free >&2; exit 75")
    one = hand("sleep", "60", launch_wrapper=(broker, "--run"))

    gone = one.wait_for_end(one.launch())

    assert gone == Gone(1, 75, "exited with status 75; its log ends:\nno device is free")


def test_a_broker_that_runs_the_work_elsewhere(hand: Callable[..., Hand], tmp_path: Path) -> None:
    """It exits 0 at once, which is told as such; only its stop command can end the work, and does (spec 7.5, 7.6)."""
    os.mkfifo(tmp_path / "jobs")
    broker = write_program(tmp_path / "task-submit", f'printf %s "$2" >"{tmp_path}/jobs"')
    cancel = write_program(tmp_path / "task-cancel", f'kill "$(cat "{tmp_path}/pid")"')
    works: list[subprocess.Popen[bytes]] = []

    def elsewhere() -> None:
        job = (tmp_path / "jobs").read_text()
        works.append(subprocess.Popen(["sh", "-c", f"exec {job}"], start_new_session=True, env={}))
        (tmp_path / "pid").write_text(str(works[0].pid))

    service = threading.Thread(target=elsewhere)
    service.start()
    one = hand("/bin/sh", "-c", "exec /bin/sleep 60", launch_wrapper=(broker, "--run"), stop_command=(cancel,))
    launched = one.launch()
    service.join(timeout=20)

    assert one.wait_for_end(launched).exit_status == 0
    assert works[0].poll() is None

    assert isinstance(one.stop(1, launched.handle), Gone)
    assert works[0].wait(timeout=10) == -15
