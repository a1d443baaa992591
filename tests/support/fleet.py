"""Fleet files for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.support.ports import free_ports
from tests.support.processes import installed
from tests.support.sim import INSTANT, flags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def replica(url: str, **fields: object) -> dict[str, Any]:
    """Return the entry of a static replica."""
    parts = urlsplit(url)
    scheme = {} if parts.scheme == "http" else {"scheme": parts.scheme}
    return {"host": parts.hostname, "port": parts.port, **scheme, **fields}


def sim_host(
    devices: Sequence[int] = (0,),
    *,
    name: str = "node",
    sim: Mapping[str, object] | None = None,
    args: Sequence[str] = (),
    **fields: object,
) -> dict[str, Any]:
    """Return the entry of a local host whose slots are simulated replicas, on ports that nobody uses.

    `sim` are `--sim-*` options, `args` further arguments of the serving command.
    """
    return {
        "name": name,
        "devices": list(devices),
        "port_base": free_ports(max(devices) + 1),
        "model": "/models/Qwen3-14B",
        "served_model_name": "qwen",
        "serve_command": [installed("pypto-serving-sim")],
        "serve_args": [*INSTANT, *flags(sim or {}), *args],
        **fields,
    }
