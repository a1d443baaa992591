"""vLLM behind the router: a server, an engine and a worker, none of which may be left with the devices in its hands."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import engine
from tests.support.ports import free_port
from tests.support.turns import Talk, words
from tests.support.waiting import wait_until

from pypto_serving_router.launch import slotctl

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.harness import Harness
    from tests.support.router import Router

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
VLLM = Path(os.environ.get("PYPTO_VLLM_ENVIRONMENT") or ROOT / ".venv-vllm") / "bin" / "vllm"
LOAD = 180.0
"""Seconds that vLLM may take to be ready: 25 to 40 on an idle machine."""

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": 4096,
    "hidden_size": 320,
    "intermediate_size": 960,
    "num_hidden_layers": 6,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "max_position_embeddings": 32768,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model without weights, which vLLM makes up itself."""
    folder = shutil.copytree(engine.model().parent / "tokenizer", tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


@pytest.fixture
def host(model: Path) -> dict[str, Any]:
    """A host with one slot, whose replica is a vLLM."""
    if not VLLM.is_file():
        pytest.skip(f"no vLLM at {VLLM}: `make test-vllm` installs it")
    command = [str(VLLM), "serve", "{model}", "--served-model-name", "any", "--host", "127.0.0.1", "--port", "{port}"]
    return {
        "name": "node",
        "devices": [0],
        "port_base": free_port(),
        "model": str(model),
        "serve_command": [*command, "--load-format", "dummy", "--max-model-len", "8192", "--enforce-eager"],
        "serve_args": ["--enable-prompt-tokens-details"],
        "env": ENVIRONMENT,
    }


def command(pid: int) -> bytes:
    """Return a process's command line; nothing, if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def family(port: int) -> dict[slotctl.Process, bytes]:
    """Return the processes of the vLLM on a port, each with its command line; the server is the first."""
    lines = {each: command(each.pid) for each in slotctl.list_processes().values()}
    (server,) = (each for each, line in lines.items() if b"\0serve\0" in line and b"\0%d\0" % port in line)
    rest = {each: line for each, line in lines.items() if each.session == server.session and each != server}
    return {server: lines[server], **rest}


def living(processes: dict[slotctl.Process, bytes]) -> dict[slotctl.Process, bytes]:
    """Return those of the processes that still live."""
    now = {(each.pid, each.started_at) for each in slotctl.list_processes().values() if each.lives}
    return {each: line for each, line in processes.items() if (each.pid, each.started_at) in now}


def test_no_process_is_left(start_router: Callable[..., Router], harness: Harness, host: dict[str, Any]) -> None:
    """Killed alone, the server leaves its engine behind; a stop reaches all, before a replacement and at a retirement.

    (spec 7.6, 7.9)
    """
    router = start_router({"hosts": [host]}, "--replace-after", "10")
    router.wait_ready(1, timeout=LOAD)
    port = host["port_base"]
    first = family(port)
    os.kill(next(iter(first)).pid, signal.SIGKILL)
    router.wait_ready(0)
    left = [line.split(b"\0")[0] for line in living(first).values()]

    assert {b"VLLM::EngineCore", b"VLLM::Worker"} <= set(left)

    router.wait_ready(1, timeout=LOAD)
    second = family(port)

    assert living(first) == {}
    assert router.request("DELETE", "/replicas/node-d0", timeout=60).status == 200
    assert living(second) == {}

    wait_until(lambda: not harness.launched(), timeout=5, what="the end of what kept its exit status")


def test_a_second_turn_finds_its_prefix_in_the_cache(start_router: Callable[..., Router], host: dict[str, Any]) -> None:
    """vLLM too computes the new text only, by its own count (spec 3.5)."""
    router = start_router({"hosts": [host]})
    router.wait_ready(1, timeout=LOAD)
    talk = Talk(router.url)
    first, second = talk.say(words(1500)), talk.say("Go on.")

    assert first.cached_tokens == 0
    assert second.cached_tokens > 0.9 * first.prompt_tokens
