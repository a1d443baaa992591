"""What is compiled while a wheel is built, and what happens where it cannot be."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest
from hatch_build import COMPILED, MSGSPEC, MYPYC, PACKAGE
from tests.support.markdown import ROOT
from tests.support.processes import environment

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = ROOT / "src" / PACKAGE


def dotted(name: str) -> str:
    """Return what a module is imported as."""
    return f"{PACKAGE}.{name.removesuffix('.py').replace('/', '.')}"


def build(tmp_path: Path, mypyc: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel with this program in the place of mypyc's."""
    pytest.importorskip("hatchling")
    (tmp_path / "mypyc").mkdir()
    (tmp_path / "mypyc/__init__.py").touch()
    (tmp_path / "mypyc/__main__.py").write_text(mypyc)
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist"],
        cwd=ROOT,
        env=environment({"PYPTO_COMPILE": None, "PYTHONPATH": str(tmp_path), **variables}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def only_wheel(tmp_path: Path) -> Path:
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    return wheel


MAKES_ONE = """
import sysconfig, pathlib
pathlib.Path("pypto_serving_router/core/chunks" + sysconfig.get_config_var("EXT_SUFFIX")).write_bytes(b"machine code")
pathlib.Path("build").mkdir()
pathlib.Path("build/litter" + sysconfig.get_config_var("EXT_SUFFIX")).touch()
"""


def test_what_was_compiled_is_in_the_wheel_beside_its_source(tmp_path: Path) -> None:
    """Python prefers it there, and a traceback still finds the line."""
    done = build(tmp_path, MAKES_ONE, PYPTO_COMPILE="1")

    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(only_wheel(tmp_path)) as wheel:
        names = wheel.namelist()
        (compiled,) = [name for name in names if name.endswith(".so")]
        assert wheel.read(compiled) == b"machine code"
    assert compiled.startswith("pypto_serving_router/core/chunks.")
    assert "pypto_serving_router/core/chunks.py" in names
    assert not only_wheel(tmp_path).name.endswith("-none-any.whl")


FAILS = "import sys; sys.exit('no such header: Python.h')"


def test_where_it_cannot_be_compiled_the_wheel_is_plain_python(tmp_path: Path) -> None:
    """It says so, and why."""
    done = build(tmp_path, FAILS, CC=sys.executable)

    assert done.returncode == 0, done.stderr
    assert "stays plain Python" in done.stdout + done.stderr
    assert "no such header: Python.h" in done.stdout + done.stderr
    assert only_wheel(tmp_path).name.endswith("-py3-none-any.whl")


def test_the_compiler_is_the_one_that_the_build_would_use(tmp_path: Path) -> None:
    """Where `CC` names none that is there, nothing is tried."""
    done = build(tmp_path, FAILS, CC="/nonexistent/cc")

    assert (done.returncode, "no such header" in done.stdout + done.stderr) == (0, False)
    assert only_wheel(tmp_path).name.endswith("-py3-none-any.whl")


def test_what_compiles_is_what_the_tests_are_run_with() -> None:
    """The build asks for the ranges that the project declares (docs/explanation/dependencies.md)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert MYPYC in project["optional-dependencies"]["dev"]
    assert MSGSPEC in project["dependencies"]


def test_who_insists_on_compiling_is_told_why_it_failed(tmp_path: Path) -> None:
    """An image that should be fast must not be slow in silence."""
    done = build(tmp_path, FAILS, PYPTO_COMPILE="1")

    assert done.returncode != 0
    assert "no such header: Python.h" in done.stdout + done.stderr


def test_a_misspelt_switch_is_refused(tmp_path: Path) -> None:
    """It names the variable and what it can be."""
    done = build(tmp_path, FAILS, PYPTO_COMPILE="yes")

    assert done.returncode != 0
    assert (done.stdout + done.stderr).strip() == "PYPTO_COMPILE is 'yes'; it can be 0, 1 or unset"


def test_without_mypyc_it_is_said_what_to_install(tmp_path: Path) -> None:
    """pip without build isolation takes only what is there."""
    done = build(tmp_path, "import sys; sys.exit('python: No module named mypyc')", PYPTO_COMPILE="1")

    assert done.returncode != 0
    assert "install 'mypy[mypyc]>=" in done.stdout + done.stderr


def test_all_that_a_request_passes_through_is_compiled() -> None:
    """Nothing of the data path is forgotten but what has coroutines, which mypyc makes in a way of its own."""
    proxy = {str(path.relative_to(SOURCE)) for path in SOURCE.glob("proxy/*.py")} - {"proxy/__init__.py"}
    waiting = {name for name in {*proxy, *COMPILED} if "async def" in (SOURCE / name).read_text()}

    assert waiting == {"proxy/connector.py", "proxy/local.py"}
    assert proxy - waiting <= set(COMPILED)
    assert not waiting & set(COMPILED)


@pytest.mark.compiled
@pytest.mark.parametrize("name", COMPILED)
def test_the_compiled_module_is_what_runs(name: str) -> None:
    """Python takes the machine code, not the source beside it."""
    module = importlib.import_module(dotted(name))

    assert module.__file__ is not None
    assert module.__file__.endswith(".so")


@pytest.mark.parametrize("name", COMPILED)
def test_any_module_may_be_the_first_that_is_imported(name: str) -> None:
    """Compiled, what needs another module's classes while it is made and has not imported it ends the process."""
    done = subprocess.run([sys.executable, "-c", f"import {dotted(name)}"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
