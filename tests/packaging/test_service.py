"""The systemd unit, as it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.markdown import ROOT
from tests.support.processes import environment, installed

from pypto_serving_router.config.model import Settings
from pypto_serving_router.core.slot import Policy
from pypto_serving_router.launch.slotctl import KILL_PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "examples/systemd"
UNIT = (FOLDER / "pypto-serving-router.service").read_text()
PROGRAM = "/opt/pypto-serving-router/bin/pypto-serving-router"

SETTINGS = dict(re.findall(r"^(\w+)=(.*)$", UNIT.replace("\\\n", ""), re.MULTILINE))

CLOSES_SOMETHING_REPLICAS_NEED = {
    *("PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock"),
    *("MemoryDenyWriteExecute", "SystemCallFilter", "RestrictAddressFamilies", "PrivateNetwork"),
    *("PrivateTmp", "DynamicUser", "PrivateUsers", "ProcSubset", "PrivatePIDs", "RemoveIPC"),
    *("MemoryMax", "MemoryHigh", "CPUQuota", "TasksMax", "OOMScoreAdjust"),
}


def test_replicas_outlive_the_router() -> None:
    """When the router or one replica dies, systemd leaves the others alone and starts the router again (spec 7.3)."""
    assert SETTINGS["KillMode"] == "process"
    assert SETTINGS["OOMPolicy"] == "continue"
    assert SETTINGS["Restart"] == "on-failure"


def test_replicas_can_be_launched_below_it() -> None:
    """Nothing that replicas inherit from the unit keeps them from devices, compilers or the next router (spec 7.3)."""
    assert not CLOSES_SOMETHING_REPLICAS_NEED & SETTINGS.keys()
    assert SETTINGS["NoNewPrivileges"] == "yes"


def test_an_orderly_end_has_the_time_that_it_needs() -> None:
    """systemd waits for the drain, the stop of every replica and its confirmation (spec 7.11)."""
    minutes = re.fullmatch(r"(\d+)min", SETTINGS["TimeoutStopSec"])
    policy = Policy(launch_timeout=600, drain_timeout=Settings().drain_timeout, replace_after=30)

    assert minutes
    assert int(minutes[1]) * 60 > policy.drain_timeout + policy.stop_grace + KILL_PATIENCE + policy.confirm_grace


def test_it_stays_down_where_a_restart_would_not_help() -> None:
    """Wrong usage and an end that left something want a person; a wrong file ends after some tries (spec 1.4)."""
    assert SETTINGS["RestartPreventExitStatus"] == "2 3"
    assert float(SETTINGS["RestartSec"]) * int(SETTINGS["StartLimitBurst"]) < int(SETTINGS["StartLimitIntervalSec"])


def test_its_command_is_one_that_the_router_takes() -> None:
    """The options exist, and it keeps a state file where systemd lets it write (spec 1.2, 7.12)."""
    program, *arguments = SETTINGS["ExecStart"].split()
    arguments[arguments.index("--replicas") + 1] = str(ROOT / "examples/fleets/qwen3-14b.json")
    done = subprocess.run(
        [installed("pypto-serving-router"), *arguments, "--check"],
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
    )

    assert program == PROGRAM
    assert (done.returncode, done.stderr) == (0, "")
    assert arguments[arguments.index("--state-file") + 1].startswith(f"/var/lib/{SETTINGS['StateDirectory']}/")


def test_the_environment_file_has_options_of_the_router() -> None:
    """Every variable in it stands for an option (spec 1.3)."""
    names = re.findall(r"^PYPTO_ROUTER_(\w+)=", (FOLDER / "environment").read_text(), re.MULTILINE)

    assert "ADMIN_TOKEN" in names
    assert {name.lower() for name in names} <= {setting.name for setting in msgspec.structs.fields(Settings)}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    """Every setting is one that systemd knows, with a value that it takes (spec 7.3)."""
    unit = tmp_path / "pypto-serving-router.service"
    unit.write_text(UNIT.replace(PROGRAM, installed("pypto-serving-router")))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")
