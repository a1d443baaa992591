"""Symptoms that were reported against routers of this kind while they served, tried on a real one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.support.client import chat
from tests.support.fleet import replica, sim_host
from tests.support.ports import refusing_port
from tests.support.talk import CHAT, post
from tests.support.upstream import then_silence
from tests.support.waiting import wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.harness import Harness
    from tests.support.router import Router
    from tests.support.sim import Sim
    from tests.support.upstream import RawUpstream


def test_those_that_are_up_serve(harness: Harness) -> None:
    """F6: neither a replica that refuses nor one that loads for a minute holds up the rest (spec 5.3, 7.2)."""
    with refusing_port() as port:
        router = harness.start_router(
            {
                "replicas": [replica(f"http://127.0.0.1:{port}"), replica(harness.start_sim().url, name="up")],
                "hosts": [sim_host([0, 1], sim={"load_delay": 60})],
            },
            *("--initial-replicas", "2", "--connect-retries", "1", "--drain-timeout", "0.1"),
        )

        answer = router.request("POST", CHAT, body=chat("Hello"))

        assert (answer.status, answer.header("X-Router-Replica")) == (200, "up")
        assert router.health()["status"] == "ok"
        phases = {row["name"]: row["phase"] for row in router.health()["replicas"]}
        assert {"up": "ready", "node-d0": "starting", "node-d1": "starting"}.items() <= phases.items()


def test_a_replica_that_only_seems_well_is_named(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router]
) -> None:
    """F12: where /health is 200 and completions hang, a metric and a log record name the replica (spec 9)."""
    upstream = start_upstream(then_silence())
    router = start_router([replica(upstream.url, name="zombie")], "--request-timeout", "0.5")

    assert router.request("POST", CHAT, body=chat("Hello")).status == 504

    metrics = router.request("GET", "/metrics").body.decode()
    counted = 'pypto_router_requests_total{replica="zombie",code="504",placement="new",outcome="timeout"} 1'
    assert counted in metrics
    assert "zombie" in router.wait_log("exchange failed")["replica"]
    assert "zombie" in router.replicas()["replicas"][0]["name"]


def test_a_long_transcript_keeps_its_pin(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """L7: megabytes of transcript, the id before or behind them or in the head, change no place (spec 3.1, 3.5)."""
    router = start_router([start_sim(), start_sim(), start_sim()])
    first = router.request("POST", CHAT, body=chat("Hello", max_tokens=1))
    session, home = first.header("X-Session-Id") or "", first.header("X-Router-Replica")
    long = chat("x" * 3_000_000, "y" * 1_000_000, "and now?", max_tokens=1)

    for body, headers in (
        ({**long, "session_id": session}, {}),
        ({"session_id": session, **long}, {}),
        (long, {"X-Session-Id": session}),
    ):
        answer = router.request("POST", CHAT, body=body, headers=headers)
        assert answer.status == 200
        assert answer.header("X-Router-Replica") == home
        assert answer.header("X-Router-Placement") == "affinity"


def test_probes_leave_no_records(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """M3: neither the router's own probes nor anybody's GET /health are in the access log (spec 9)."""
    sim = start_sim()
    router = start_router([sim], "--access-log", "--health-interval", "0.1")
    wait_until(lambda: sim.state()["health_probes"] >= 5, what="probes")
    for path in ("/health", "/metrics", "/replicas"):
        assert router.request("GET", path).status == 200
    assert router.request("POST", CHAT, body=chat("Hello")).status == 200

    (record,) = [router.wait_log("exchange ended")]
    assert record["path"] == CHAT
    assert len(router.log_events("exchange ended")) == 1
    assert len(router.log_events()) < 10


def test_a_thousand_bad_requests_take_nobody_out(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router]
) -> None:
    """F7: a thousand 400s from a replica say nothing about it (spec 5.4)."""
    sim = start_sim()
    router = start_router([sim], "--health-interval", "600")
    with router.connect() as wire:
        for _ in range(10):
            wire.send(post(b"{no json", X_Session_Id="a") * 100)
            assert {wire.read_answer("POST").status for _ in range(100)} == {400}

    assert sim.state()["requests"] == 1000
    assert router.health()["replicas_ready"] == 1
    assert router.log_events("replica is not routable") == []


def test_a_path_arrives_as_it_was_sent(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """H13: double slashes, dots, escapes and queries below /v1/ are the replica's to understand (spec 4.1, 4.2)."""
    sim = start_sim()
    router = start_router([sim])

    for target in ("/v1//a", "/v1/a/../b/./c", "/v1/%2e%2E/%41%2fx", "/v1/x?a=%20b&&c=d?e=%2F", "/v1/x%3Fy", "/v1/"):
        with router.connect() as wire:
            wire.send(f"GET {target} HTTP/1.1\r\nHost: a\r\nX-Sim-Echo: 1\r\n\r\n".encode())
            assert wire.read_answer().status == 200
        assert sim.state()["last_request"]["target"] == target


def test_large_bodies_do_not_delay_health(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """H20: while 25 MB are sent and an answer of 50 MB is read, /health goes on being answered (spec 4.4, 8)."""
    router = start_router([start_sim()], "--health-interval", "600")  # its replica is busy
    size = 50 << 20
    slowest = 0.0
    answered = 0

    def upload() -> int:
        body = b'{"messages": [{"role": "user", "content": "' + b"x" * (25 << 20) + b'"}], "max_tokens": 1}'
        return router.request("POST", CHAT, body=body, timeout=60).status

    def download() -> int:
        with Wire.connect(router.port, timeout=60) as wire:
            wire.send(post(chat("x", max_tokens=1), X_Sim_Faults=f'{{"answer_bytes": {size}}}'))
            wire.read_until(b"\r\n\r\n")
            got = 0
            while got < size:
                got += len(wire.read_some())
            return got

    with ThreadPoolExecutor(2) as pool:
        transfers = [pool.submit(upload), pool.submit(download)]
        while not all(one.done() for one in transfers):
            began = time.monotonic()
            assert router.health()["status"] == "ok"
            slowest = max(slowest, time.monotonic() - began)
            answered += 1
    assert transfers[0].result() == 200
    assert transfers[1].result() >= size
    assert answered >= 5
    assert slowest < 2.0
