"""Health: what takes a replica out of rotation, what brings it back, and what says nothing about it."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import chat
from tests.support.talk import CHAT, post
from tests.support.upstream import OK, then_reset
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.router import Router
    from tests.support.sim import Sim
    from tests.support.upstream import RawUpstream
    from tests.support.wire import Wire

RARELY = ("--health-interval", "600")
"""After the probe at the start and the second, somewhere within the first interval, only triggered ones come."""

UNREADY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it"


def name_of(replica: Sim | RawUpstream) -> str:
    return replica.url.removeprefix("http://")


def row(router: Router, replica: Sim | RawUpstream) -> dict[str, Any]:
    return next(one for one in router.replicas()["replicas"] if one["name"] == name_of(replica))


def ask(router: Router, session: str = "s") -> int:
    return router.request("POST", CHAT, body=chat("Hello"), headers={"X-Session-Id": session}).status


def first_probed(upstream: RawUpstream) -> None:
    wait_until(lambda: upstream.probes >= 1, what="the first probe")


def test_health_shows_the_whole_table(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """`/health` is 200 while a replica is routable and 503 when none is, with the table either way (spec 6.1)."""
    sims = [start_sim(), start_sim()]
    router = start_router(sims, "--health-interval", "0.2")
    router.wait_ready(2)

    whole = router.request("GET", "/health")
    sims[0].kill()
    half = router.wait_ready(1)
    sims[1].kill()
    router.wait_ready(0)
    none = router.request("GET", "/health")

    assert whole.status == 200
    rows = [{"name": name_of(sim), "url": sim.url, "ready": True, "outstanding": 0, "phase": "ready"} for sim in sims]
    counts = {"sessions": 0, "routed": 0, "affinity_hits": 0, "rejected": 0}
    table = {"replicas_ready": 2, "replicas_total": 2, "replicas_failed": 0}
    assert whole.json() == {"status": "ok", **table, **counts, "replicas": rows}
    assert (half["status"], half["replicas_failed"]) == ("ok", 1)
    assert none.status == 503
    gone = [{**one, "ready": False, "phase": "failed"} for one in rows]
    table |= {"replicas_ready": 0, "replicas_failed": 2}
    assert none.json() == {"status": "unavailable", **table, **counts, "replicas": gone}
    assert {one["last_error"] for one in router.replicas()["replicas"]} == {"connection refused"}


@pytest.mark.parametrize("health", ["unready", "hang"])
def test_two_failed_probes_take_a_replica_out(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], health: str
) -> None:
    """A 503, or nothing within the connect timeout, twice in a row takes it out; one 200 suffices (spec 5.1, 5.2)."""
    sick, well = start_sim(), start_sim()
    router = start_router([sick, well], "--health-interval", "0.2", "--connect-timeout", "1.5")
    router.wait_ready(2)

    before = sick.state()["health_probes"]
    sick.fault(health=health)
    router.wait_log("replica is not routable", replica=name_of(sick))
    failed = sick.state()["health_probes"] - before
    shown = row(router, sick)
    assert {ask(router, f"new{number}") for number in range(4)} == {200}
    assert sick.state()["requests"] == 0
    sick.heal()
    router.wait_ready(2)

    assert failed >= 2
    assert (shown["phase"], shown["ready"]) == ("failed", False)
    assert shown["last_error"] == ("answered 503" if health == "unready" else "no answer within 1.5 s")
    assert row(router, sick)["phase"] == "ready"


def test_single_failed_probes_take_nobody_out(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router]
) -> None:
    """Every other probe failing is never two in a row (spec 5.2)."""
    upstream = start_upstream()
    answers = iter(range(1_000_000))
    upstream.health = lambda wire, _: wire.send(UNREADY if next(answers) % 2 else OK)
    router = start_router([upstream], "--health-interval", "0.05")

    wait_until(lambda: upstream.probes >= 12, what="12 probes")

    assert router.log_events("replica is not routable") == []


def test_probes_do_not_wait_for_one_another(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """A replica that never answers its probes delays nobody else's (spec 5.1)."""
    stuck, well = start_sim(health="hang"), start_sim()
    router = start_router([stuck, well], "--health-interval", "0.1", "--connect-timeout", "60")

    wait_until(lambda: well.state()["health_probes"] >= 5, what="5 probes of the other")

    assert stuck.state()["health_probes"] == 1
    assert row(router, stuck)["phase"] == "ready", "no probe has failed yet"
    assert ask(router) == 200


