"""Processes that tests start: their output, their ends, and those that were left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SESSION_MARK = "PYPTO_TEST_SESSION"
"""Every process that descends from a test run has this in its environment, unless it was cleaned."""

TEST_MARK = "PYPTO_TEST_MARK"
"""What one test's harness started, and whether it descends from a router or from a simulated replica."""

TROUBLE = ("Traceback (most recent call last)", "was never awaited", "was never retrieved")


def installed(name: str) -> str:
    """Return the path of a console script of the environment that runs the tests."""
    return str(Path(sys.executable).with_name(name))


def open_files(pid: int) -> set[Path]:
    """Tell what a process has open; nothing, if it has ended."""
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed while it was looked at
                found.add(descriptor.readlink())
    return found


class Process:
    """A started program; what it writes goes to files."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], folder: Path, name: str) -> None:
        self.stdout_path = folder / f"{name}.out"
        self.stderr_path = folder / f"{name}.err"
        with self.stdout_path.open("wb") as out, self.stderr_path.open("wb") as err:
            self._popen = subprocess.Popen(
                list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder
            )
        self.pid = self._popen.pid

    @property
    def stdout(self) -> str:
        """What it has written to stdout so far."""
        return self.stdout_path.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has written to stderr so far."""
        return self.stderr_path.read_text(errors="replace")

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._popen.send_signal(number)

    def wait(self, timeout: float = 30.0) -> int:
        """Return its exit status.

        Raises:
            AssertionError: it still ran after `timeout` seconds.
        """
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"process {self.pid} did not end within {timeout:g} s; stderr:\n{self.stderr}"
            ) from None

    def kill(self) -> int:
        """End it at once; return its exit status."""
        self._popen.kill()
        return self.wait()

    def stop(self, timeout: float = 30.0) -> int:
        """Ask it to end; return its exit status."""
        self._popen.terminate()
        return self.wait(timeout)

    def troubles(self) -> list[str]:
        """Return the signs of an error that nobody handled."""
        return [sign for sign in TROUBLE if sign in self.stderr + self.stdout]


def environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return our environment without the developer's own router settings, with changes; None removes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYPTO_ROUTER_")}
    return {name: value for name, value in {**kept, **changes}.items() if value is not None}


def marked(name: str, value: str) -> dict[int, str]:
    """Return the living processes that have `name=value` in their environment: pid and what they are."""
    wanted = f"{name}={value}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        # A process may end while we look, or be somebody else's; a zombie's environment is empty.
        with contextlib.suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            if wanted not in variables:
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            test = next((v[20:].decode() for v in variables if v.startswith(b"PYTEST_CURRENT_TEST=")), "no test")
            found[int(folder.name)] = f"{command} (started by {test})"
    return found


def end_marked(name: str, value: str) -> dict[int, str]:
    """Kill what `marked` finds, until nothing is found; return what was found."""
    all_found: dict[int, str] = {}
    while found := marked(name, value):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        all_found |= found
    return all_found
