"""The reference page of the router's own endpoints, against the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pypto_serving_router.admin import access, routes, views
from pypto_serving_router.admin.routes import DEFAULT_DECISIONS, DEFAULT_LINES, MAX_DECISIONS, MAX_EVENTS, MAX_LINES
from pypto_serving_router.core.decisions import Why

if TYPE_CHECKING:
    from tests.admin.conftest import Router

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "admin-api.md").read_text()


def test_fields(router: Router) -> None:
    """Every field that is shown is explained (spec 6.1, 6.2)."""
    replica = router.add("node0")
    router.routing.place("s", router.time)
    told = router.json("GET", "/replicas/decisions?session=s")[1]
    shown = {
        *views.health(router.balancer, router.routing.sessions),
        *(row := views.row(replica, (0, 0.0), str)),
        *row["first_byte"],
        *(capacity := views.capacity_left(router.fleet.capacity(), str)),
        *capacity["cooling"][0],
        *told,
        *told["pinned"],
        *told["decisions"][0],
        *told["decisions"][0]["loads"][0],
        *Why,
    }

    assert {field for field in shown if f"`{field}`" not in PAGE} == set()


def test_codes() -> None:
    """Every error is listed with its status, and none that is not there (spec 4.7)."""
    listed = set(re.findall(r"^\| (\d{3}) \| `(\w+)` \|", PAGE, re.MULTILINE))
    source = "".join(Path(str(module.__file__)).read_text() for module in (access, routes))
    raised = set(re.findall(r'(?:error|RequestError)\(\s*(\d{3}), "(\w+)"', source))
    conflicts = {("409", code) for code in re.findall(r'_conflict\("(\w+)"', source)}

    assert listed - {("413", "body_too_large")} == raised | conflicts


def test_bounds() -> None:
    """The bounds of the query's numbers are those of the code (spec 6.5)."""
    assert f"1 to {MAX_LINES:,}, {DEFAULT_LINES} by default" in PAGE
    assert f"N up to {MAX_EVENTS}" in PAGE
    assert f"1 to {MAX_DECISIONS}, {DEFAULT_DECISIONS} by default" in PAGE