def test_a_static_replica_starts_routable(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router]
) -> None:
    """It is routed to before its first probe is answered; never well, it is `starting` (spec 5.3, 5.5)."""
    probed = threading.Event()
    release = threading.Event()

    def health(wire: Wire, _: bytes) -> None:
        probed.set()
        release.wait(30)
        wire.send(UNREADY)

    upstream = start_upstream(health=health)
    router = start_router([upstream], "--connect-timeout", "60", "--health-interval", "0.1")
    assert probed.wait(60)
    before = row(router, upstream)
    status = ask(router)
    release.set()
    router.wait_ready(0)

    assert (before["ready"], before["phase"], status) == (True, "ready", 200)
    assert row(router, upstream)["phase"] == "starting"


def test_a_refused_connect_takes_a_replica_out_at_once(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router]
) -> None:
    """F1: One refused connect is enough, whatever probes said before; the next good probe brings it back (spec 5.4)."""
    upstream, other = start_upstream(), start_upstream()
    router = start_router([upstream, other], "--health-interval", "1.5")
    first_probed(upstream)
    first_probed(other)
    assert [ask(router, "s"), ask(router, "t")] == [200, 200]
    upstream.refuse()
    for connection in upstream.connections:
        connection.close()  # the kept one, too

    statuses = {ask(router, session) for session in ("s", "t")}
    shown = row(router, upstream)
    assert {ask(router, session) for session in ("s", "t", "u")} == {200}
    upstream.listen()
    router.wait_ready(2)

    assert statuses == {200, 502}
    assert (shown["ready"], shown["phase"]) == (False, "failed")
    assert "refused" in shown["last_error"]


def test_a_break_before_the_answer_takes_a_replica_out_until_the_triggered_probe(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router]
) -> None:
    """A connection that breaks before its answer takes the replica out and triggers a probe at once (spec 5.4)."""
    upstream = start_upstream(then_reset(), OK)
    router = start_router([upstream], *RARELY)
    first_probed(upstream)

    assert ask(router) == 502
    router.wait_log("replica is routable")

    assert len(router.log_events("replica is not routable")) == 1
    assert upstream.probes == 2
    assert ask(router) == 200


def test_a_break_during_the_answer_is_one_failed_probe(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router]
) -> None:
    """Alone it takes nobody out, with a failed probe after it it does; the probe comes at once (spec 5.4)."""
    well, sick = start_upstream(then_reset(HALF)), start_upstream(then_reset(HALF))
    router = start_router([well, sick], *RARELY)
    for upstream in (well, sick):
        first_probed(upstream)
    sick.health = UNREADY

    for _ in range(2):
        with router.connect() as wire:
            wire.send(post(chat("Hello")))
            wire.read_until(b"half of it")
            wire.read_ending()

    router.wait_log("replica is not routable", replica=name_of(sick))
    wait_until(lambda: well.probes >= 2, what="the triggered probe")
    assert router.health()["replicas_ready"] == 1
    assert row(router, sick)["last_error"] == "answered 503"
    assert (len(well.requests), len(sick.requests)) == (1, 1)


def test_answers_say_nothing_about_health(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """Errors that a replica answers are passed on as they are and leave it in rotation (spec 5.4)."""
    sim = start_sim()
    router = start_router([sim], *RARELY)

    for status in (429, 500, 503) * 2:
        faults = json.dumps({"status": status, "retry_after": 7})
        answer = router.request("POST", CHAT, body=chat("Hello"), headers={"X-Sim-Faults": faults})
        assert (answer.status, answer.header("Retry-After")) == (status, "7")
        assert answer.json()["message"] == f"the simulation was told to answer {status}"

    assert router.health()["replicas_ready"] == 1
    assert sim.state()["health_probes"] <= 2
    assert router.log_events("replica is not routable") == []
    assert router.log_events("exchange failed") == []


def test_a_timeout_says_nothing_about_health(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router]
) -> None:
    """An answer that takes too long is the application's affair (spec 5.4)."""
    router = start_router([start_sim()], "--request-timeout", "0.3", *RARELY)

    hang = json.dumps({"break_with": "hang"})
    answer = router.request("POST", CHAT, body=chat("Hello"), headers={"X-Sim-Faults": hang})

    assert answer.status == 504
    assert router.health()["replicas_ready"] == 1
