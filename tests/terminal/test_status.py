"""`status` as far as it goes without a router."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.terminal.conftest import Desk, FakeRouter, row

from pypto_serving_router.errors import RouterRefused, RouterUnreachable
from pypto_serving_router.terminal import status

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client


def run(desk: Desk, router: FakeRouter, **given: Any) -> int:
    return status.run(desk.console, cast("Client", router), **({"as_json": False} | given))


def test_a_table(desk: Desk) -> None:
    """One look, one table, and how the fleet is as the status (spec 9)."""
    assert run(desk, FakeRouter(row("a"), row("b", phase="failed"))) == 3

    assert desk.out.lines[0] == "http://router:8000 needs attention: 1 of 2 replicas routable"
    assert [line.split()[0] for line in desk.out.lines if line][2:] == ["REPLICA", "a", "b", "slots:"]
    assert desk.err.lines == []


@pytest.mark.parametrize("locked", [True, False])
def test_json(desk: Desk, locked: bool) -> None:
    """`--json` is what the router says, whole, and nothing else; the fleet is null where it wants a token (spec 9)."""
    router = FakeRouter(row("a", phase="starting", ready=False))
    health, fleet = router.health(), router.fleet()
    router.has_token = not locked
    if locked:
        router.errors["fleet"] = RouterRefused(401, "unauthorized", "no")

    assert run(desk, router, as_json=True) == 4

    assert json.loads(desk.out.getvalue()) == {
        "url": "http://router:8000", "health": health, "fleet": None if locked else fleet,
    }  # fmt: skip


def test_unreachable(desk: Desk) -> None:
    """A router that can't be asked is an error, and nothing is shown (spec 1.5)."""
    router = FakeRouter()
    router.errors["health"] = RouterUnreachable("http://router:8000: can't be asked")

    with pytest.raises(RouterUnreachable):
        run(desk, router)

    assert desk.out.lines == []
