"""The router as a process: how it starts, what it logs of requests, what signals and a lack of descriptors do."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shlex
import signal
import socket
from hashlib import blake2b
from typing import TYPE_CHECKING

import h11
import pytest
from tests.support.client import chat
from tests.support.fleet import sim_host
from tests.support.ports import free_port
from tests.support.processes import installed
from tests.support.talk import CHAT, held, post
from tests.support.waiting import wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import Stage
    from tests.support.harness import Harness
    from tests.support.router import Router
    from tests.support.sim import Sim
    from tests.support.talk import Talker


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as trial:
        trial.bind(("::1", 0))
        return True
    return False


# --- starting ------------------------------------------------------------------------------------


def test_an_address_in_use_ends_it(stage: Stage, start_router: Callable[..., Router]) -> None:
    """An address that can't be bound is one line on stderr and status 1, before anything is launched (spec 1.4)."""
    router = start_router({"hosts": [sim_host()]}, "--port", str(stage.router.port), wait=False)

    assert router.wait() == 1
    complaint = router.stderr.splitlines()[-1]
    assert f"127.0.0.1:{stage.router.port} can't be bound" in complaint
    assert "--port" in complaint
    assert router.log_events("slot changed") == []


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ipv6_on_both_sides(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """The router listens on an IPv6 address and reaches replicas at one (spec 4.8)."""
    sim = start_sim("--host", "::1")
    router = start_router([sim], "--host", "::1")
    router.wait_ready(1)

    turn = talk(router).say("Hello")

    assert router.url == f"http://[::1]:{router.port}"
    assert turn.replica in (f"::1:{sim.port}", f"[::1]:{sim.port}")
    with router.connect() as wire:
        wire.send(post(chat("Hello"), X_Sim_Echo="1"))
        fields = json.loads(wire.read_answer("POST").body)["headers"]
    assert ["Host", f"[::1]:{sim.port}"] in fields
    assert ["X-Forwarded-For", "::1"] in fields


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_it_works_without_standard_streams(harness: Harness, closed: str) -> None:
    """Started with stdin, stdout or stderr closed it launches, serves and ends as ever (spec 7.2, 7.11, 1.4)."""
    script = harness.folder / "start"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(installed("pypto-serving-router"))} "$@" {closed}\n')
    script.chmod(0o700)
    port = free_port()

    router = harness.start_router({"hosts": [sim_host()]}, f"--port={port}", executable=str(script), wait=False)
    wait_until(lambda: not _is_refused(port), what="a router that listens")
    router.url = f"http://127.0.0.1:{port}"
    router.wait_ready(1)
    router.signal(signal.SIGTERM)

    assert router.wait() == 0
    assert "2>" in closed or router.log_events("stopped", confirmed=True)


# --- what is logged of a request -----------------------------------------------------------------


