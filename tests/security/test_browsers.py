"""What a page of another site can make a browser inside the trusted network send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.fleet import sim_host
from tests.support.owned import slot_processes

if TYPE_CHECKING:
    from tests.support.harness import Harness

EVIL = {"Origin": "https://evil.example"}


def test_another_sites_page_changes_nothing_and_learns_nothing(harness: Harness) -> None:
    """Forms, scripts and images of other sites get 403 from /replicas; no answer lets one read it (spec 6.6)."""
    router = harness.start_router({"hosts": [sim_host([0])]}, "--initial-replicas", "1")
    router.wait_ready(1)
    launched = slot_processes(harness.folder / "logs")
    assert list(launched) == ["node-d0"]
    form = {"Content-Type": "text/plain"}  # what a form can send without being asked

    for fields in (
        EVIL,
        {**EVIL, **form},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", **form},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{router.port + 1}"},
        {**EVIL, "Sec-Fetch-Site": "same-origin"},
    ):
        for method, path in (("POST", "/replicas"), ("DELETE", "/replicas/node-d0"), ("GET", "/replicas")):
            answer = router.request(method, path, headers=fields)
            assert answer.status == 403
            assert answer.header("Access-Control-Allow-Origin") is None
    preflight = router.request("OPTIONS", "/replicas", headers={**EVIL, "Access-Control-Request-Method": "DELETE"})
    assert preflight.status == 403
    assert slot_processes(harness.folder / "logs") == launched
    assert router.health()["replicas_ready"] == 1


def test_the_page_runs_nothing_of_others(harness: Harness) -> None:
    """The dashboard may run its own scripts alone, in no frame, and is no other type than it says (spec 6.7)."""
    router = harness.start_router({"hosts": [sim_host([0])]}, "--initial-replicas", "0")
    page = router.request("GET", "/")

    policy = page.header("Content-Security-Policy") or ""
    assert "default-src 'self'" in policy or "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-eval" not in policy
    for path in ("/", "/health", "/metrics", "/replicas"):
        assert router.request("GET", path).header("X-Content-Type-Options") == "nosniff"
