"""`GET /replicas/decisions`: why conversations are where they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pypto_serving_router.telemetry.access import short_hash

if TYPE_CHECKING:
    from tests.admin.conftest import Router


def turn(router: Router, session: str) -> None:
    router.time += 1
    router.routing.finish(router.routing.place(session, router.time), router.time)


def test_decisions_of_a_session(router: Router) -> None:
    """With a session it is told where that is, how it got there, and what else there was (spec 9)."""
    node0, _ = router.add("node0"), router.add("node1")
    turn(router, "a:b")
    turn(router, "a:b")
    router.balancer.set_ready(node0, False, router.time, error="connection refused")
    turn(router, "a:b")

    status, body = router.json("GET", "/replicas/decisions?session=a%3Ab")

    assert status == 200
    assert body == {
        "session": "a:b",
        "digest": short_hash("a:b"),
        "pinned": {
            "replica": "node1",
            "outstanding": 0,
            "last_activity": "2023-11-14T22:13:23.000Z",
            "expires": "2023-11-14T22:23:23.000Z",
        },
        "slack": 8,
        "decisions": [
            {
                "digest": short_hash("a:b"),
                "at": "2023-11-14T22:13:21.000Z",
                "replica": "node0",
                "placement": "new",
                "why": "first",
                "left": None,
                "trouble": None,
                "stayed": 1,
                "ended": "unroutable",
                "replicas": 2,
                "loads": [
                    {"replica": "node0", "routable": True, "outstanding": 0, "sessions": 0},
                    {"replica": "node1", "routable": True, "outstanding": 0, "sessions": 0},
                ],
            },
            {
                "digest": short_hash("a:b"),
                "at": "2023-11-14T22:13:23.000Z",
                "replica": "node1",
                "placement": "moved-unroutable",
                "why": "unroutable",
                "left": "node0",
                "trouble": "connection refused",
                "stayed": 0,
                "ended": None,
                "replicas": 2,
                "loads": [
                    {"replica": "node1", "routable": True, "outstanding": 0, "sessions": 0},
                    {"replica": "node0", "routable": False, "outstanding": 0, "sessions": 1},
                ],
            },
        ],
    }


def test_decisions_after_the_pin(router: Router) -> None:
    """A conversation whose pin is over is still explained; one that never came is 404 (spec 9)."""
    router.add("node0")
    turn(router, "s")
    router.time += 601

    body = router.json("GET", "/replicas/decisions?session=s")[1]
    assert body["pinned"] is None
    assert [decision["ended"] for decision in body["decisions"]] == ["expired"]

    status, body = router.json("GET", "/replicas/decisions?session=t")
    assert status == 404
    assert body["error"]["code"] == "unknown_session"


def test_a_pin_in_use_expires_at_no_time(router: Router) -> None:
    """While a request is in flight there is no moment at which the pin expires (spec 3.6)."""
    router.add("node0")
    router.routing.place("s", router.time)

    pinned = router.json("GET", "/replicas/decisions?session=s")[1]["pinned"]

    assert (pinned["outstanding"], pinned["expires"]) == (1, None)


def test_the_last_decisions(router: Router) -> None:
    """Without a session the last choices are told, of sessions that are named as in the log (spec 9)."""
    router.add("node0")
    for n in range(30):
        turn(router, f"s{n}")

    body = router.json("GET", "/replicas/decisions")[1]
    assert list(body) == ["slack", "decisions"]
    assert [decision["digest"] for decision in body["decisions"]] == [short_hash(f"s{n}") for n in range(10, 30)]
    assert '"s29"' not in json.dumps(body)
    assert len(router.json("GET", "/replicas/decisions?last=3")[1]["decisions"]) == 3


@pytest.mark.parametrize("query", ["session=", "session=a&session=b", "last=0", "last=101", "last=x", "last="])
def test_decisions_query(router: Router, query: str) -> None:
    """What is asked of the decisions is exact (spec 9)."""
    status, body = router.json("GET", f"/replicas/decisions?{query}")

    assert status == 400
    assert body["error"]["code"] == "invalid_query"


def test_a_replica_that_is_called_decisions(router: Router) -> None:
    """A replica may be called as a path is: what is done to a replica is done to that one (spec 2.6, 6.4)."""
    router.add("decisions", owned=True)

    assert router.json("DELETE", "/replicas/decisions")[0] == 200
    assert router.call("GET", "/replicas/decisions/log").status == 200
    assert router.fleet.asked == [("retire", "decisions", False), ("log", "decisions", 100)]
    assert "decisions" in router.json("GET", "/replicas/decisions")[1]
