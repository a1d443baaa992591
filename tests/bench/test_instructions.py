"""The count of instructions: what is read of callgrind's files, and what is said where there is no callgrind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.instructions import executed

ROOT = Path(__file__).resolve().parents[2]


def count(*words: object, path: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "bench.instructions", *map(str, words)]
    environment = {**os.environ, "PATH": str(path)}
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_all_that_was_counted_is_added_up(tmp_path: Path) -> None:
    """A proxy's processes and their dumps have a file each, of which those with nothing counted say so (spec 8)."""
    for name, total in {"callgrind.7": 0, "callgrind.7.1": 1200, "callgrind.8.1": 34, "log.txt": 5}.items():
        (tmp_path / name).write_text(f"version: 1\nevents: Ir\n\nfn=(1) main\n0 {total}\n\ntotals: {total}\n")

    assert executed(tmp_path) == 1234


def test_without_valgrind_it_says_what_to_install(tmp_path: Path) -> None:
    """What is missing is named before anything is started (spec 8)."""
    done = count("--out", tmp_path / "out", path=tmp_path)

    assert done.returncode == 1
    assert done.stderr == "instructions are counted by valgrind, which is not installed (Debian: valgrind)\n"
    assert not (tmp_path / "out").exists()


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    """A proxy or a test that does not exist is an error of usage (spec 8)."""
    done = count("--peers", "ours,apache", "--tests", "req,all", path=tmp_path)

    assert done.returncode == 2
    assert done.stderr.endswith("error: nothing is called apache, all\n")
