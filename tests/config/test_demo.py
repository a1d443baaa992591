"""The fleet of `--demo`."""

import socket
import sys

import pytest

from pypto_serving_router.config.demo import demo_fleet
from pypto_serving_router.launch.command import slot_command


def test_a_demo_is_local_simulated_replicas_on_free_ports() -> None:
    """N slots run the simulated replica, each on a port that is free (spec 1.2)."""
    fleet = demo_fleet(3, "/tmp/logs")

    assert not fleet.replicas
    assert [slot.id for slot in fleet.slots] == ["demo-d0", "demo-d1", "demo-d2"]
    for slot in fleet.slots:
        command = slot_command(slot)
        assert command.argv[:4] == (sys.executable, "-P", "-m", "pypto_serving_router.sim")
        assert command.log_path == f"/tmp/logs/{slot.id}.log"
        assert slot.host.ssh is None
        with socket.create_server(("127.0.0.1", slot.port)):
            pass  # it was free


def test_a_port_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each port of a run is tried; where none is free, the demo is refused (spec 1.2)."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("pypto_serving_router.config.demo._PORTS", range(port - 1, port + 2))

        with pytest.raises(OSError, match="no 2 free ports in a row"):
            demo_fleet(2, "/tmp/logs")
