"""The example fleet files, as they stand."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.support.markdown import ROOT
from tests.support.processes import environment, installed

from pypto_serving_router.config.load import load_fleet
from pypto_serving_router.launch.command import slot_command

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "examples/fleets"
FILES = sorted(FOLDER.glob("*.json"))
WANTED = {"qwen3-14b", "deepseek-v4", "mixed", "vllm", "broker"}


def test_there_is_a_file_for_each_case_and_no_other() -> None:
    """The cases that the folder promises are there, and listed (spec 2.3)."""
    assert {path.stem for path in FILES} == WANTED
    assert all(f"({path.name})" in (FOLDER / "README.md").read_text() for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_passes_the_check(path: Path) -> None:
    """`--check` prints what it would launch, and nothing is wrong (spec 1.2, 2.1)."""
    done = subprocess.run(
        [installed("pypto-serving-router"), "--replicas", path, "--check"],
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"slots: {len(load_fleet(path).slots)}," in done.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_two_replicas_share_a_build_directory(path: Path) -> None:
    """Each slot's environment has a folder for kernels, and no other slot's has the same (spec 2.4)."""
    slots = load_fleet(path).slots
    folders = [
        value for slot in slots for name, value in slot_command(slot).env.items() if name.endswith(("_DIR", "_ROOT"))
    ]
    assert len(set(folders)) == len(slots)


def test_deepseek_has_the_devices_that_its_kernels_are_built_for() -> None:
    """A DeepSeek V4 replica takes all eight devices of a node (spec 2.3)."""
    slots = load_fleet(FOLDER / "deepseek-v4.json").slots
    assert [(slot.id, len(slot.devices)) for slot in slots] == [("node01-d0", 8), ("node02-d0", 8)]
    for slot in slots:
        assert slot_command(slot).argv[-8:] == ("--dp", "8", "--ep", "8", "--tp", "1", "--block-size", "128")


def test_vllm_gets_its_whole_command_from_the_file() -> None:
    """With `{model}` in `serve_command` nothing of pypto-serving's options is added (spec 2.3)."""
    slot = load_fleet(FOLDER / "vllm.json").slots[0]
    argv = slot_command(slot).argv
    assert argv[:3] == ("vllm", "serve", "Qwen/Qwen3-14B")
    assert "--devices" not in argv
    assert slot_command(slot).env["CUDA_VISIBLE_DEVICES"] == "0,1"
