"""The replicas of one run: real engines, each paced to its share of a core, or simulated ones."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.proxy import free_port
from bench.wire import get

HERE = Path(__file__).resolve().parent
_READY_WITHIN = 90.0
_GRACE = 2.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class StartFailed(Exception):
    """A process ended, or did not become ready in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the replicas are, and how many."""

    servers: int
    words_per_token: float
    """Of the workload's text, as the replicas' tokenizer has it."""
    engine: Path | None = None
    """A Python that has the engine; None: simulated replicas."""
    model: Path | None = None
    slots: int = 4
    """Conversations that the KV cache of an engine holds."""
    share: float = 1.0
    """Of a core, for each engine."""
    prefill_rate: float = 4000.0
    """Tokens per second of a simulated replica."""
    cache_blocks: int = 12_000
    """Blocks of 16 tokens that a simulated replica's cache holds."""

    @property
    def request_model(self) -> str:
        """The model that requests name: any for an engine; a simulated replica repeats what it is asked for."""
        return "" if self.engine is None else "tiny"

    def argv(self, index: int, port: int) -> list[str]:
        """Return the command of one replica, which answers under the model name `e<index>`."""
        common = ["--port", str(port), "--served-model-name", f"e{index}", "--host", "127.0.0.1"]
        if self.engine is None:
            sim = [str(Path(sys.executable).with_name("pypto-serving-sim")), "--model", "/tiny", *common]
            sim += ["--block-size", "16", "--sim-cache-blocks", str(self.cache_blocks)]
            return [*sim, "--sim-prefill-rate", str(self.prefill_rate)]
        engine = [str(self.engine), str(HERE / "engine.py"), "--model", str(self.model), *common]
        return [*engine, "--slots", str(self.slots)]


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def start(argv: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, which ends when this one does."""
    with log.open("ab") as out:
        return subprocess.Popen(
            argv,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - before any thread is started
        )


def stop(*processes: subprocess.Popen[bytes]) -> None:
    """End processes and what is left of their groups."""
    for process in processes:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Servers:
    """The running replicas."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self._setup = setup
        self._folder = folder
        self.ports = [free_port() for _ in range(setup.servers)]
        self._processes = [
            start(setup.argv(index, port), folder / f"server{index}.log") for index, port in enumerate(self.ports)
        ]
        self._pacer: subprocess.Popen[bytes] | None = None

    async def ready(self) -> None:
        """Wait until all can serve, and pace them from then on.

        Raises:
            StartFailed: one cannot.
        """
        await asyncio.gather(*map(self._ready, self.ports, self._processes))
        if self._setup.share < 1:
            pids = [str(process.pid) for process in self._processes]
            argv = [sys.executable, str(HERE / "pacer.py"), str(self._setup.share), *pids]
            self._pacer = start(argv, self._folder / "pacer.log")

    async def _ready(self, port: int, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _READY_WITHIN
        while loop.time() < deadline:
            if process.poll() is not None:
                raise StartFailed(f"a replica ended with {process.returncode}; see {self._folder}")
            try:
                if (await get(port, "/health")).status == 200:
                    return
            except (OSError, EOFError):
                pass
            await asyncio.sleep(0.1)
        raise StartFailed(f"a replica was not ready within {_READY_WITHIN:.0f} s; see {self._folder}")

    def stop(self) -> None:
        """End them all."""
        if self._pacer is not None:
            stop(self._pacer)
        stop(*self._processes)
