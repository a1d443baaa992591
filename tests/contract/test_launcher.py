"""What a launcher does for a slot: the same tests on the router's machine and over a real ssh."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from tests.support.slots import Hand, all_ended, find_processes, lives

from pypto_serving_router.config.model import SlotSpec
from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.core.slot import Gone, Launched, Occupied, Slot, Unknown
from pypto_serving_router.launch.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def hand(tmp_path: Path, destination: str | None) -> Iterator[Callable[..., Hand]]:
    """Make launchers for a slot in the test's folder; whatever they leave is killed."""

    def make(*serve_command: str, **fields: Any) -> Hand:
        return Hand(tmp_path, *serve_command, ssh=destination, **fields)

    with all_ended():
        yield make


def test_a_replica_lives_and_ends(hand: Callable[..., Hand]) -> None:
    """Start, inspect, log and stop tell one story, which a stop ends (spec 7.2, 7.3, 7.7, 6.5)."""
    one = hand("sh", "-c", "echo loading $0; exec sleep 60")

    launched = one.launch(1)
    assert lives(launched.handle.pid)
    assert one.inspect(1, launched.handle) == launched
    lines = one.wait_for_log("loading").splitlines()
    assert lines[0].startswith("--- n-d0 launch 1 at ")
    assert lines[1] == f"loading {one.host.model}"

    assert isinstance(one.stop(1, launched.handle), Gone)
    assert not lives(launched.handle.pid)
    assert isinstance(one.inspect(1, launched.handle), Gone)
    assert "loading" in one.log(), "it is there to be read after the end"


def test_many_replicas_are_looked_at_with_one_command(hand: Callable[..., Hand]) -> None:
    """The router that comes after a crash asks each host once, and is told of each replica (spec 7.13)."""
    commands: list[str] = []
    one = hand("sh", "-c", "exec sleep 60")
    specs = [SlotSpec(SlotId(f"n-d{n}"), one.host, (n,), 8001 + n) for n in range(3)]
    launcher = Launcher(specs, observe=lambda _host, action, *_: commands.append(action))

    async def look() -> tuple[list[object], object]:
        launched: list[object] = [await launcher.start(spec.id, 7) for spec in specs[:2]]
        commands.clear()
        slots = [Slot(spec.id, HostId("n"), "127.0.0.1", spec.port, spec.devices, generation=7) for spec in specs]
        return launched, await launcher.inspect_all(slots)

    launched, found = uvloop.run(look())

    assert commands == ["inspect-all"]
    gone = Gone(7, None, "nothing of this launch is on the host")
    assert found == dict(zip((spec.id for spec in specs), (*launched, gone), strict=True))


def test_a_slot_whose_earlier_replica_lives_is_occupied(hand: Callable[..., Hand]) -> None:
    """A start that an earlier process is in the way of starts nothing, and does not call the slot free (spec 7.4)."""
    one = hand("sh", "-c", "exec sleep 60")
    launched = one.launch(1)

    second = one.start(2)

    assert isinstance(second, Occupied)
    assert f"process {launched.handle.pid}" in second.detail
    assert isinstance(one.stop(1, launched.handle), Gone)
    assert isinstance(one.start(3), Launched)


def test_everything_arrives_as_it_is(hand: Callable[..., Hand], tmp_path: Path) -> None:
    """Arguments, variables and folders mean nothing to a shell on the way (spec 7.3)."""
    awkward = ["", "two words", "it's", 'a "b"', "$HOME", "$(id)", "a\nb", "\\", "ü→😀"]
    workdir = tmp_path / "work $HOME 'ü'"
    workdir.mkdir()
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['AWKWARD'], os.getcwd()]))"
    one = hand(sys.executable, "-c", show, *awkward, env={"AWKWARD": "\n".join(awkward)}, workdir=str(workdir))

    one.launch()

    shown = json.loads(one.wait_for_log("\n[").splitlines()[1])
    assert shown == [[*awkward, one.host.model], "\n".join(awkward), str(workdir)]


def test_no_secret_of_the_router_arrives(hand: Callable[..., Hand], monkeypatch: pytest.MonkeyPatch) -> None:
    """The router's settings reach no replica, even where ssh is told to send every variable (spec 1.3, 2.3)."""
    monkeypatch.setenv("PYPTO_ROUTER_ADMIN_TOKEN", "hunter2")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    one = hand("sh", "-c", "env; echo done")

    one.start()

    log = one.wait_for_log("done")
    assert "hunter2" not in log
    assert "\nSSH_" not in log


def test_a_start_that_the_host_refuses_is_gone(hand: Callable[..., Hand]) -> None:
    """It is told at once and in the system's words that nothing runs (spec 6.3, 7.2)."""
    refused = hand("no-such-program").start()

    detail = "cannot run no-such-program: No such file or directory: no-such-program"
    assert refused == Gone(1, None, detail, refused=True)


def test_a_launch_that_ends_is_gone_with_its_reason(hand: Callable[..., Hand]) -> None:
    """A process that exits while it starts is told with its status and its last words (spec 7.5)."""
    one = hand("sh", "-c", "echo wants 8 devices; exit 3")

    gone = one.wait_for_end(one.launch(4))

    assert gone == Gone(4, 3, "exited with status 3; its log ends:\nwants 8 devices")


def test_what_a_dead_engine_left_ends_the_launch(hand: Callable[..., Hand]) -> None:
    """Its processes still hold devices: it is gone as far as starting goes, and a stop ends the rest (spec 7.5, X7)."""
    one = hand("sh", "-c", "sleep 60 & exit 1")

    launched = one.launch()
    gone = one.wait_for_end(launched)
    assert gone.exit_status == 1
    assert "it left process" in gone.detail

    assert isinstance(one.stop(1, launched.handle), Gone)
    assert not find_processes(one.host.model)


def test_a_stopped_generation_never_starts(hand: Callable[..., Hand]) -> None:
    """A start that comes after the stop of its generation is refused on the host itself (spec 7.7)."""
    one = hand("sh", "-c", "exec sleep 60")

    assert isinstance(one.stop(5), Gone)

    refused = one.start(5)
    assert isinstance(refused, Gone)
    assert refused.refused
    assert isinstance(one.start(6), Launched)


def test_a_stop_that_is_not_confirmed_is_unknown(hand: Callable[..., Hand]) -> None:
    """A stop command that fails leaves the devices in an unknown state (spec 7.7)."""
    one = hand("sh", "-c", "exec sleep 60", stop_command=("sh", "-c", "echo no such job; exit 1"))
    launched = one.launch()

    answer = one.stop(1, launched.handle)

    assert answer == Unknown(1, "the stop command exited with status 1; its log ends:\nno such job")


def test_a_folder_that_cannot_be_made_is_told(hand: Callable[..., Hand], tmp_path: Path) -> None:
    """Where the log cannot be written, the path and the reason are in the refusal (spec 6.3)."""
    (tmp_path / "logs").write_text("a file in the way")

    refused = hand("true").start()

    assert isinstance(refused, Gone)
    assert refused.refused
    assert f"{tmp_path}/logs" in refused.detail
