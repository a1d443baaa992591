"""How the source is laid out: a test file for each module, short modules that say what they are, no banned calls."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "pypto_serving_router"
TESTS = ROOT / "tests"
MODULES = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}

LONGEST = 500
"""Lines of a module."""

LONGER = {"launch/slotctl.py": 530}
"""It is sent to hosts as it is, so it is one text."""

WITHOUT_A_TEST_OF_THEIR_OWN = {
    "__main__.py": "three lines that tests/test_cli.py runs",
    "sim/__main__.py": "three lines that tests/sim/test_cli.py runs",
    "errors.py": "values that say nothing but what they are",
    "core/ids.py": "names of types",
    "core/exchanged.py": "values that say nothing but what they are",
    "telemetry/sources.py": "values that say nothing but what they are",
}
"""Each with its reason."""

BANNED = {
    "asyncio.create_task": "its task may be collected while it runs: use a TaskGroup, or the helper that keeps it",
    "asyncio.ensure_future": "its task may be collected while it runs: use a TaskGroup, or the helper that keeps it",
    "time.sleep": "it stops the event loop",
    "time.time": "it jumps",
    "time.monotonic": "time is an argument",
    "random.random": "what is random is an argument",
    "os.system": "a shell reads its argument",
    "print": "the log is where things are said",
}

ALLOWED = {
    "app.py": {"time.monotonic"},  # hands its clock to everybody
    "launch/slotctl.py": {"time.monotonic", "time.sleep"},  # a program of its own on the host, without an event loop
}
"""The places where a banned call is what the module is for, each with its reason."""


def test_the_source_was_found() -> None:
    """Without modules the other tests of this file would pass in vain."""
    assert {"app.py", "core/head.py", "proxy/exchange.py"} <= MODULES.keys()


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__init__.py")])
def test_every_module_has_its_test_file(name: str) -> None:
    """Whoever changes a module finds its tests where its name says."""
    expected = TESTS / Path(name).with_name(f"test_{Path(name).name}")

    assert expected.exists() or name in WITHOUT_A_TEST_OF_THEIR_OWN, f"{expected.relative_to(ROOT)} is missing"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is(name: str) -> None:
    """A module's first line is its docstring, of one sentence."""
    text = MODULES[name].read_text()
    docstring = ast.get_docstring(ast.parse(text)) or ""

    assert text.startswith('"""')
    assert docstring.partition("\n")[0].endswith((".", ":", "!", "?"))


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_short(name: str) -> None:
    """What does not fit in 500 lines has more than one job."""
    assert len(MODULES[name].read_text().splitlines()) <= LONGER.get(name, LONGEST)


@pytest.mark.parametrize("name", MODULES)
def test_no_banned_calls(name: str) -> None:
    """Calls that are wrong everywhere but in a few named places."""
    found = []
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in BANNED and called not in ALLOWED.get(name, set()):
                found.append(f"line {node.lineno}: {called}: {BANNED[called]}")

    assert not found, "\n".join(found)


def test_exceptions_are_still_needed() -> None:
    """An exception whose reason is gone is removed."""
    for name in (*WITHOUT_A_TEST_OF_THEIR_OWN, *ALLOWED):
        assert name in MODULES
    for name in WITHOUT_A_TEST_OF_THEIR_OWN:
        assert not (TESTS / Path(name).with_name(f"test_{Path(name).name}")).exists(), f"{name} has a test file"
    for name, calls in ALLOWED.items():
        called = {
            ast.unparse(n.func) for n in ast.walk(ast.parse(MODULES[name].read_text())) if isinstance(n, ast.Call)
        }
        assert calls <= called, name
