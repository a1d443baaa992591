"""The container image: its steps, as far as they can be taken without a container engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.markdown import ROOT
from tests.support.ports import refusing_port
from tests.support.processes import installed
from tests.support.waiting import wait_until

from pypto_serving_router.launch.slotctl import list_processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.router import Router
    from tests.support.sim import Sim


@dataclass(frozen=True)
class Instruction:
    """One instruction of the Dockerfile."""

    name: str
    text: str

    @property
    def argv(self) -> list[str]:
        """The arguments in their JSON form."""
        argv: list[str] = json.loads(self.text[self.text.index("[") :])
        return argv


def instructions() -> list[Instruction]:
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def only(name: str) -> Instruction:
    (found,) = [instruction for instruction in instructions() if instruction.name == name]
    return found


def in_context(path: Path) -> bool:
    """Whether a file is sent to the engine: the last line of .dockerignore that fits decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.lstrip("!")
        if line.startswith("#") or not line:
            continue
        parts = path.relative_to(ROOT).parts
        fits = pattern.removeprefix("**/") in parts if pattern.startswith("**/") else fnmatch(parts[0], pattern)
        sent = line.startswith("!") if fits else sent
    return sent


def copies() -> list[tuple[list[str], str]]:
    """Return what is copied from the context, and where to."""
    texts = [instruction.text.split() for instruction in instructions() if instruction.name == "COPY"]
    return [(words[:-1], words[-1]) for words in texts]


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Lay out what the build stage copies, from what the context has."""
    source = tmp_path / "source"
    source.mkdir()
    for names, target in copies():
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name,
                    source / target,
                    ignore=lambda folder, found: [one for one in found if not in_context(Path(folder) / one)],
                )
            elif in_context(ROOT / name):
                shutil.copy(ROOT / name, source / target)
    return source


def take(step: str, folder: Path, **variables: str) -> None:
    """Run a step of the image, with its folder for wheels in ours, and without the network."""
    quiet = {"PYPTO_COMPILE": "0", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = step.replace("/wheels", str(folder.parent / "wheels"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, **quiet, **variables, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_router_is_installed_from_what_is_copied(context: Path, tmp_path: Path) -> None:
    """The steps that build and install it work on the copied files alone (spec 1.1)."""
    pytest.importorskip("hatchling")
    build, install = (
        next(re.sub(r"--mount=\S+ ", "", one.text) for one in instructions() if words in one.text)
        for words in ("pip wheel", "pip install")
    )
    # For pip, "no isolation: false" means no isolation.
    take(build, context, PIP_NO_BUILD_ISOLATION="false")
    take(install, context, PIP_TARGET=str(tmp_path / "root"))

    assert (tmp_path / "root/pypto_serving_router/launch/slotctl.py").is_file()
    assert (tmp_path / "root/bin/pypto-serving-router").is_file()


def test_only_what_is_copied_is_sent_to_the_engine() -> None:
    """What the image is built from is in the context; secrets, litter and tests are not (spec 1.1)."""
    for names, _ in copies():
        assert all((ROOT / name).exists() and in_context(ROOT / name) for name in names)
    for name in (".git", ".venv", "tests", "router.state", "fleet.json", "src/pypto_serving_router/__pycache__"):
        assert not in_context(ROOT / name)


def test_it_is_built_on_a_small_image_with_a_python_that_will_do() -> None:
    """Both stages use the same slim image, of a version that the project declares (spec 1.1)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    images = {instruction.text.split()[0] for instruction in instructions() if instruction.name == "FROM"}
    (image,) = images
    version = re.fullmatch(r"python:(3\.\d+)-slim", image)

    assert version
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def test_it_runs_as_nobody_in_particular_below_an_init() -> None:
    """The user is not root, and process 1 is an init that the image installs, as is ssh (spec 7.3)."""
    names = [instruction.name for instruction in instructions()]
    *_, packages = (one.text for one in instructions() if "apt-get" in one.text)

    assert int(only("USER").text) >= 1000
    assert f"--uid {only('USER').text}" in next(one.text for one in instructions() if "useradd" in one.text)
    assert "RUN" not in names[names.index("USER") :]
    assert only("ENTRYPOINT").argv == ["tini", "--", "pypto-serving-router"]
    assert {"tini", "openssh-client"} <= set(shlex.split(packages))


def check_health(port: int) -> int:
    """Run the image's health check; return its status."""
    health = only("HEALTHCHECK")
    program, *arguments = health.argv
    assert program == "python"
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYPTO_ROUTER_PORT": str(port)},
        capture_output=True,
        check=False,
    )
    return done.returncode


def test_the_health_check_asks_the_router(start_router: Callable[..., Router], start_sim: Callable[..., Sim]) -> None:
    """A router that answers is healthy, whether a replica is routable or not; none at all is not (spec 6.1)."""
    with refusing_port() as port:
        assert check_health(start_router([start_sim()]).port) == 0
        lonely = start_router([f"http://127.0.0.1:{port}"])
        lonely.wait_ready(0)
        assert lonely.request("GET", "/health").status == 503
        assert check_health(lonely.port) == 0
        assert check_health(port) != 0


@pytest.mark.slow
@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a namespace for processes everywhere")
@pytest.mark.skipif(shutil.which("tini") is None, reason="tini is not installed")
def test_the_init_reaps_what_the_router_leaves(start_router: Callable[..., Router], tmp_path: Path) -> None:
    """Below the entry point's init a stopped replica leaves no zombie, and a stop is orderly (spec 7.3, 7.11)."""
    entry = tmp_path / "entry"
    router_path = installed("pypto-serving-router")
    init, *_ = only("ENTRYPOINT").argv
    entry.write_text(f'#!/bin/sh\nexec unshare --pid --fork --kill-child --mount-proc {init} -- {router_path} "$@"\n')
    entry.chmod(0o755)
    router = start_router(None, "--demo", executable=str(entry))
    router.wait_ready(2)
    assert router.request("DELETE", "/replicas/demo-d0").status == 200

    def below(pid: int) -> list[int]:
        return [child for child, process in list_processes().items() if process.parent == pid]

    def zombies() -> list[int]:
        table = list_processes()
        return [pid for pid in below(inner) if table[pid].state == "Z"]

    (inner,) = below(router.pid)
    wait_until(lambda: not zombies(), what="the reaping of the replica and of what watched it")
    os.kill(inner, signal.SIGTERM)  # as the engine stops a container
    assert router.wait() == 0
