"""Which replica a request goes to: least outstanding, fair ties, affinity and its limits, and the counters."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.support.client import chat
from tests.support.ports import refusing_port
from tests.support.talk import CHAT, held
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.router import Router
    from tests.support.sim import Sim
    from tests.support.talk import Talker


def outstanding(router: Router) -> list[int]:
    return [replica["outstanding"] for replica in router.health()["replicas"]]


def wait_idle(router: Router) -> None:
    wait_until(lambda: not any(outstanding(router)), what="no request in flight")


def counters(router: Router) -> tuple[int, int, int]:
    health = router.health()
    return health["routed"], health["affinity_hits"], health["rejected"]


def test_idle_replicas_get_new_sessions_one_each(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """N idle replicas get N successive new sessions one each, over and over, whatever hits come between (spec 3.4)."""
    router = start_router([start_sim() for _ in range(4)])
    talker = talk(router)

    rounds = []
    for _ in range(3):
        turns = []
        for _ in range(4):
            turns.append(talker.say("Hello"))
            hits = [talker.say("More", session=turn.session) for turn in turns]
            assert [hit.replica for hit in hits] == [turn.replica for turn in turns]
        rounds.append(Counter(turn.replica for turn in turns))

    assert [sorted(one.values()) for one in rounds] == [[1, 1, 1, 1]] * 3
    assert [replica["sessions"] for replica in router.replicas()["replicas"]] == [3, 3, 3, 3]


def test_a_burst_is_spread_evenly(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """Conversations that start at once, and then one that starts alone, even out by requests and pins (spec 3.4)."""
    router = start_router([start_sim() for _ in range(3)])
    talker = talk(router)

    with held(router, count=12) as requests:
        placed = Counter(request.replica for request in requests)
        assert outstanding(router) == [4, 4, 4]
        lonely = requests[0].replica
        for request in requests:
            if request.replica == lonely:
                request.leave()
        wait_until(lambda: 0 in outstanding(router))
        assert talker.say("Hello").replica == lonely, "the fewest outstanding"
        assert talker.say("Hello").replica == lonely, "the fewest outstanding, though it has more pins"

    assert sorted(placed.values()) == [4, 4, 4]
    wait_idle(router)
    few = {talker.say("Hello").replica for _ in range(4)}
    assert lonely not in few, "of idle replicas those with the fewest pins"


def test_affinity_makes_later_turns_fast(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """A conversation's later turns find its prompt cached where it is pinned, and answer early (spec 3.5)."""
    sims = [start_sim(prefill_rate=2500) for _ in range(2)]
    router = start_router(sims)
    talker = talk(router)
    transcript = ["a long story " * 400]

    def ask(session: str | None) -> tuple[float, str, int]:
        began = time.perf_counter()
        turn = talker.say(*transcript, session=session, stream=True)
        transcript.extend([turn.text, "and then?"])
        return time.perf_counter() - began, turn.session, turn.cached

    cold, session, none = ask(None)
    later = [ask(session) for _ in range(3)]

    assert none == 0
    assert all(same == session and cached > 1000 for _, same, cached in later)
    assert cold > 0.4, "1,300 tokens at 2,500 a second"
    assert min(seconds for seconds, _, _ in later) < cold / 2
    assert sorted(sim.state()["requests"] for sim in sims) == [0, 4]
    assert counters(router) == (4, 3, 0)


