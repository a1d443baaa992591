"""Inputs that are kept: seeds, and whatever a campaign has ever found."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.target import CORPUS
from fuzz.targets import TARGETS

KEPT = [(target, path.name) for target in TARGETS.values() for path in target.kept()]


@pytest.mark.parametrize(("target", "name"), KEPT, ids=[f"{target.name}-{name}" for target, name in KEPT])
def test_harmless(target, name: str) -> None:  # type: ignore[no-untyped-def] # pytest's ids need it positional
    """What did harm once, or is of the kind that does elsewhere, does none (spec 4.8, 2.1, 7.13, 3.1, 7.7)."""
    target.check((CORPUS / target.name / name).read_bytes())


def test_every_target_has_inputs() -> None:
    """A folder in the corpus is a target's, and each target has one."""
    assert {path.name for path in Path(CORPUS).iterdir()} == set(TARGETS)
