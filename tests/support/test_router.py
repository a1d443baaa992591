"""The harness with the installed router: its contract holds on both sides."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.support.client import chat
from tests.support.fleet import sim_host
from tests.support.sim import answer_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.harness import Harness
    from tests.support.router import Router
    from tests.support.sim import Sim
    from tests.support.upstream import RawUpstream


def test_routes_to_static_replicas(
    start_sim: Callable[..., Sim],
    start_upstream: Callable[..., RawUpstream],
    start_router: Callable[..., Router],
) -> None:
    """A router started by the harness routes to a simulated replica and to a byte-exact upstream (spec 1.1)."""
    sim, upstream = start_sim(), start_upstream()
    router = start_router([sim, upstream])
    body = chat("Hello")

    answers = [router.request("POST", "/v1/chat/completions", body=body) for _ in range(2)]

    assert {answer.status for answer in answers} == {200}
    assert answer_to(body) in [a.json()["choices"][0]["message"]["content"] for a in answers if a.body != b"ok"]
    assert upstream.wait_requests(1)[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert router.wait_ready(2)["replicas_total"] == 2
    assert [replica["owned"] for replica in router.replicas()["replicas"]] == [False, False]
    assert router.stop() == 0


def test_launches_simulated_replicas(harness: Harness) -> None:
    """A router started by the harness launches simulated replicas on free ports, and leaves none (spec 7.11)."""
    router = harness.start_router({"hosts": [sim_host([0, 1])]}, "--initial-replicas", "2")

    router.wait_ready(2)

    assert len(harness.launched()) >= 2
    router.signal(signal.SIGTERM)
    assert router.wait() == 0
    assert harness.launched() == {}
