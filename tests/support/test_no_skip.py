"""The plugin that turns skips into failures, and the fixture that finds what is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.processes import environment

ROOT = Path(__file__).parents[2]

SKIPPING = """
import pytest

def test_whole():
    pass

def test_skipped():
    pytest.skip("no card here")

@pytest.mark.skip(reason="not today")
def test_marked():
    pass

@pytest.mark.xfail(strict=True)
def test_known():
    assert False
"""

SKIPPED_MODULE = "import pytest\npytest.skip('no such system', allow_module_level=True)\n"

LEAVING = """
import subprocess

def test_leaving():
    subprocess.Popen(["sleep", "60"], start_new_session=True)
"""


def run(folder: Path, source: str, plugin: str, *, no_skip: bool = False) -> str:
    """Run one test file in a pytest of its own; return the last line of its report with the reasons before it."""
    (folder / "test_it.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    arguments = ["-q", "-p", plugin, "-p", "no:cacheprovider", "-c", "pytest.ini", "-rA"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env=environment(
            {
                "PYTHONPATH": str(ROOT),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYPTO_TEST_NO_SKIP": "1" if no_skip else None,
            }
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.stdout


@pytest.mark.parametrize(
    ("no_skip", "counts"), [(False, "1 passed, 2 skipped, 1 xfailed"), (True, "1 failed, 1 passed, 1 xfailed, 1 error")]
)
def test_skips_fail_where_nothing_may_be_skipped(tmp_path: Path, no_skip: bool, counts: str) -> None:
    """With PYPTO_TEST_NO_SKIP=1 a skipped test fails with its reason; expected failures stay (spec 10)."""
    report = run(tmp_path, SKIPPING, "tests.support.no_skip", no_skip=no_skip)

    assert counts in report
    assert "no card here" in report
    assert ("nothing may be" in report) == no_skip


@pytest.mark.parametrize(("no_skip", "counts"), [(False, "1 skipped"), (True, "1 error")])
def test_skipped_modules_fail_too(tmp_path: Path, no_skip: bool, counts: str) -> None:
    """With PYPTO_TEST_NO_SKIP=1 a module that skips itself is an error (spec 10)."""
    report = run(tmp_path, SKIPPED_MODULE, "tests.support.no_skip", no_skip=no_skip)

    assert counts in report
    assert "no such system" in report


def test_what_is_left_behind_is_named_and_ended(tmp_path: Path) -> None:
    """A process that outlives the run fails it, with the test that started it (spec 10)."""
    report = run(tmp_path, LEAVING, "tests.conftest")

    assert "1 passed, 1 error" in report
    assert "left behind: process" in report
    assert "sleep 60 (started by test_it.py::test_leaving" in report
