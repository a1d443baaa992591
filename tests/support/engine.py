"""A running real engine: llama.cpp's server with a small model of random weights."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.support.client import request
from tests.support.ports import free_port
from tests.support.processes import Process
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bench" / "affinity" / "engine.py"
_MODEL_PROGRAM = ROOT / "bench" / "affinity" / "tiny_model.py"

PYTHON = Path(os.environ.get("PYPTO_ENGINE_PYTHON") or ROOT / ".venv-engine" / "bin" / "python")
"""The interpreter of the environment that has the engine, which `make test-engine` creates."""


def installed() -> bool:
    """Whether there is an engine to start."""
    return PYTHON.is_file()


def model() -> Path:
    """Return the model, made once for the environment."""
    folder = PYTHON.parent.parent / "tiny"
    if not folder.exists():
        with TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as made:
            subprocess.run([PYTHON, _MODEL_PROGRAM, made], check=True, capture_output=True, timeout=120)
            with contextlib.suppress(OSError):  # another run was faster
                Path(made).rename(folder)
            assert folder.exists()
    return folder / "tiny.gguf"


class Engine(Process):
    """An engine with `slots` sequences of its own KV cache; what does not fit there is evicted."""

    def __init__(
        self, *, env: Mapping[str, str], folder: Path, name: str, port: int = 0, slots: int = 2, context: int = 4096
    ) -> None:
        self.name = name
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [str(PYTHON), str(PROGRAM), "--model", str(model()), "--port", str(self.port)]
        argv += ["--served-model-name", name, "--slots", str(slots), "--context", str(context)]
        super().__init__(argv, env=env, folder=folder, name=name)

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until its model is loaded."""

        def ready() -> bool:
            if self.status is not None:
                raise AssertionError(f"the engine ended with {self.status}:\n{self.stderr}")
            try:
                return request(f"{self.url}/health").status == 200
            except OSError:
                return False

        wait_until(ready, timeout=timeout, what=f"engine {self.name} to be ready")

    def busy_slots(self) -> int:
        """Return how many sequences it works on."""
        slots: list[dict[str, Any]] = request(f"{self.url}/slots").json()
        return sum(slot["is_processing"] for slot in slots)

    def counter(self, name: str) -> int:
        """Return one of its own counters: `prompt_tokens_cached_total`."""
        lines = request(f"{self.url}/metrics").body.decode().splitlines()
        (value,) = (line.split()[1] for line in lines if line.startswith(f"llamacpp:{name} "))
        return int(float(value))
