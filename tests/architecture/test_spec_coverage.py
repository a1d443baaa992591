"""Every numbered rule has a test that names it, and every number that a test names is a rule."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "clauses.md"

_ROW = re.compile(r"^\| ([0-9]+(?:\.[0-9]+)?) \| (\S.*\S) \|$", re.MULTILINE)
_NAMED = re.compile(r"\bspec ([0-9]+(?:\.[0-9]+)?(?:(?:,| and| to) [0-9]+(?:\.[0-9]+)?)*)")


def rules() -> dict[str, str]:
    """Give the rules by their number."""
    return dict(_ROW.findall(PAGE.read_text()))


@cache
def named_by_tests() -> dict[str, list[str]]:
    """Give the tests by the numbers that their docstrings, or those of their modules and classes, name."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                for numbers in _NAMED.findall(ast.get_docstring(node) or ""):
                    for number in re.findall(r"[0-9.]+", numbers):
                        found.setdefault(number, []).append(f"{path.name}: {getattr(node, 'name', 'the module')}")
    return found


def test_every_rule_has_a_test() -> None:
    """A rule that no test names is a wish (spec 1 to 10)."""
    named = named_by_tests()

    untested = [f"{number}: {text}" for number, text in rules().items() if number not in named]

    assert not untested, "\n".join(untested)


def test_every_number_is_a_rule() -> None:
    """A number that does not exist is a slip of the pen, or a rule that nobody can look up."""
    known = rules().keys() | {number.partition(".")[0] for number in rules()}

    strange = {number: tests for number, tests in named_by_tests().items() if number not in known}

    assert not strange


def test_rules_are_numbered_without_gaps() -> None:
    """The page lists each rule once, in order."""
    numbers = [tuple(map(int, number.split("."))) for number, _ in _ROW.findall(PAGE.read_text())]

    assert numbers == sorted(set(numbers))
    for section in {number[0] for number in numbers}:
        rules_of_section = [number[1:] for number in numbers if number[0] == section]
        assert rules_of_section == [(n,) for n in range(1, len(rules_of_section) + 1)] or rules_of_section == [()]
