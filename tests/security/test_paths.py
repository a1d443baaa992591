"""Paths that mean the fleet, however they are spelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.support.fleet import sim_host
from tests.support.wire import Wire

from pypto_serving_router.admin.routes import split_target

if TYPE_CHECKING:
    from tests.support.harness import Harness

SPELLINGS = [
    "/replicas",
    "/replicas/",
    "/replicas/node-d0",
    "/replicas?x=1",
    "/replicas;x",
    "/%72eplicas",
    "/%72%65%70%6C%69%63%61%73",
    "/replicas%2Fnode-d0",
    "/replicas/%6eode-d0",
    "/replicas%00",
    "//replicas",
    "/./replicas",
    "/x/../replicas",
    "/%2e%2e/replicas",
    "/%2freplicas",
    "/REPLICAS",
    "/health/../replicas",
    "/%2572eplicas",
    "http://127.0.0.1/replicas",
    "http://user@127.0.0.1/replicas",
    "http:///replicas",
    "/v1/../replicas",
    "/v1/%2e%2e/replicas",
]


def test_no_spelling_gets_past_the_token(harness: Harness) -> None:
    """Whatever the path, without the token nothing is launched, stopped or shown (spec 6.6)."""
    sim = harness.start_sim()
    fleet = {"replicas": [{"name": "one", "host": "127.0.0.1", "port": sim.port}], "hosts": [sim_host([0])]}
    router = harness.start_router(fleet, "--initial-replicas", "0", "--admin-token", "t")

    seen = {}
    for spelling in SPELLINGS:
        for method in ("POST", "DELETE", "GET"):
            with Wire.connect(router.port) as wire:
                wire.send(f"{method} {spelling} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode())
                answer = wire.read_answer(method)
            seen[method, spelling] = answer.status
            assert b'"capacity"' not in answer.body, spelling
            assert answer.status in (400, 401, 404, 405), (method, spelling, answer.status)
    assert all(status == 401 for (_, spelling), status in seen.items() if spelling.startswith("/replicas/"))
    assert seen["POST", "/%72eplicas"] == 401

    # What begins with /v1/ is the replica's to understand, as it is (spec 4.2).
    last = sim.state()["last_request"]
    assert last["target"] == "/v1/%2e%2e/replicas"
    assert router.health()["replicas_total"] == 1
    assert router.log_events("slot changed") == []
    assert harness.launched() == {}


@given(st.text("/%2f2ereplicas.;?", max_size=20), st.sampled_from(["", "x", "node-d0", "%2e%2e"]))
def test_the_guard_and_the_routes_see_one_path(path: str, rest: str) -> None:
    """The first segment, decoded once, decides both whether a request is guarded and where it goes (spec 6.6)."""
    target = f"/{path}/{rest}".encode()
    segments, _ = split_target(target)

    assert all(isinstance(segment, bytes) for segment in segments)
    assert b"/".join(segments).count(b"/") >= len(segments) - 1
    if segments[0] != b"replicas":
        assert not target.startswith(b"/replicas/")


def test_names_in_paths_are_only_looked_up(harness: Harness) -> None:
    """A name in a path is compared with those there are: it names no file and goes to no host (spec 6.4, 6.5)."""
    router = harness.start_router({"hosts": [sim_host([0])]}, "--initial-replicas", "0", "--log-level", "debug")

    for name in ("..", "%2e%2e", "a%2fb", "a%00", "%0d%0aX-Injected:%201", "x" * 5000, "%ff", "%7Bslot%7D", "-v", "*"):
        for method, path in (("DELETE", f"/replicas/{name}"), ("GET", f"/replicas/{name}/log")):
            answer = router.request(method, path)
            assert answer.status == 404, answer.body
            assert answer.header("X-Injected") is None
    assert router.log_events("command run on host") == []
