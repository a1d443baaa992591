"""Symptoms that were reported against launchers of serving processes, tried on real ones."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tests.support.fleet import sim_host
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.harness import Harness


def test_a_port_that_a_connection_of_the_machine_has_taken(harness: Harness) -> None:
    """X15: where an outgoing connection holds a slot's port, the launch fails at once and says so (spec 7.4, 7.5)."""
    host = sim_host([0])
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, socket.socket() as outgoing:
        outgoing.bind(("127.0.0.1", host["port_base"]))
        outgoing.connect(elsewhere.getsockname())
        router = harness.start_router({"hosts": [host]}, "--initial-replicas", "0")

        answer = router.request("POST", "/replicas", timeout=30)

        assert answer.status in (202, 502)
        error = wait_until(
            lambda: router.replicas()["capacity"]["last_errors"].get("node-d0"), what="the reason", timeout=20
        )
        assert "cannot listen" in error
        assert str(host["port_base"]) in error
        wait_until(lambda: router.replicas()["capacity"]["free_slots"] == ["node-d0"], what="a free slot")
    assert router.request("POST", "/replicas", timeout=30).status == 202
    router.wait_ready(1)
