"""`explain` as far as it goes without a router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.terminal.conftest import Desk, FakeRouter

from pypto_serving_router.core.decisions import Why
from pypto_serving_router.terminal import explain

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client

AT = "2023-11-14T22:13:08.000Z"
PINNED = {"replica": "node1", "outstanding": 0, "last_activity": AT, "expires": "2023-11-14T22:23:08.000Z"}


def load(replica: str, outstanding: int, sessions: int, *, routable: bool = True) -> dict[str, Any]:
    return {"replica": replica, "routable": routable, "outstanding": outstanding, "sessions": sessions}


def decision(**changes: Any) -> dict[str, Any]:
    return {
        "digest": "aabbccddeeff",
        "at": AT,
        "replica": "node1",
        "placement": "new",
        "why": "first",
        "left": None,
        "trouble": None,
        "stayed": 3,
        "ended": None,
        "replicas": 2,
        "loads": [load("node1", 0, 4), load("node0", 12, 5)],
    } | changes


def said(desk: Desk, told: dict[str, Any], session: str | None = "tale") -> list[str]:
    router = FakeRouter()
    router.told = {"slack": 8, "digest": "aabbccddeeff", **told}
    assert explain.run(desk.console, cast("Client", router), session=session, last=20) == 0
    assert router.asked == [("decisions", session, 20)]
    return desk.out.lines


def test_a_story(desk: Desk) -> None:
    """A conversation's story: where it is, and each choice with its reason and what else there was (spec 9)."""
    moved = decision(
        placement="moved-slack", why="slack", left="node0", ended=None, stayed=1, replicas=1000,
    )  # fmt: skip
    first = decision(replica="node0", ended="slack", loads=[load("node0", 0, 0), load("node1", 0, 0, routable=False)])

    lines = said(desk, {"pinned": PINNED, "decisions": [first, moved]})

    when = lines[3].partition("  ")[0]
    assert lines == [
        "session tale, in the log aabbccddeeff",
        "pinned to node1, last used 12 s ago; the pin expires in 9 min 48 s of inactivity",
        "",
        f"{when}  placed on node0: the first that is remembered of this session",
        "    REPLICA  OUTSTANDING  SESSIONS",
        "    node0              0         0  chosen",
        "    node1              0         0  not routable",
        "    3 more requests stayed there; then it moved",
        "",
        f"{when}  moved to node1: node0 had 12 more requests in flight than the least loaded, and 8 more are allowed",
        "    REPLICA  OUTSTANDING  SESSIONS",
        "    node1              0         4  chosen",
        "    node0             12         5  left",
        "    and 998 more",
        "    1 more request stayed there",
    ]


@pytest.mark.parametrize(
    ("pinned", "line"),
    [
        (None, "pinned nowhere: its next request goes to the least loaded replica"),
        ({**PINNED, "outstanding": 2, "expires": None}, "pinned to node1, 2 requests in flight"),
    ],
)
def test_where_it_is(desk: Desk, pinned: dict[str, Any] | None, line: str) -> None:
    """A conversation may have no pin, or one that is in use (spec 3.6, 9)."""
    assert said(desk, {"pinned": pinned, "decisions": [decision()]})[1] == line


def test_a_pin_whose_choice_is_forgotten(desk: Desk) -> None:
    """A conversation may be pinned longer than its choice is remembered (spec 9)."""
    lines = said(desk, {"pinned": PINNED, "decisions": []})

    assert lines[-1] == "how it came there is not remembered any more"


def test_the_last_choices_of_all(desk: Desk) -> None:
    """Without a session there is a line for each choice (spec 9)."""
    lost = decision(placement="moved-unroutable", why="unroutable", left="node0", trouble="connection\nrefused")

    lines = said(desk, {"decisions": [decision(), lost]}, session=None)

    assert lines[0].split() == ["WHEN", "SESSION", "REPLICA", "PLACEMENT", "WHY"]
    assert lines[2].endswith("node1    moved-unroutable  node0 was not routable: connection | refused")
    assert len(lines) == 3


def test_nothing_yet(desk: Desk) -> None:
    """A router that has placed nothing says so (spec 9)."""
    assert said(desk, {"decisions": []}, session=None) == ["nothing has been placed yet"]


@pytest.mark.parametrize("why", [*Why])
def test_every_reason_has_words(desk: Desk, why: Why) -> None:
    """Whatever the reason for a choice or the end of a stay, there are words for it (spec 9)."""
    left = "node0" if why in (Why.SLACK, Why.UNROUTABLE, Why.REFUSED) else None
    ended = None if why is Why.FIRST else why.value

    lines = said(desk, {"pinned": None, "decisions": [decision(why=why.value, left=left, ended=ended)]})

    assert "None" not in "".join(lines)
    assert ("; then" in lines[-1]) is (ended is not None)
