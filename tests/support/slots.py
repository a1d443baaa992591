"""Slots on this machine or over ssh, used from synchronous tests; and what runs on a machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import uvloop
from tests.support.processes import TEST_MARK, end_marked
from tests.support.waiting import wait_until

from pypto_serving_router.config.model import HostSpec, SlotSpec
from pypto_serving_router.core.ids import SlotId
from pypto_serving_router.core.slot import Gone, Launched
from pypto_serving_router.launch import slotctl
from pypto_serving_router.launch.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pypto_serving_router.core.slot import Occupied, ProcessHandle, Unknown

PROGRAM = Path(slotctl.__file__).read_text(encoding="utf-8")


def lives(pid: int) -> bool:
    """Tell whether a process is there, and not as a zombie."""
    process = slotctl.find_process(pid)
    return process is not None and process.lives


def find_processes(word: str) -> list[int]:
    """Find the processes whose command line or environment contains a word."""
    found = []
    for process in slotctl.list_processes().values():
        with contextlib.suppress(OSError):
            texts = [Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
            if process.pid != os.getpid() and process.lives and any(os.fsencode(word) in text for text in texts):
                found.append(process.pid)
    return found


@contextlib.contextmanager
def all_ended() -> Iterator[None]:
    """Kill in the end whatever was launched meanwhile, and the supervisors of that."""
    mark = uuid4().hex
    os.environ[TEST_MARK] = mark
    try:
        yield
    finally:
        end_marked(TEST_MARK, mark)
        del os.environ[TEST_MARK]


def handle_in(answer: dict[str, Any]) -> dict[str, Any]:
    """Take the handle out of an answer."""
    return {key: answer[key] for key in ("pid", "started_at", "boot_id")}


class SlotHost:
    """This machine as a host: `ask` runs the program as the launcher does, for one slot with a log of its own."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.log = self.logs / "n-d0.log"
        self.record = self.logs / "n-d0.json"
        self._python = python

    def job(self, action: str, generation: int, **more: Any) -> str:
        """Write a job."""
        job = {
            "action": action, "generation": generation, "marker": "ANSWER", "log": str(self.log), "handle": None,
            "argv": ["true"], "env": {}, "workdir": None, "stop_argv": None, "wrapped": False, "grace": 5, "lines": 100,
        }  # fmt: skip
        return json.dumps(job | more)

    def command(self, action: str) -> list[str]:
        """Give the command that reads the program."""
        return [self._python, "-I", "-S", "-X", "utf8", "-W", "error", "-", "slotctl", action, "n-d0"]

    def program(self, action: str, generation: int = 1, **more: Any) -> str:
        """Write the program with its last line."""
        return f"{PROGRAM}\nmain({self.job(action, generation, **more)!r})\n"

    def ask(self, action: str, generation: int = 1, **more: Any) -> dict[str, Any]:
        """Run the program and give its answer."""
        completed = subprocess.run(
            self.command(action), input=self.program(action, generation, **more),
            capture_output=True, encoding="utf-8", check=True, timeout=60,
        )  # fmt: skip
        blank, answer, end = completed.stdout.split("\n")
        assert (blank, end, completed.stderr) == ("", "", "")
        word, _, text = answer.partition(" ")
        assert word == "ANSWER"
        parsed: dict[str, Any] = json.loads(text)
        return parsed

    def start(self, script: str, generation: int = 1, **more: Any) -> dict[str, Any]:
        """Start a shell script, which must be accepted."""
        answer = self.ask("start", generation, argv=["sh", "-c", script, str(self.folder)], **more)
        assert answer["state"] == "running", answer
        return answer

    def wait_for_output(self, text: str) -> None:
        """Wait until the log contains a text."""
        wait_until(lambda: self.log.exists() and text in self.log.read_text(encoding="utf-8"))


class Hand:
    """A launcher for one slot: each call runs to its end in a loop of its own."""

    def __init__(
        self,
        folder: Path,
        *serve_command: str,
        ssh: str | None = None,
        options: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.host = HostSpec(
            name="n", ssh=ssh, address="127.0.0.1", devices=(0,), model=str(folder),
            serve_command=(*serve_command, "{model}"), log_dir=str(folder / "logs"), **fields,
        )  # fmt: skip
        self.slot = SlotSpec(SlotId("n-d0"), self.host, (0,), 8001)
        self.launcher = Launcher([self.slot], **(options or {}))

    def start(self, generation: int = 1) -> Launched | Gone | Unknown | Occupied:
        return uvloop.run(self.launcher.start(self.slot.id, generation))

    def inspect(self, generation: int = 1, handle: ProcessHandle | None = None) -> Launched | Gone | Unknown:
        return uvloop.run(self.launcher.inspect(self.slot.id, generation, handle))

    def stop(self, generation: int = 1, handle: ProcessHandle | None = None, *, grace: float = 5.0) -> Gone | Unknown:
        return uvloop.run(self.launcher.stop(self.slot.id, generation, handle, grace=grace))

    def log(self, lines: int = 100) -> str:
        return uvloop.run(self.launcher.log(self.slot.id, lines=lines)).decode()

    def launch(self, generation: int = 1) -> Launched:
        """Start, which must be accepted."""
        launched = self.start(generation)
        assert isinstance(launched, Launched), launched
        return launched

    def wait_for_end(self, launched: Launched) -> Gone:
        """Inspect until the launch is gone."""
        answers: list[object] = []

        def ended() -> bool:
            answers.append(self.inspect(launched.generation, launched.handle))
            return isinstance(answers[-1], Gone)

        wait_until(ended)
        assert isinstance(answers[-1], Gone)
        return answers[-1]

    def wait_for_log(self, text: str) -> str:
        """Read the log until it contains a text, and give it."""
        read = [""]

        def written() -> bool:
            read[0] = self.log()
            return text in read[0]

        wait_until(written)
        return read[0]
