"""Symptoms reported in public: each has a line in the reference and a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "symptoms.md"
LISTED = re.findall(r"^\| ([A-Z]\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def _named() -> dict[str, list[str]]:
    """Give the tests by the symptoms that their docstrings name."""
    found: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for symptom in re.findall(r"\b[SDPHFLXM]\d{1,2}\b", ast.get_docstring(node) or ""):
                    found.setdefault(symptom, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


NAMED = _named()


@pytest.mark.parametrize("symptom", LISTED)
def test_has_a_test(symptom: str) -> None:
    """None of the symptoms may be true of this router, and a test would notice."""
    assert symptom in NAMED, f"no test's docstring names {symptom}"


def test_the_list_is_whole() -> None:
    """No symptom is listed twice, and no test names one that is not listed."""
    assert len(LISTED) == len(set(LISTED)) >= 51
    assert set(NAMED) <= set(LISTED)
