"""Campaigns: a second of each, and that a campaign finds, shrinks and keeps what does harm."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.campaign import Campaign
from fuzz.target import Target, pieces
from fuzz.targets import TARGETS
from hypothesis import strategies as st


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # of a large input, when time is over
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_short_run_finds_nothing(target: Target, tmp_path: Path) -> None:
    """No bytes from a client, a replica, a file or a host do harm (spec 4.8, 2.1, 7.13, 3.1, 7.7)."""
    campaign = Campaign(target, seed=1, corpus=tmp_path)

    campaign.run(1.0)

    assert campaign.findings == []
    assert campaign.executions > len(target.kept())


def test_a_finding_is_made_small_and_kept(tmp_path: Path) -> None:
    """A campaign that meets a fault says so, and its input is there for the next run."""

    def check(data: bytes) -> None:
        if b"!" in data and b"?" in data:
            raise ZeroDivisionError

    campaign = Campaign(Target("planted", st.binary(min_size=5, max_size=20), [b"!", b"?"], check), corpus=tmp_path)
    campaign.run(30.0, most=1)

    (kept,) = (tmp_path / "planted").iterdir()
    assert sorted(kept.read_bytes()) == sorted(b"!?")
    assert "ZeroDivisionError" in campaign.findings[0]


def test_pieces_are_the_whole() -> None:
    """However an input is cut, all of it is sent, in order."""
    choose = random.Random(1)
    for size in range(50):
        data = bytes(range(size))
        assert b"".join(pieces(data, choose)) == data


def test_the_command() -> None:
    """`python -m fuzz` runs one target for as long as asked, and prints executions and findings."""
    run = [sys.executable, "-m", "fuzz", "session", "--seconds", "0.2"]
    done = subprocess.run(run, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=60)

    name, executions, _, findings = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert (name, findings) == ("session", "0")
    assert int(executions.replace(",", "")) > 0
