"""Exchanges that go wrong, and those that must not: breaks, timeouts, clients that leave, stale connections."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import h11
import openai
import pytest
from tests.support.client import chat
from tests.support.ports import swallowing_port
from tests.support.talk import CHAT, post
from tests.support.upstream import OK, then_close
from tests.support.waiting import wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import Stage
    from tests.support.router import Router
    from tests.support.sim import Sim
    from tests.support.talk import Talker
    from tests.support.upstream import RawUpstream


def wait_idle(router: Router) -> None:
    """Every request's place has been given back."""
    wait_until(
        lambda: not any(replica["outstanding"] for replica in router.health()["replicas"]),
        timeout=45,
        what="no request in flight",
    )


def faults(**wanted: object) -> dict[str, str]:
    return {"X-Sim-Faults": json.dumps(wanted)}


# --- the replica breaks --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst", "kill"])
def test_a_cut_stream_is_never_taken_for_a_whole_one(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker], how: str
) -> None:
    """A replica that fails mid-stream ends the answer without its last chunk; nothing is tried again (spec 4.6)."""
    sims = [start_sim() for _ in range(3)]
    router = start_router(sims, "--health-interval", "60")
    breaking = faults(break_with=how, break_after=2)

    with router.connect() as wire:
        wire.send(post(chat("Hello", stream=True), X_Sim_Faults=breaking["X-Sim-Faults"]))
        with pytest.raises(h11.RemoteProtocolError, match="incomplete chunked read"):
            wire.read_answer("POST")
        assert wire.received.count(b"data: ") == 2
        assert b"\r\n0\r\n" not in wire.received
    with pytest.raises(openai.APIConnectionError):
        talk(router).say("Hello", stream=True, headers=breaking)
    with pytest.raises(http.client.IncompleteRead):
        router.request("POST", CHAT, body=chat("Hello"), headers=breaking)

    wait_idle(router)
    assert router.health()["routed"] == 3
    if how == "kill":
        wait_until(lambda: all(sim.status is not None for sim in sims), what="the end of each killed replica")
    else:
        assert sum(sim.state()["requests"] for sim in sims) == 3


