"""The proxies that can be compared: how each is found, started and asked for its version."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = HERE / "out"
ENVIRONMENTS = OUT / "envs"
"""Where `python -m bench.install` puts what it installs: one folder for each environment."""

DIRECT = "direct"
"""No proxy at all: the load generator speaks to the stub."""
OURS = "ours"
ROUTER = "pypto-serving-router"

_FLAGS = "--replicas {fleet_file} --host 127.0.0.1 --port {port}"
_GATEWAY = (
    "--prometheus-host 127.0.0.1 --prometheus-port {metrics_port} --log-level error"
    " --max-concurrent-requests 100000 --queue-size 100000"
)
# Filled in: {port}, {metrics_port}, {folder}, {fleet_file}, {urls}, {replica_flags}, {nginx_conf},
# {nginx_streaming_conf}, {haproxy_cfg}, {peers} (this project's folder of templates); {bin:NAME} is found by `find`.
COMMANDS: Mapping[str, str] = {
    OURS: f"{{bin:{ROUTER}}} {_FLAGS}",
    # Run by the interpreter, as where no C compiler is at hand.
    "ours-plain": f"{{bin:{ROUTER}-plain}} {_FLAGS}",
    "nginx": "{bin:nginx} -e {folder}/nginx.err -c {nginx_conf}",
    "nginx-streaming": "{bin:nginx} -e {folder}/nginx.err -c {nginx_streaming_conf}",
    "haproxy": "{bin:haproxy} -db -f {haproxy_cfg}",
    "vllm-router": "{bin:vllm-router} --host 127.0.0.1 --port {port} --worker-urls {urls}"
    f" --policy consistent_hash {_GATEWAY}",
    "smg": "{bin:smg} launch --host 127.0.0.1 --port {port} --worker-urls {urls}"
    f" --policy consistent_hashing --disable-tokenizer-autoload {_GATEWAY}",
    "sglang-router": "{bin:sglang-router} launch --host 127.0.0.1 --port {port} --worker-urls {urls}"
    f" --policy round_robin {_GATEWAY}",
    "fastapi-httpx": "{bin:references-python} {peers}/reference_httpx.py --port {port} {replica_flags}",
    "aiohttp": "{bin:references-python} {peers}/reference_aiohttp.py --port {port} {replica_flags}",
}
DEFAULT_PEERS = (
    DIRECT,
    OURS,
    "nginx",
    "haproxy",
    "vllm-router",
    "smg",
    "sglang-router",
    "fastapi-httpx",
    "aiohttp",
)
YARDSTICKS = ("nginx", "haproxy")
"""The proxies that the goals are measured by."""

PYPI_PEERS: Mapping[str, tuple[str, ...]] = {
    # One environment for each: the gateways written in Rust share module names.
    "vllm-router": ("vllm-router",),
    "smg": ("smg",),
    "sglang-router": ("sglang-router",),
    "references": ("fastapi", "httpx", "uvicorn[standard]", "aiohttp", "uvloop"),
}
SYSTEM_PROGRAMS = ("nginx", "haproxy", "wrk")


class NotFound(Exception):
    """A program that a peer or a test needs is not on this machine."""


class Programs:
    """Finds the programs of the peers."""

    def __init__(self, chosen: Mapping[str, str]) -> None:
        self._chosen = chosen

    def find(self, name: str) -> str:
        """Return the path of a program: the chosen one, else the installed environment's, else that on PATH.

        Raises:
            NotFound: there is none.
        """
        places = [Path(self._chosen[name])] if name in self._chosen else _usual_places(name)
        for place in places:
            if os.access(place, os.X_OK):
                return str(place)
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"])
        if name not in self._chosen and (found := shutil.which(name, path=path)):
            return found
        raise NotFound(f"no program {name} (python -m bench.install, or --bin {name}=PATH)")


def _usual_places(name: str) -> list[Path]:
    checkout = Path(sys.executable).parent / ROUTER  # never another one on PATH
    if name == f"{ROUTER}-plain":
        return [checkout]
    if name == ROUTER:
        return [ENVIRONMENTS / OURS / "bin" / ROUTER, checkout] if installed_is_current() else [checkout]
    if name == "references-python":
        return [ENVIRONMENTS / "references" / "bin" / "python"]
    return [ENVIRONMENTS / name / "bin" / name, ENVIRONMENTS / "bin" / name]


def source_digest() -> str:
    """Return what changes with any change of what an installation is made of."""
    files = [ROOT / "pyproject.toml", ROOT / "hatch_build.py", *sorted((ROOT / "src").rglob("*.py"))]
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def installed_is_current() -> bool:
    """Tell whether our own router, as `bench.install` installed it, is of the sources at hand."""
    ready = ENVIRONMENTS / OURS / ".ready"
    return ready.exists() and ready.read_text() == source_digest()


def version(argv0: str) -> str:
    """Return the version of a program, by asking it or by the metadata of the environment it stands in."""
    program = Path(argv0)
    distributions = program.parent.parent.glob("lib/python*/site-packages/*.dist-info")
    of_name = {d.name.partition("-")[0].replace("_", "-"): d.stem.partition("-")[2] for d in distributions}
    if program.name == ROUTER:
        answer = subprocess.run([argv0, "--version"], capture_output=True, text=True, timeout=20, check=False)
        return answer.stdout.strip().removeprefix(f"{ROUTER} ") or "unknown"
    if program.name in of_name:
        return of_name[program.name]
    if program.name.startswith("python"):
        parts = ("fastapi", "httpx", "uvicorn", "aiohttp")
        return ", ".join(f"{name} {of_name[name]}" for name in parts if name in of_name)
    flag = "-v" if program.name in {"nginx", "haproxy"} else "--version"
    answer = subprocess.run([argv0, flag], capture_output=True, text=True, timeout=20, check=False)
    found = re.search(r"\d+\.\d+[\w.+~-]*", answer.stdout + answer.stderr)
    return found.group() if found else "unknown"