def test_each_exchange_is_logged_once(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """With `--access-log` there is one record an exchange, with its session's digest and no content (spec 1.2, 9)."""
    sim = start_sim()
    router = start_router([sim], "--access-log", "--request-timeout", "2")
    name = sim.url.removeprefix("http://")
    secret = "the-secret-session"
    own = {"X-Request-Id": "mine-1", "X-Session-Id": secret}

    answer = router.request("POST", f"{CHAT}?key=hidden", body=chat("private words"), headers=own)
    router.request("POST", CHAT, body=chat("Hello"), headers={"X-Sim-Faults": '{"break_with": "hang"}'})
    router.request("GET", "/v1/models")
    with held(router):
        pass
    router.wait_logs(4, "exchange ended")
    router.request("GET", "/health")

    whole, slow, models, left = router.log_events("exchange ended")
    assert answer.header("X-Request-Id") == "mine-1"
    assert whole == {
        **{key: whole[key] for key in ("timestamp", "level", "event", "ttfb_ms", "total_ms")},
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "replica": name,
        "placement": "new",
        "outcome": "complete",
        "session": blake2b(secret.encode(), digest_size=6).hexdigest(),
        "client": "127.0.0.1",
        "received": len(json.dumps(chat("private words"))),
        "relayed": len(answer.body),
        "request_id": "mine-1",
    }
    assert 0 <= whole["ttfb_ms"] <= whole["total_ms"]
    assert (slow["status"], slow["outcome"], slow["ttfb_ms"]) == (504, "timeout", None)
    assert (models["method"], models["session"], models["outcome"]) == ("GET", None, "complete")
    assert (left["outcome"], left["status"]) == ("client_left", 200)
    assert len({one["request_id"] for one in (whole, slow, models, left)}) == 4
    for hidden in (secret, "private words", "hidden"):
        assert hidden not in router.stderr


def test_requests_are_named(stage: Stage) -> None:
    """Every request reaches its replica with an `X-Request-Id`, its own or a new one, which is answered (spec 4.2)."""
    with stage.router.connect() as wire:
        seen = []
        for own in ({}, {}, {"X_Request_Id": "mine"}):
            wire.send(post(chat("Hello"), X_Sim_Echo="1", **own))
            answer = wire.read_answer("POST")
            fields = dict(json.loads(answer.body)["headers"])
            assert fields["X-Request-Id"] == answer.header("X-Request-Id")
            seen.append(fields["X-Request-Id"])

    assert len(set(seen)) == 3
    assert seen[2] == "mine"
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in seen[:2])


def test_no_access_log_unless_asked_for(stage: Stage) -> None:
    """Requests leave no records by default (spec 1.2)."""
    stage.talker.say("Hello")

    assert stage.router.log_events("exchange ended") == []


# --- signals -------------------------------------------------------------------------------------


def test_sigterm_lets_a_stream_finish(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """It stops accepting, closes idle connections, lets what is under way finish, and exits 0 (spec 7.11, 1.4)."""
    sim = start_sim()
    router = start_router([sim], "--drain-timeout", "30")
    body = chat("Hello", stream=True, max_tokens=3)

    with router.connect() as wire, router.connect() as idle:
        idle.send(post(chat("Hello")))
        assert idle.read_answer("POST").status == 200
        wire.send(post(body, X_Sim_Faults='{"trickle": 0.001}'))
        wire.read_until(b"data: ")
        router.signal(signal.SIGTERM)
        assert idle.read_ending() == "fin"
        wait_until(lambda: _is_refused(router.port), what="a refused connection")
        assert router.status is None
        with contextlib.suppress(h11.RemoteProtocolError):
            wire.read_to_end()

    assert wire.received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert router.wait() == 0
    assert sim.status is None, "what the router did not start it does not stop"
    assert router.log_events("stopped")[0]["confirmed"] is True


def test_sigterm_cuts_what_outlasts_the_drain(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router]
) -> None:
    """X18: After `--drain-timeout` what is still under way is cut, and not mistaken for whole (spec 7.8, 4.6).

    Meanwhile the log tells what is waited for.
    """
    router = start_router([start_sim()], "--drain-timeout", "0.6")

    with held(router) as requests:
        router.signal(signal.SIGINT)
        assert router.wait() == 0
        requests[0].wire.read_to_end()

    assert not requests[0].wire.received.endswith(b"0\r\n\r\n")
    assert router.log_events("stopping", requests=1)
    assert router.log_events("waiting for requests", requests=1, seconds_left=1)
    assert router.log_events("requests cut off")[0]["requests"] == 1


def test_a_second_signal_ends_it_at_once(start_router: Callable[..., Router]) -> None:
    """While it drains, a second signal ends it with status 3, and it says what was left running (spec 7.11, 1.4)."""
    router = start_router({"hosts": [sim_host([0, 1])]}, "--drain-timeout", "60", "--initial-replicas", "2")
    router.wait_ready(2)

    with held(router, count=2):
        router.signal(signal.SIGTERM)
        router.wait_log("stopping", signal="SIGTERM")
        router.signal(signal.SIGINT)
        assert router.wait(30) == 3

    said = router.log_events("stopped at once by a second signal")[0]
    assert (said["signal"], said["left_running"]) == ("SIGINT", ["node-d0", "node-d1"])


