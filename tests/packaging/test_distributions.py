"""Wheel and source distribution: what is in them, and that they run without the checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.markdown import ROOT
from tests.support.processes import environment

from pypto_serving_router import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.router import Router

PACKAGE = ROOT / "src/pypto_serving_router"


def files(folder: Path) -> set[str]:
    """Return the files of a folder, less what python leaves there."""
    return {
        str(path.relative_to(folder.parent))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="session")
def installed_elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in an environment of its own, with the libraries of this one; return its scripts' folder."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, capture_output=True)
    python = venv / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    (site,) = venv.glob("lib/python*/site-packages")
    # Of a folder that a .pth file names, no .pth file is read: not the one that leads to the checkout, either.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv / "bin"


def run(program: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a program away from the checkout."""
    return subprocess.run(
        [program, *args],
        cwd=program.parent,
        env=environment({"PYTHONPATH": None}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_wheel_is_the_package_and_nothing_else(wheel: Path) -> None:
    """Every file of the package is in it: what hosts run, the page's files and the mark of its types too (spec 1.1)."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert names == files(PACKAGE)
    assert {"pypto_serving_router/py.typed", "pypto_serving_router/launch/slotctl.py"} <= names


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    """Name, version, licence, the Python that it needs, its commands and its page are in its metadata (spec 1.1)."""
    with zipfile.ZipFile(wheel) as archive:
        (about,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(about))
        scripts = archive.read(about.replace("METADATA", "entry_points.txt")).decode()
        licences = [name for name in archive.namelist() if name.endswith("/LICENSE")]

    assert (metadata["Name"], metadata["Version"]) == ("pypto-serving-router", __version__)
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert metadata.get_payload(decode=True) == (ROOT / "README.md").read_bytes()
    assert {line.partition(" =")[0] for line in scripts.splitlines() if "=" in line} == {
        "pypto-serving-router",
        "pypto-serving-sim",
    }
    assert licences


def test_the_wheel_is_built_from_the_sdist_alone(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """Who has only the source distribution gets the same wheel (spec 1.1)."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=source,
        env=environment({"PYPTO_COMPILE": "0"}),
        check=True,
        capture_output=True,
    )

    with zipfile.ZipFile(tmp_path / wheel.name) as second, zipfile.ZipFile(wheel) as first:
        assert {name: second.read(name) for name in second.namelist()} == {
            name: first.read(name) for name in first.namelist()
        }


def test_the_sdist_has_what_is_needed_to_work_on_it(sdist: Path) -> None:
    """Tests, documentation, examples and the commands that run them are in it, and no litter (spec 1.1)."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {
        *("Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md", "pyproject.toml"),
        *("Dockerfile", ".dockerignore", "hatch_build.py", "mkdocs.yml"),
        *("docs/tutorial.md", "docs/generate.py", "tests/conftest.py", "bench/README.md"),
        *("examples/demo.py", "examples/systemd/pypto-serving-router.service", "examples/monitoring/alerts.yml"),
    } <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".git/", ".venv/", "build/"))]


def test_the_commands_run_from_the_wheel(installed_elsewhere: Path) -> None:
    """What was installed is what runs, and it knows its version (spec 1.1)."""
    found = run(installed_elsewhere / "python", "-c", "import pypto_serving_router as p; print(p.__file__)")
    version = run(installed_elsewhere / "pypto-serving-router", "--version")
    sim = run(installed_elsewhere / "pypto-serving-sim", "--help")

    assert Path(found.stdout.strip()).is_relative_to(installed_elsewhere.parent), found.stderr
    assert version.stdout == f"pypto-serving-router {__version__} (not compiled)\n"
    assert (sim.returncode, "--sim-load-delay" in sim.stdout) == (0, True)


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel(installed_elsewhere: Path, start_router: Callable[..., Router]) -> None:
    """It launches, routes, shows its page and puts everything away, all from what was installed (spec 1.2)."""
    router = start_router(
        None, "--demo", executable=str(installed_elsewhere / "pypto-serving-router"), env={"PYTHONPATH": None}
    )
    router.wait_ready(2)
    page = router.request("GET", "/")

    assert router.request("POST", "/v1/completions", body={"prompt": "x", "max_tokens": 2}).status == 200
    assert page.status == 200
    assert page.body.startswith(b"<!doctype html>")
    assert router.stop() == 0
