"""The threat model: every claim has a test, and the test exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
CLAIMS = re.findall(r"^\| ([A-Z].*?\.) \| (.*) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("claim", "tests"), CLAIMS, ids=[claim[:40] for claim, _ in CLAIMS])
def test_each_claim_has_a_test(claim: str, tests: str) -> None:
    """What the page promises is checked by what it names."""
    named = re.findall(r"`([^`]+)`", tests)

    assert named, claim
    for one in named:
        path, _, function = one.partition("::")
        assert (ROOT / path).is_file(), path
        found = {
            node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert not function or function in found, one


def test_every_test_is_for_a_claim() -> None:
    """Nothing is tested here that the page does not promise."""
    for path in Path(__file__).parent.glob("test_*.py"):
        if path.name != Path(__file__).name:
            for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
                assert f"{path.relative_to(ROOT)}::{name}" in PAGE


def test_the_page_is_not_empty() -> None:
    """The claims are found where they are written."""
    assert len(CLAIMS) >= 30