def test_a_cut_answer_is_reset_where_an_end_would_look_whole(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router]
) -> None:
    """A 1.0 client, whose answers end with the connection, gets a reset for one that was cut (spec 4.6)."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    router = start_router([start_upstream(then_close(chunked), chunked + b"0\r\n\r\n")], "--health-interval", "60")

    endings = []
    for _ in range(2):
        with router.connect() as wire:
            wire.send(post(chat("Hello")).replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert wire.read_until(b"hello").endswith(b"\r\n\r\nhello")
            endings.append(wire.read_ending())

    assert endings == ["rst", "fin"]


def test_what_is_no_http_is_a_502(stage: Stage) -> None:
    """A replica that breaks before its answer, or sends something else, gives a 502 that names it (spec 4.7)."""
    for how in ("fin", "rst", "garbage"):
        answer = stage.router.request("POST", CHAT, body=chat("Hello"), headers=faults(break_with=how))

        assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_failed")
        assert answer.header("X-Session-Id")
        stage.router.wait_ready(2)


# --- the time is up ------------------------------------------------------------------------------


def test_the_request_timeout_ends_an_answer(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """Before the answer it is a 504, in its middle a cut; the replica hears of both at once (spec 4.7, 4.5)."""
    sim = start_sim()
    router = start_router([sim], "--request-timeout", "0.5")

    silent = router.request("POST", CHAT, body=chat("Hello"), headers=faults(break_with="hang"))
    with router.connect() as wire:
        wire.send(post(chat("Hello", stream=True), X_Sim_Faults='{"break_with": "hang", "break_after": 1}'))
        with pytest.raises(h11.RemoteProtocolError, match="incomplete chunked read"):
            wire.read_answer("POST")

    assert (silent.status, silent.json()["error"]["code"]) == (504, "upstream_timeout")
    sim.wait_state(running=0, aborted=2)
    wait_idle(router)


# --- the client leaves ---------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["close", "reset", "shut_writing"])
def test_a_client_that_leaves_ends_its_generation(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], leave: str
) -> None:
    """However it leaves, and whatever the replica is at, serving learns of it at once (spec 4.5)."""
    sim = start_sim(decode_rate=10)
    router = start_router([sim])
    phases = {
        "before the head": {"break_with": "hang"},
        "silent after the head": {"break_with": "hang", "break_after": 0},
        "silent in the stream": {"break_with": "hang", "break_after": 1},
        "decoding": {},
    }
    wires = []
    for number, wanted in enumerate(phases.values()):
        wire = router.connect()
        wires.append(wire)
        body = chat("Hello", stream=True, max_tokens=10_000)
        wire.send(post(body, X_Sim_Faults=json.dumps(wanted)))
        sim.wait_state(running=number + 1)
        if number:
            wire.read_until(b"\r\n\r\n" if number == 1 else b"data: ")

    began = time.monotonic()
    for wire in wires:
        getattr(wire, leave)()
    sim.wait_state(running=0, aborted=4)

    assert time.monotonic() - began < 20
    wait_idle(router)
    for wire in wires:
        wire.close()
    assert sim.state()["connections"] <= 1, "only the one that asks"
    assert router.health()["replicas_ready"] == 1


def test_a_client_that_leaves_while_its_replica_is_connected_to(start_router: Callable[..., Router]) -> None:
    """A connect that nobody waits for any more is given up (spec 4.5)."""
    with swallowing_port() as port:
        router = start_router([f"http://127.0.0.1:{port}"], "--connect-timeout", "60", "--health-interval", "600")
        with router.connect() as wire:
            wire.send(post(chat("Hello")))
            wait_until(lambda: router.health()["replicas"][0]["outstanding"] == 1, what="the request's place")

        wait_idle(router)


def test_a_client_that_leaves_while_it_sends(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router]
) -> None:
    """A client that leaves in the middle of its own body takes its half-sent request with it (spec 4.5)."""
    upstream = start_upstream()
    router = start_router([upstream], "--health-interval", "60")
    with router.connect() as wire:
        wire.send(post(b"x" * 100_000, X_Session_Id="s")[:-50_000])
        wait_until(lambda: any(b"xxx" in one.received for one in upstream.connections), what="half the body")

    wait_until(lambda: all(one.ending for one in upstream.connections), what="the end of the replica's connection")
    wait_idle(router)
    assert upstream.requests == []


# --- connections that have gone stale ------------------------------------------------------------


def test_stale_connections_never_cost_a_request(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router]
) -> None:
    """A kept connection that the replica closes at the wrong moment is not a failed request (spec 4.6)."""
    sim = start_sim(keep_alive=0.003)
    router = start_router([sim], "--health-interval", "60")
    large = chat("x" * 1_100_000, max_tokens=1)
    small = chat("Hello", max_tokens=1)
    random.seed(7)
    gaps = [random.uniform(0.0, 0.008) for _ in range(60)]

    def client(number: int) -> list[int]:
        clock = threading.Event()
        statuses = []
        for turn, gap in enumerate(gaps):
            body = large if turn % 20 == number else small
            statuses.append(router.request("POST", CHAT, body=body, headers={"X-Session-Id": f"s{number}"}).status)
            clock.wait(gap)
        return statuses

    with ThreadPoolExecutor(4) as pool:
        statuses = [status for one in pool.map(client, range(4)) for status in one]

    assert set(statuses) == {200}
    assert router.log_events("replica is not routable") == []
    assert router.log_events("exchange failed") == []
    assert sim.state()["requests"] >= 240
    assert sim.state()["accepted"] > 20, "connections did go stale"


def test_a_request_is_sent_twice_only_where_it_was_not_taken(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router]
) -> None:
    """A fresh connection that closes without a byte is a failed replica: the request is not sent again (spec 4.6)."""

    def vanish(wire: Wire, _: bytes) -> None:
        wire.close()

    upstream = start_upstream(OK, vanish, vanish, OK)
    router = start_router([upstream], "--health-interval", "60")

    assert router.request("POST", CHAT, body=chat("one")).status == 200
    assert router.request("POST", CHAT, body=chat("two")).status == 502, "stale, then fresh and closed again"
    assert len(upstream.requests) == 3
    router.wait_log("replica is routable")
    assert router.request("POST", CHAT, body=chat("three")).status == 200


# --- everything at once --------------------------------------------------------------------------


def test_no_request_stays_behind(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """After hundreds of exchanges that end in every way there is, none counts as outstanding (spec 4.5, 4.6, 3.10)."""
    sims = [start_sim(keep_alive=0.05), start_sim()]
    router = start_router(sims, "--request-timeout", "0.4", "--health-interval", "0.2")
    chance = random.Random(11)
    breaks = ["fin", "rst", "hang", "garbage"]
    plans = [
        (
            chance.choice([*breaks, None]),
            chance.choice([-1, 0, 1, 3]),
            chance.random() < 0.7,
            chance.choice([0, 0, 0.05]),
        )
        for _ in range(240)
    ]

    def run(plan: tuple[str | None, int, bool, float]) -> str:
        how, after, stream, leave = plan
        wanted = {} if how is None else {"break_with": how, "break_after": after}
        with router.connect(timeout=45) as wire:
            wire.send(post(chat("Hello", stream=stream), X_Sim_Faults=json.dumps(wanted), X_Session_Id=f"s{after}"))
            if leave:
                threading.Event().wait(leave)
                return "left"
            try:
                return str(wire.read_answer("POST").status)
            except (h11.RemoteProtocolError, ConnectionResetError):
                return "cut"

    with ThreadPoolExecutor(24) as pool:
        ends = set(pool.map(run, plans))

    assert {"200", "502", "504", "cut", "left"} <= ends <= {"200", "502", "503", "504", "cut", "left"}
    wait_idle(router)
    for sim in sims:
        sim.wait_state(running=0, waiting=0)
    router.wait_ready(2)
    assert router.request("POST", CHAT, body=chat("Hello")).status == 200


# --- flow ----------------------------------------------------------------------------------------


def test_events_arrive_as_they_are_sent(stage: Stage) -> None:
    """Each event of a stream reaches the client when it is sent, alone and unchanged (spec 4.4)."""
    body = chat("Hello", stream=True, max_tokens=3)
    with stage.router.connect() as wire:
        wire.send(post(body, X_Sim_Faults='{"trickle": 0.002}'))
        wire.read_until(b"\r\n\r\n")
        pieces = [wire.read_some()]
        while not wire.received.endswith(b"0\r\n\r\n"):
            pieces.append(wire.read_some())

    assert len(pieces) > 300, "bytes that were sent apart did not wait for one another"
    events = [line for line in bytes(wire.received).split(b"\n") if line.startswith(b"data: {")]
    assert len(events) >= 3


def peak_memory(router: Router) -> int:
    """The most memory that the router ever had, in bytes."""
    status = Path(f"/proc/{router.pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def test_a_slow_reader_holds_its_replica_back(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router]
) -> None:
    """A client that reads nothing stops the reads from its replica; memory is bounded, nothing lost (spec 4.4)."""
    size = 48_000_000
    sim = start_sim(answer_bytes=size)
    router = start_router([sim])
    router.request("POST", CHAT, body=chat("Hello"), headers=faults(answer_bytes=100_000))
    before = peak_memory(router)

    wires = [router.connect(receive_buffer=4096) for _ in range(3)]
    for wire in wires:
        wire.send(post(chat("Hello", max_tokens=400)))
        wire.read_until(b"\r\n\r\n")
    assert [sim.state()["running"], router.health()["replicas"][0]["outstanding"]] == [3, 3]
    grown = peak_memory(router) - before
    for wire in wires[1:]:
        wire.close()
    wire = wires[0]
    got = 0
    while got < size:
        got += len(wire.read_some())
    wire.close()

    assert grown < 16_000_000
    assert peak_memory(router) - before < 16_000_000
    sim.wait_state(running=0)


def test_a_slow_replica_holds_its_client_back(start_router: Callable[..., Router]) -> None:
    """A body that need not be searched is streamed through with backpressure, and arrives whole (spec 4.3, 4.4)."""
    body = random.Random(3).randbytes(40_000_000)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as replica, ThreadPoolExecutor(1) as pool:
        router = start_router([f"http://127.0.0.1:{replica.getsockname()[1]}"], "--health-interval", "600")
        accepted = [replica.accept()[0]]  # the probe at the start, which is never answered
        before = peak_memory(router)
        with router.connect(timeout=60) as wire:
            wire.send(post(body, X_Session_Id="s")[:-39_999_000])
            sent = 1000

            def send_rest() -> None:
                nonlocal sent
                for start in range(1000, len(body), 100_000):
                    wire.send(body[start : start + 100_000])
                    sent += 100_000

            rest = pool.submit(send_rest)
            accepted.append(replica.accept()[0])
            stalled = -1
            while stalled != sent:
                stalled = sent
                threading.Event().wait(0.3)
            assert stalled < 30_000_000, "what the kernel's buffers hold, and little more"
            got = Wire(accepted[1], timeout=60).read_request()
            rest.result(60)
            accepted[1].sendall(answer)
            assert wire.read_answer("POST").status == 200
        grown = peak_memory(router) - before
        for connection in accepted:
            connection.close()

    assert got.endswith(b"\r\n\r\n" + body)
    assert grown < 16_000_000


def test_a_large_body_stalls_nobody(stage: Stage) -> None:
    """S11: While bodies of 20 MB are searched for their ids, another client's stream goes on (spec 3.9, 4.3)."""
    body = json.dumps(chat('\\"{[' * 4_000_000, max_tokens=1) | {"session_id": "large"}).encode()
    assert len(body) > 20_000_000
    gaps = []
    with stage.router.connect() as wire, ThreadPoolExecutor(2) as pool:
        wire.send(post(chat("Hello", stream=True, max_tokens=5000), X_Sim_Faults='{"trickle": 0.005}'))
        wire.read_until(b"data: ")
        uploads = [
            pool.submit(stage.router.request, "POST", CHAT, body=body, headers={"X-Sim-Echo": "1"}, timeout=60)
            for _ in range(4)
        ]
        last = time.monotonic()
        while not all(upload.done() for upload in uploads):
            assert wire.read_some()
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    for upload in uploads:
        answer = upload.result()
        assert (answer.header("X-Session-Id"), answer.json()["body_bytes"]) == ("large", len(body))
    assert len(gaps) > 10
    assert max(gaps) < 3
