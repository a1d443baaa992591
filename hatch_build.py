"""Compiles the data path while a wheel is built, where a C compiler is at hand (docs/explanation/compiled.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE: Final = "pypto_serving_router"
COMPILED: Final = (
    "core/balancer.py",
    "core/chunks.py",
    "core/decisions.py",
    "core/exchanged.py",
    "core/forms.py",
    "core/head.py",
    "core/lease.py",
    "core/lines.py",
    "core/routing.py",
    "core/session_id.py",
    "core/sessions.py",
    "proxy/client.py",
    "proxy/dispatcher.py",
    "proxy/exchange.py",
    "proxy/flow.py",
    "proxy/frontend.py",
    "proxy/mint.py",
    "proxy/pool.py",
    "proxy/shared.py",
    "proxy/upstream.py",
    "telemetry/histogram.py",
    "telemetry/metrics.py",
)
"""What a request or an event passes through."""

MYPYC: Final = "mypy[mypyc]>=2.4,<2.5"
MSGSPEC: Final = "msgspec>=0.19,<1"  # its types
SWITCH: Final = "PYPTO_COMPILE"
"""Environment variable: 0 for the plain package, 1 to fail rather than fall back to it."""


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel; they stand beside their sources and are preferred by Python."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what compiling needs beside hatchling."""
        return [MYPYC, MSGSPEC, "setuptools>=80"] if self._wanted("standard") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, or say why not."""
        if not self._wanted(version):
            return
        self._kept = tempfile.TemporaryDirectory(prefix="pypto-compile-")  # removed with this hook
        folder = Path(self._kept.name)
        shutil.copytree(Path(self.root, "src", PACKAGE), folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        done = subprocess.run(
            [
                sys.executable, "-m", "mypyc", "--config-file=", "--ignore-missing-imports", "--follow-imports=silent",
                *(f"{PACKAGE}/{module}" for module in COMPILED),
            ],
            cwd=folder,
            env=os.environ | {"MYPYC_OPT_LEVEL": "3", "MYPYC_DEBUG_LEVEL": "0"},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            why = _why(done.stdout + done.stderr)
            if os.environ.get(SWITCH) == "1":
                self.app.abort(f"The data path could not be compiled:\n{why}")
            self.app.display_warning(f"The data path could not be compiled and stays plain Python:\n{why}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for file in folder.glob(f"**/*{sysconfig.get_config_var('EXT_SUFFIX')}"):
            if "build" not in file.relative_to(folder).parts:
                build_data["force_include"][str(file)] = str(file.relative_to(folder))

    def _wanted(self, version: str) -> bool:
        """Tell whether to compile: never for an editable installation, whose sources are meant to change."""
        if self.target_name != "wheel" or version != "standard":
            return False
        choice = os.environ.get(SWITCH, "")
        if choice not in {"", "0", "1"}:
            self.app.abort(f"{SWITCH} is {choice!r}; it can be 0, 1 or unset")
        if not choice:
            compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
            return sys.implementation.name == "cpython" and shutil.which(compiler) is not None
        return choice == "1"


def _why(said: str) -> str:
    """Return what mypyc or the compiler said was wrong."""
    if "No module named mypyc" in said:
        return f"mypyc is not there; without build isolation, install {MYPYC!r} and setuptools first"
    lines = [line for line in said.splitlines() if line.strip() and ": warning:" not in line and ": note:" not in line]
    return "\n".join(lines[-20:])
