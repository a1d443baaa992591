"""The composition root: where it listens, and that every part of it is joined to the others."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.client import chat
from tests.support.fleet import sim_host
from tests.support.talk import CHAT, held

from pypto_serving_router.app import _bind, _url
from pypto_serving_router.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.harness import Harness
    from tests.support.router import Router
    from tests.support.sim import Sim


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as trial:
        trial.bind(("::1", 0))
        return True
    return False


# --- where it listens ----------------------------------------------------------------------------


def test_an_address_is_bound_and_shown_as_a_url() -> None:
    """Port 0 picks a free one, the same for all addresses that a name stands for (spec 1.2, 4.8)."""
    with ExitStack() as opened:
        sockets = _bind("localhost", 0)
        for sock in sockets:
            opened.enter_context(sock)

        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        assert all(sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) for sock in sockets)
        port = sockets[0].getsockname()[1]
        assert port > 0
        assert {_url(sock) for sock in sockets} <= {f"http://127.0.0.1:{port}", f"http://[::1]:{port}"}


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::", "0::0"])
def test_every_address_is_that_of_both_families(host: str) -> None:
    """`::` takes clients over IPv4, too, whose address is not written as IPv6 (spec 1.2, 4.8)."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(sock) for sock in _bind(host, 0)]
        port = sockets[0].getsockname()[1]
        assert [_url(sock) for sock in sockets] == [f"http://[::]:{port}", f"http://0.0.0.0:{port}"]
        for sock, client in zip(sockets, ("::1", "127.0.0.1"), strict=True):
            sock.listen()
            opened.enter_context(socket.create_connection((client, port), timeout=5))
            accepted, peer = sock.accept()
            opened.enter_context(accepted)
            assert peer[0] == client


@pytest.mark.parametrize(
    "host", ["a" * 70, "no such host", "192.0.2.1", "-"], ids=["no name", "blanks", "foreign", "-"]
)
def test_an_address_that_cannot_be_bound_is_named(host: str) -> None:
    """Whatever is wrong with it, it is one problem with the option's name and the address (spec 1.4, 1.5)."""
    with pytest.raises(ConfigError) as caught:
        _bind(host, 0)

    (problem,) = caught.value.problems
    assert problem.place == "--host, --port"
    assert f"{host}:0 can't be bound: " in problem.message


def test_a_port_in_use_leaves_nothing_open() -> None:
    """Of several addresses the ones that were bound are given back (spec 1.4)."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError):
            _bind("localhost", port)

    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


# --- how it is put together ----------------------------------------------------------------------


def total(router: Router, name: str, **labels: str) -> float:
    """Sum up a metric's samples with these labels, as a parser of the format reads them."""
    answer = router.request("GET", "/metrics")
    assert answer.status == 200
    families = text_string_to_metric_families(answer.body.decode())
    samples = [sample for family in families for sample in family.samples if sample.name == f"pypto_router_{name}"]
    assert samples, name
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def test_metrics_see_every_part(start_sim: Callable[..., Sim], harness: Harness) -> None:
    """Exchanges, sessions, connections, probes, slots and host commands are all counted (spec 6.7, 9)."""
    sim = start_sim()
    static = {"host": "127.0.0.1", "port": sim.port, "name": "static"}
    router = harness.start_router({"replicas": [static], "hosts": [sim_host()]}, "--initial-replicas", "1")
    router.wait_ready(2)

    with held(router, "s", count=2) as requests:
        name = requests[0].replica
        assert router.request("POST", CHAT, body=chat("Hello"), headers={"X-Session-Id": "s"}).status == 200
        with router.connect() as wire:
            wire.send(b"no HTTP\r\n\r\n")
            wire.read_to_end()

        assert total(router, "replica_outstanding", replica=name) == total(router, "replica_outstanding") == 2
        assert total(router, "routed_total") == 3
        assert total(router, "affinity_hits_total") == 2
        assert total(router, "pins") == total(router, "replica_pins", replica=name) == 1
        assert total(router, "client_connections") >= 3
        assert total(router, "upstream_connections") >= 2
        ended = {"code": "200", "outcome": "complete", "placement": "affinity", "replica": name}
        assert total(router, "requests_total", **ended) == total(router, "requests_total") == 1
        assert total(router, "malformed_requests_total", code="400") == 1

    assert total(router, "replica_phase", replica="node-d0", phase="ready") == 1
    assert total(router, "slot_state", slot="node-d0", state="ready") == total(router, "slot_state") == 1
    assert total(router, "probes_total", replica="static", result="ok") >= 1
    assert total(router, "host_command_seconds_count", host="node", action="start", outcome="ok") == 1
    assert total(router, "slot_step_seconds_count", step="launch") == 1
    assert total(router, "slot_transitions_total", to="launching", cause="initial") == 1
    assert total(router, "loop_delay_seconds_count") > 0


def test_events_are_the_log_of_replicas_and_slots(harness: Harness) -> None:
    """What is logged about them can be asked for, the latest last (spec 6.2, 9)."""
    router = harness.start_router({"hosts": [sim_host()]})
    router.wait_ready(1)

    view = router.request("GET", "/replicas?events=10").json()

    told = [(event["event"], event.get("to")) for event in view["events"]]
    assert told[-4:] == [
        ("slot changed", "launching"),
        ("slot changed", "starting"),
        ("replica is routable", None),
        ("slot changed", "ready"),
    ]
    numbers = [event["number"] for event in view["events"]]
    assert numbers == sorted(numbers)


def test_an_open_fleet_is_warned_of(harness: Harness) -> None:
    """Hosts without a token are worth a warning at the start; a token, or no hosts, are not (spec 6.6)."""
    warning = "anyone who can reach this port can launch and stop replicas"
    hosts = {"hosts": [sim_host()]}
    options = ("--initial-replicas", "0")

    exposed = harness.start_router(hosts, *options)
    guarded = harness.start_router(hosts, *options, "--admin-token", "t")
    static = harness.start_router({"replicas": [{"host": "127.0.0.1", "port": 9}]})

    assert [len(router.log_events(warning)) for router in (exposed, guarded, static)] == [1, 0, 0]
