"""The ten-second view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.terminal.conftest import WALL, FakeRouter, row

from pypto_serving_router.core.slot import Cause
from pypto_serving_router.errors import RouterRefused
from pypto_serving_router.terminal import overview
from pypto_serving_router.terminal.overview import ATTENTION, DOWN, WELL, Overview
from pypto_serving_router.terminal.render import Painter

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client

PLAIN = Painter(coloured=False)
RESERVED = {"slot": "node-d1", "reason": "stop-unconfirmed", "since": "2023-11-14T22:12:20.000Z"}


def seen(router: FakeRouter) -> Overview:
    return overview.look(cast("Client", router))


@pytest.mark.parametrize(
    ("phases", "capacity", "status"),
    [
        (["ready"], {}, WELL),
        (["ready", "starting", "draining"], {}, WELL),
        (["ready", "failed"], {}, ATTENTION),
        (["ready"], {"unconfirmed": [RESERVED]}, ATTENTION),
        (["ready"], {"abandoned": [RESERVED]}, ATTENTION),
        (["starting"], {}, DOWN),
        (["failed", "draining"], {"unconfirmed": [RESERVED]}, DOWN),
        ([], {}, DOWN),
    ],
)
def test_how_the_fleet_is(phases: list[str], capacity: dict[str, Any], status: int) -> None:
    """Well, in need of somebody, or down: by what the router says (spec 9)."""
    router = FakeRouter(*(row(f"r{n}", phase=phase) for n, phase in enumerate(phases)))
    router.capacity |= capacity

    assert seen(router).status == status


def test_statuses_have_one_meaning() -> None:
    """1 is for a router that can't be asked and 2 for wrong usage, as everywhere (spec 1.4)."""
    assert len({WELL, ATTENTION, DOWN, 1, 2}) == 5


def test_without_the_token() -> None:
    """Without a token, what anybody may see is shown, and that there is more; a wrong one is an error (spec 6.6)."""
    router = FakeRouter(row("node0", outstanding=2))
    router.errors["fleet"] = RouterRefused(401, "unauthorized", "the token is needed")
    router.has_token = False

    view = seen(router)

    assert (view.fleet, view.outstanding, view.status) == (None, 2, WELL)
    assert overview.replicas(view, PLAIN, WALL) == [
        "REPLICA  PHASE  OUTSTANDING  URL",
        "node0    ready            2  http://node0:8001",
    ]
    assert "PYPTO_ROUTER_ADMIN_TOKEN" in overview.slots(view, PLAIN, WALL)[0]
    router.has_token = True
    with pytest.raises(RouterRefused):
        seen(router)


def test_the_head() -> None:
    """The first lines sum up what there is (spec 9)."""
    router = FakeRouter(row("a", outstanding=1), row("b", phase="failed", outstanding=2))

    assert overview.head(seen(router), PLAIN) == [
        "needs attention: 1 of 2 replicas routable",
        "3 requests in flight, 14 sessions, 512 routed, 97 % by affinity",
    ]
    router.counters |= {"routed": 0, "rejected": 7}
    assert overview.head(seen(router), PLAIN, rate=0.25)[1] == (
        "3 requests in flight, 14 sessions, 0 routed (0.2/s), 7 rejected"
    )


def test_the_replicas() -> None:
    """Each replica is a line; an error that it has got over is not shown (spec 9)."""
    router = FakeRouter(
        row("a", outstanding=1, last_error="timed out"),
        row("b", phase="failed", ready=False, last_error="connection\nrefused", since="2023-11-14T21:13:20.000Z"),
    )

    assert overview.replicas(seen(router), PLAIN, WALL, {"a": 1.25}) == [
        "REPLICA  PHASE   FOR   OUTSTANDING  SESSIONS  ROUTED  PER S  URL            LAST ERROR",
        "a        ready   20 s            1         0       0    1.2  http://a:8001",
        "b        failed  1 h             0         0       0         http://b:8001  connection | refused",
    ]
    assert overview.replicas(seen(FakeRouter()), PLAIN, WALL) == ["no replicas"]


def test_slots_that_need_somebody() -> None:
    """Each says for how long, why, and what to do (spec 6.2, 9)."""
    router = FakeRouter(row())
    router.capacity |= {
        "unconfirmed": [RESERVED],
        "abandoned": [{**RESERVED, "slot": "node-d2", "reason": "lost 3 replicas in a row"}],
        "cooling": [
            {**RESERVED, "slot": "node-d4", "reason": "lost its replica", "until": "2023-11-14T22:13:27.000Z"},
        ],
        "free_slots": ["node-d2", "node-d3", "node-d4"],
        "last_errors": {"node-d2": "exit status 1", "node-d3": "exit status 2:\nno such model", "node-d4": "lost"},
    }

    assert overview.slots(seen(router), PLAIN, WALL) == [
        "unconfirmed node-d1 for 1 min, stop-unconfirmed",
        "  see what still runs on its host, then `retire node-d1` tries the stop again",
        "abandoned node-d2 for 1 min, lost 3 replicas in a row: exit status 1",
        "  see `logs node-d2`; once that is mended, `launch --slot node-d2`",
        "cooling node-d4 for 1 min, lost its replica: lost",
        "  launched again in 7 s; `retire node-d4` cancels that",
        "free node-d3, after a failure: exit status 2: | no such model",
        "slots: 1 held, at most 2; free: node-d2, node-d3, node-d4",
    ]


def test_every_reason_has_its_remedy() -> None:
    """Whatever keeps a slot reserved, it is said what to do about it (spec 6.2)."""
    reasons = {Cause.STOP_UNCONFIRMED, Cause.UNREACHABLE_AT_STARTUP, Cause.ADDRESS_IN_USE, Cause.UNDECLARED}

    assert set(overview._REMEDIES) == reasons


def test_a_router_without_slots() -> None:
    """Where nothing can be launched, nothing is said of it (spec 2.1)."""
    router = FakeRouter(row(owned=False, slot=None))
    router.capacity |= {"ceiling": 0, "owned": 0, "free_slots": []}

    assert overview.slots(seen(router), PLAIN, WALL) == []
