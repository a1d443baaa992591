"""The fleet of `--demo`: simulated replicas on this machine."""

from __future__ import annotations

import secrets
import socket
import sys

from pypto_serving_router.config.model import Fleet, HostSpec

# Below where Linux takes ports for outgoing connections from, which could come between the choice and its use.
_PORTS = range(10_000, 32_768)
_ATTEMPTS = 1000


def demo_fleet(count: int, log_dir: str) -> Fleet:
    """Describe one local host with `count` simulated replicas on free ports.

    Raises:
        OSError: No run of that many free ports was found.
    """
    host = HostSpec(
        name="demo",
        address="127.0.0.1",
        devices=tuple(range(count)),
        port_base=_free_ports(count),
        model="simulated",
        served_model_name="sim",
        serve_command=(sys.executable, "-P", "-m", "pypto_serving_router.sim"),
        log_dir=log_dir,
    )
    return Fleet(hosts=(host,))


def _free_ports(count: int) -> int:
    """Find the first of `count` free ports in a row."""
    for _ in range(_ATTEMPTS):
        first = _PORTS.start + secrets.randbelow(len(_PORTS) - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise OSError(f"no {count} free ports in a row were found in {_ATTEMPTS} attempts")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