def test_signals_after_the_end_change_nothing(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router]
) -> None:
    """Whoever asks again and again gets the status of the orderly stop, not that of a killed process (spec 1.4)."""
    sim = start_sim()
    for _ in range(5):
        router = start_router([sim])
        router.signal(signal.SIGTERM)
        router.wait_log("stopped", confirmed=True)
        while router.status is None:
            with contextlib.suppress(ProcessLookupError):
                router.signal(signal.SIGTERM)
        assert router.wait(10) == 0


def test_sighup_is_ignored(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """X5: A terminal that goes away does not take the router with it (spec 7.11)."""
    router = start_router([start_sim()])

    router.signal(signal.SIGHUP)
    router.wait_log("SIGHUP is ignored")

    assert router.request("POST", CHAT, body=chat("Hello")).status == 200


def _is_refused(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) != 0


# --- descriptors ---------------------------------------------------------------------------------


def test_more_clients_than_descriptors_are_refused(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router]
) -> None:
    """Where descriptors are few, a client too many is refused, the others are served, and it recovers (spec 4.10)."""
    router = start_router([start_sim()], wait=False)
    resource.prlimit(router.pid, resource.RLIMIT_NOFILE, (200, 200))  # long before it looks
    router.wait_listening()

    wires = [router.connect() for _ in range(60)]
    endings = [_served(wire) for wire in wires]
    for wire in wires:
        wire.close()

    assert 16 <= endings.count(True) < 60, "some were served and some refused"
    wait_until(lambda: router.request("POST", CHAT, body=chat("Hello")).status == 200, what="service as usual")
    assert router.health()["replicas_ready"] == 1


def test_it_outlives_a_lack_of_descriptors(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """Out of descriptors altogether, it neither ends nor blames its replica, and recovers (spec 4.10, 5.4)."""
    sim = start_sim(keep_alive=0.2)
    router = start_router([sim], "--health-interval", "0.2")
    router.wait_ready(1)
    assert router.request("POST", CHAT, body=chat("Hello")).status == 200

    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(router.connect())
        waiting.send(b"POST ")
        wait_until(lambda: sim.state()["connections"] == 1, what="the end of the kept connection", timeout=45)
        limits = resource.prlimit(router.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(router.pid, resource.RLIMIT_NOFILE, (8, limits[1]))
        waiting.send(post(chat("Hello"))[5:])
        answer = waiting.read_answer("POST")
        newcomer = stack.enter_context(Wire.connect(router.port))
        newcomer.send(b"GET /health HTTP/1.1\r\nHost: router\r\n\r\n")
        router.wait_log("probe failed here")
        assert router.status is None
        resource.prlimit(router.pid, resource.RLIMIT_NOFILE, limits)

        assert (answer.status, answer.header("Retry-After")) == (503, "1")
        wait_until(lambda: router.request("POST", CHAT, body=chat("Hello")).status == 200, what="service as usual")

    assert router.log_events("replica is not routable") == []


def test_it_ends_in_order_without_descriptors(harness: Harness) -> None:
    """Where nothing can be opened a stop can't be confirmed, which its last words and status say (spec 1.4)."""
    router = harness.start_router({"hosts": [sim_host()]}, "--initial-replicas", "1")
    router.wait_ready(1)
    resource.prlimit(router.pid, resource.RLIMIT_NOFILE, (3, 3))

    router.signal(signal.SIGTERM)

    assert router.wait() == 3
    last = json.loads(router.stderr.splitlines()[-1])
    assert (last["event"], last["confirmed"]) == ("stopped", False)


def _served(wire: Wire) -> bool:
    try:
        wire.send(post(chat("Hello"), X_Sim_Faults="{}"))
        return wire.read_answer("POST").status == 200
    except (OSError, h11.RemoteProtocolError):
        return False