def test_slack_lets_a_session_go(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """A pinned replica may have `slack` more outstanding than the least; with one more the session moves (spec 3.5)."""
    router = start_router([start_sim(), start_sim()], "--affinity-slack", "2")
    talker = talk(router)
    home = talker.say("Hello")

    with held(router, home.session, count=2):
        assert outstanding(router).count(2) == 1
        assert talker.say("More", session=home.session).placement == "affinity"
        with held(router, home.session) as third:
            assert third[0].replica == home.replica
            moved = talker.say("More", session=home.session)
    wait_idle(router)
    stays = talker.say("More", session=home.session)

    assert moved.placement == "moved-slack"
    assert moved.replica != home.replica
    assert (stays.placement, stays.replica) == ("affinity", moved.replica), "it was pinned anew"
    assert counters(router) == (7, 5, 0), "the move is no hit"


def test_slack_zero_turns_affinity_off(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """Without slack each turn goes to the replica with the fewest outstanding, in turn (spec 3.5)."""
    router = start_router([start_sim(), start_sim()], "--affinity-slack", "0")
    talker = talk(router)

    turns = [talker.say("Hello", session="s1") for _ in range(6)]

    assert sorted(Counter(turn.replica for turn in turns).values()) == [3, 3]
    assert {turn.session for turn in turns} == {"s1"}
    assert counters(router) == (6, 0, 0)


def test_a_pin_expires(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """Inactivity ends a pin; a request in flight does not let it end, and a GET does not renew it (spec 3.6, 3.3)."""
    router = start_router([start_sim()], "--session-ttl", "0.6")
    talker = talk(router)

    with held(router, "busy"):
        talker.say("Hello", session="idle")
        began = time.monotonic()

        def expired() -> bool:
            assert router.request("GET", "/v1/models", headers={"X-Session-Id": "idle"}).status == 200
            return bool(router.health()["sessions"] == 1)

        wait_until(expired, what="the end of the idle session's pin")
        assert time.monotonic() - began > 0.5
        assert talker.say("Hello", session="busy").placement == "affinity"
        assert talker.say("Hello", session="idle").placement == "new"
    wait_until(lambda: router.health()["sessions"] == 0, what="the end of both pins")


def test_the_least_recently_used_pin_makes_room(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """Above `--max-sessions` the least recently used pin goes, even with a request in flight (spec 3.7)."""
    router = start_router([start_sim()], "--max-sessions", "2")
    talker = talk(router)

    def place(session: str) -> str:
        return talker.say("Hello", session=session).placement

    assert [place("a"), place("b"), place("a"), place("c")] == ["new", "new", "affinity", "new"]
    assert router.health()["sessions"] == 2
    assert [place("a"), place("b"), place("c")] == ["affinity", "new", "new"], "b had gone for c, then c for b"
    with held(router, "busy"):
        assert [place("d"), place("e")] == ["new", "new"]
        assert router.health()["sessions"] == 2
        assert place("busy") == "new"


def test_sessions_of_a_dead_replica_move_once(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """Sessions of a killed replica fall back to a live one, are pinned there, and stay (spec 3.5, 5.4)."""
    sims = [start_sim() for _ in range(3)]
    router = start_router(sims, "--health-interval", "0.2")
    talker = talk(router)
    homes = {turn.session: turn.replica for turn in (talker.say("Hello") for _ in range(6))}
    dead = sims[0].url.removeprefix("http://")
    sims[0].kill()
    router.wait_log("replica is not routable", replica=dead)

    moved = {session: talker.say("More", session=session) for session in homes}
    again = {session: talker.say("More", session=session) for session in homes}

    for session, home in homes.items():
        if home == dead:
            assert (moved[session].placement, moved[session].replica != dead) == ("moved-unroutable", True)
        else:
            assert (moved[session].placement, moved[session].replica) == ("affinity", home)
        assert (again[session].placement, again[session].replica) == ("affinity", moved[session].replica)
    assert list(homes.values()).count(dead) == 2
    assert counters(router) == (18, 10, 0)


def test_counters_tell_the_truth(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """L6: `routed` counts POSTs that got a replica, `rejected` those that did not; GETs are in neither (spec 6.1)."""
    sim = start_sim(status=429)
    router = start_router([sim])
    talker = talk(router)

    for path in ("/v1/models", "/v1/models", "/v1/nothing"):
        router.request("GET", path)
    assert counters(router) == (0, 0, 0)
    assert router.request("POST", CHAT, body=chat("Hello"), headers={"X-Session-Id": "s"}).status == 429
    assert counters(router) == (1, 0, 0), "what the replica answers makes no difference"
    sim.heal()
    talker.say("Hello", session="s")
    assert router.request("POST", "/v1/embeddings", body={"session_id": "s"}).status == 404
    assert counters(router) == (3, 2, 0)
    assert [replica["routed"] for replica in router.replicas()["replicas"]] == [3]
    sim.kill()
    router.wait_ready(0)
    assert router.request("POST", CHAT, body=chat("Hello"), headers={"X-Session-Id": "s"}).status == 503
    assert router.request("GET", "/v1/models").status == 503
    assert counters(router) == (3, 2, 1)
    assert sum(outstanding(router)) == 0


def test_another_replica_is_tried_where_nothing_was_sent(
    start_sim: Callable[..., Sim], start_router: Callable[..., Router], talk: Callable[[Router], Talker]
) -> None:
    """With `--connect-retries` a refused connect costs the client nothing, and the session moves (spec 4.6)."""
    sim = start_sim()
    with ExitStack() as held_ports:
        ports = [held_ports.enter_context(refusing_port()) for _ in range(2)]
        fleet = [f"http://127.0.0.1:{port}" for port in ports]
        patient = start_router([*fleet, sim], "--connect-retries", "2", "--health-interval", "60")
        strict = start_router([*fleet, sim], "--health-interval", "60")

        # One failed probe at the start takes nobody out; a refused connect does.
        answers = [talk(patient).say("Hello", session=f"s{number}") for number in range(6)]
        statuses = [strict.request("POST", CHAT, body=chat("Hello")).status for _ in range(6)]

    home = sim.url.removeprefix("http://")
    assert {answer.replica for answer in answers} == {home}
    assert [answer.placement for answer in answers].count("moved-unroutable") in (1, 2), "a request may move twice"
    assert {talk(patient).say("More", session=f"s{number}").placement for number in range(6)} == {"affinity"}
    assert patient.health()["routed"] == 12
    assert statuses.count(502) == 2
    assert set(statuses[2:]) == {200}
    for router in (patient, strict):
        assert len(router.wait_logs(2, "exchange failed")) == 2
