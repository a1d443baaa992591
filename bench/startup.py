"""What it costs to start our router: CPU time from the command to the open port, and which imports take it.

python -m bench.startup [--rounds 5]
"""

import argparse
import contextlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.catalogue import OURS, Programs
from bench.machine import require_linux
from bench.processes import cpu_usage, process_tree
from bench.proxy import fleet_file, free_port

_GOAL = 0.5
_GIVE_UP = 60.0
_LINE = re.compile(r"^import time:\s+(\d+) \|\s+(\d+) \|(\s+)(\S+)$", re.MULTILINE)


class Start(NamedTuple):
    """One start, in seconds."""

    cpu: float
    wall: float


@dataclass(frozen=True, slots=True)
class Import:
    """One module's import, in microseconds."""

    module: str
    own: int
    whole: int
    """With what it imports."""


def imports(text: str) -> list[Import]:
    """Return the imports in the output of `python -X importtime`."""
    return [Import(name, int(own), int(whole)) for own, whole, _, name in _LINE.findall(text)]


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def start(command: Sequence[str], folder: Path, log: Path) -> Start:
    """Start the router, wait until its port is open, end it; return what that took.

    Raises:
        RuntimeError: it ended, or did not listen in time.
    """
    port = free_port()
    argv = [*command, "--replicas", str(fleet_file(folder, [("127.0.0.1", 9)])), "--host", "127.0.0.1"]
    with log.open("wb") as errors:
        begun = time.monotonic()
        process = subprocess.Popen([*argv, "--port", str(port)], stdout=errors, stderr=errors)
        try:
            while not _listens(port):
                if process.poll() is not None or time.monotonic() - begun > _GIVE_UP:
                    raise RuntimeError(f"{OURS} does not listen: {log.read_text()[-400:]}")
                time.sleep(0.002)
            return Start(cpu_usage(process_tree(process.pid)).exact, time.monotonic() - begun)
        finally:
            process.kill()
            process.wait()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    require_linux()
    command = Programs({}).find("pypto-serving-router")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "log.txt"
        start([command], folder, log)  # compiles what was never imported before, reads the disk
        starts = [start([command], folder, log) for _ in range(rounds)]
        start([sys.executable, "-X", "importtime", command], folder, log)
        found = imports(log.read_text())
    cpu = [s.cpu for s in starts]
    print(f"From command to open port, {rounds} starts, warm:\n")
    print("| | least | median |\n|---|---|---|")
    print(f"| CPU, s | {min(cpu):.3f} | {statistics.median(cpu):.3f} |")
    wall = [s.wall for s in starts]
    print(f"| wall clock, s | {min(wall):.3f} | {statistics.median(wall):.3f} |")
    total = sum(module.own for module in found) / 1e3
    print(f"\n{len(found)} modules imported in {total:.0f} ms under -X importtime; the dearest by themselves:\n")
    print("| module | itself, ms | with its imports, ms |\n|---|---|---|")
    for module in sorted(found, key=lambda m: m.own, reverse=True)[:15]:
        print(f"| {module.module} | {module.own / 1e3:.1f} | {module.whole / 1e3:.1f} |")
    met = statistics.median(cpu) <= _GOAL
    print(f"\nAt most {_GOAL:g} s of CPU to start: {'PASS' if met else 'MISS'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
