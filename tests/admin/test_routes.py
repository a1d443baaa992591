"""The router's own paths."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.admin.routes import split_target
from pypto_serving_router.core.slot import Cause, SlotState
from pypto_serving_router.errors import LaunchFailed, PoolFull, SlotBusy, TransportError, UnknownSlot
from pypto_serving_router.fleet.controller import RetireResult

if TYPE_CHECKING:
    from tests.admin.conftest import Router


def assert_error(body: Any, code: str) -> None:
    """An error body that OpenAI's clients and pypto-serving's read (spec 4.7)."""
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code
    assert body["object"] == "error"
    assert body["message"] == body["error"]["message"]
    assert body["message"]


# --- paths and methods -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        "/nothing", "//replicas", "/health/", "/x/../replicas", "/./health", "/%2Fhealth", "/HEALTH", "*", "/%",
        "/health%00", "/replicas/a/b/c", "/replicas/", "/replicas/../health", "/replicas/a/log/", "/dashboard.js/",
        "/..%2fdashboard%2findex.html", "/metrics%2f..%2freplicas", "/%ff",
    ],
)  # fmt: skip
def test_unknown_paths(router: Router, target: str) -> None:
    """A path that is not exactly one of the router's own is 404, whatever it might be taken for (spec 4.7)."""
    status, body = router.json("OPTIONS" if target == "*" else "GET", target)

    assert status == 404
    assert_error(body, "not_found")
    assert router.fleet.asked == []


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/replicas", "GET, HEAD, POST"),
        ("GET", "/replicas/a", "DELETE"),
        ("HEAD", "/replicas/a", "DELETE"),
        ("POST", "/replicas/a/log", "GET, HEAD"),
        ("POST", "/replicas/decisions", "GET, HEAD, DELETE"),
        ("PUT", "/", "GET, HEAD"),
        ("OPTIONS", "/metrics", "GET, HEAD"),
    ],
)
def test_methods(router: Router, method: str, target: str, allow: str) -> None:
    """A method that a path does not have is 405, with those it has (spec 4.7)."""
    answer = router.call(method, target)

    assert answer.status == 405
    assert answer.headers["Allow"] == allow
    assert_error(json.loads(answer.body), "method_not_allowed")


@pytest.mark.parametrize("target", ["/", "/health", "/metrics", "/replicas", "/replicas/node1-d0/log"])
def test_head(router: Router, target: str) -> None:
    """HEAD is answered as GET is (spec 4.8, H12)."""
    router.add("node1-d0", owned=True)

    assert router.call("HEAD", target).status == router.call("GET", target).status == 200


def test_names_are_decoded_once(router: Router) -> None:
    """A name in a path is percent-decoded, once, and stays one segment (spec 6.6)."""
    router.call("DELETE", "/replicas/node1%2Dd0")
    router.call("DELETE", "/replicas/a%2Fb")
    router.call("DELETE", "/replicas/%252e")
    router.call("DELETE", "/replicas/%2e%2e")

    assert [call[1] for call in router.fleet.asked] == ["node1-d0", "a/b", "%2e", ".."]


@given(st.binary(max_size=40))
def test_split_target(path: bytes) -> None:
    """Whatever a path is, it splits at its slashes alone, and nothing is decoded twice."""
    quoted = b"/" + b"".join(b"%%%02x" % byte if byte != 0x2F else b"/" for byte in path)

    assert split_target(quoted) == (path.split(b"/"), {})


def test_caching_and_sniffing(router: Router) -> None:
    """No answer of the router's own is kept or taken for something else by a browser (spec 6.7)."""
    router.fleet.text = b"<script>alert(1)</script>"
    for target in ("/health", "/replicas", "/metrics", "/nothing", "/replicas/node1-d0/log"):
        headers = router.call("GET", target).headers

        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


# --- what anybody may see --------------------------------------------------------------------


def test_health(router: Router) -> None:
    """`/health` is 200 while a replica is routable, else 503 (spec 6.1)."""
    assert router.json("GET", "/health")[0] == 503
    replica = router.add("node0")

    status, body = router.json("GET", "/health?probe=1")

    assert status == 200
    assert list(body) == [
        "status", "replicas_ready", "replicas_total", "replicas_failed", "sessions", "routed", "affinity_hits",
        "rejected", "replicas",
    ]  # fmt: skip
    router.balancer.drain(replica, 1.0)
    assert router.json("GET", "/health")[0] == 503


def test_metrics(router: Router) -> None:
    """`/metrics` is Prometheus' text format (spec 6.7)."""
    answer = router.call("GET", "/metrics")

    assert (answer.body.decode().split("process_cpu")[0], answer.content_type) == (
        router.metrics.render()[0].decode().split("process_cpu")[0],
        router.metrics.render()[1],
    )
    assert b"pypto_router_routed_total 0\n" in answer.body


# --- the fleet -------------------------------------------------------------------------------


def test_list(router: Router) -> None:
    """`/replicas` is the rows and the capacity, and nothing else unless asked for (spec 6.2)."""
    router.add("node0")
    router.recent.note({"event": "replica is ready", "replica": "node0"})

    status, body = router.json("GET", "/replicas")

    assert status == 200
    assert list(body) == ["replicas", "capacity"]
    assert [row["name"] for row in body["replicas"]] == ["node0"]
    assert router.json("GET", "/replicas?events=5")[1]["events"] == [
        {"number": 1, "event": "replica is ready", "replica": "node0"}
    ]


@pytest.mark.parametrize("events", ["-1", "257", "x", "", "1&events=2"])
def test_events_bounds(router: Router, events: str) -> None:
    """How many events are wanted is a number within bounds (spec 6.2)."""
    status, body = router.json("GET", f"/replicas?events={events}")

    assert status == 400
    assert_error(body, "invalid_query")


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (b"", (None, None)),
        (b" \r\n", (None, None)),
        (b"{}", (None, None)),
        (b'{"slot": "node1-d0"}', ("node1-d0", None)),
        (b'{"host": "node1"}', (None, "node1")),
        (b'{"host": "node1", "slot": null}', (None, "node1")),
    ],
)
def test_launch(router: Router, body: bytes, asked: tuple[str | None, str | None]) -> None:
    """`POST /replicas` launches where it is asked to, and answers 202 with the new row (spec 6.3)."""
    router.add("node1-d0", owned=True, ready=False)

    status, row = router.json("POST", "/replicas", body)

    assert status == 202
    assert router.fleet.asked == [("launch", *asked)]
    assert (row["name"], row["slot"], row["phase"], row["ready"]) == ("node1-d0", "node1-d0", "starting", False)


@pytest.mark.parametrize(
    "body",
    [
        b"node1", b"[]", b"null", b'"node1"', b"{", b'{"slot": 1}', b'{"hosts": "node1"}', b'{"slot": ["a"]}',
        b'{"slot": "a", "slot": "b"}', b'{"slot": "\\ud800"}',
        b'{"slot": "a", "host": "b"}', b"\xff", b'{"slot": "\xff"}', b"[" * 60_000, b'{"x": ' + b"[" * 60_000, b"{} {}",
    ],
)  # fmt: skip
def test_launch_body(router: Router, body: bytes) -> None:
    """A body that is not what it may be is 400, says why, and launches nothing (spec 6.3)."""
    status, answer = router.json("POST", "/replicas", body)

    assert status == 400
    assert_error(answer, "invalid_body")
    assert router.fleet.asked == []


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"slot": 1}', "slot: found 1; allowed is text that is not empty"),
        (b"[]", "found an array; allowed is an object"),
        (b'{"slots": "a"}', "slots: is not a known key; did you mean `slot`?"),
        (
            b'{"a": 1, "host": ""}',
            'a: is not a known key; known are `slot`, `host`; host: found ""; allowed is text that is not empty',
        ),
        (b"{", "body:1:2: is not JSON: Expecting property name enclosed in double quotes"),
    ],
)
def test_launch_body_in_words(router: Router, body: bytes, told: str) -> None:
    """What is wrong with the body is said as it is of a fleet file (spec 6.3, 1.5)."""
    _, answer = router.json("POST", "/replicas", body)

    assert answer["error"]["message"] == f'the body is not {{"slot": NAME}} or {{"host": NAME}}: {told}'


def test_launch_body_that_goes_on(router: Router) -> None:
    """A body of thousands of mistakes is refused as a whole (spec 6.3, 4.10)."""
    _, answer = router.json("POST", "/replicas", json.dumps(dict.fromkeys(map(str, range(5000)), 0)).encode())

    assert answer["error"]["message"] == "the body is longer than it takes to name a slot or a host"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (PoolFull("no slot is free"), 409, "pool_full"),
        (SlotBusy("node1-d0 is not free: ready"), 409, "slot_busy"),
        (UnknownSlot("there is no slot x"), 404, "unknown_slot"),
        (LaunchFailed("node1-d0", "exit status 1: no such model"), 502, "launch_failed"),
    ],
)
def test_launch_refused(router: Router, error: Any, status: int, code: str) -> None:
    """A launch that cannot be is 404, 409 with the capacity, or 502 with the launch error (spec 6.3)."""
    router.fleet.error = error

    given, body = router.json("POST", "/replicas")

    assert given == status
    assert_error(body, code)
    assert body["message"] == str(error)
    if status == 409:
        assert body["capacity"]["free_slots"] == ["node1-d3", "node1-d4"]


def test_launch_gone_at_once(router: Router) -> None:
    """A launch whose replica was gone before it could be shown is a failed one (spec 6.3)."""
    status, body = router.json("POST", "/replicas")

    assert status == 502
    assert_error(body, "launch_failed")
    assert body["slot"] == "node1-d0"


def test_retire(router: Router) -> None:
    """`DELETE` answers 200 once the stop is confirmed (spec 6.4)."""
    router.add("node1-d0", owned=True)

    assert router.json("DELETE", "/replicas/node1-d0") == (200, {"name": "node1-d0", "status": "retired"})
    assert router.fleet.asked == [("retire", "node1-d0", False)]


def test_retire_a_slot_without_replica(router: Router) -> None:
    """`DELETE` reaches a slot that has no replica: cooling, unconfirmed or launching ones (spec 6.4)."""
    router.json("DELETE", "/replicas/node1-d1?force=true")
    router.json("DELETE", "/replicas/node1-d1?force=false")

    assert router.fleet.asked == [("retire", "node1-d1", True), ("retire", "node1-d1", False)]


@pytest.mark.parametrize("force", ["yes", "1", "", "TRUE", "true&force=false", "true&force=true"])
def test_force_is_exact(router: Router, force: str) -> None:
    """What frees devices on an operator's word is spelled out (spec 6.4)."""
    status, body = router.json("DELETE", f"/replicas/node1-d1?force={force}")

    assert status == 400
    assert_error(body, "invalid_query")
    assert router.fleet.asked == []


def test_retire_refused(router: Router) -> None:
    """`DELETE` is 404 for what is unknown and 409 for what the router did not launch (spec 6.4, 7.14)."""
    router.add("node0")
    status, body = router.json("DELETE", "/replicas/node0")
    assert status == 409
    assert_error(body, "not_owned")
    assert router.fleet.asked == []

    router.fleet.error = UnknownSlot("there is no slot x")
    status, body = router.json("DELETE", "/replicas/x")
    assert status == 404
    assert_error(body, "unknown_replica")


def test_retire_unconfirmed(router: Router) -> None:
    """A stop that is not confirmed is 500 and says which slot stays reserved, and why (spec 6.4)."""
    slot = replace(
        router.fleet.launched, state=SlotState.UNCONFIRMED, cause=Cause.STOP_UNCONFIRMED, last_error="still answers"
    )
    router.fleet.retired = RetireResult(slot, confirmed=False)

    status, body = router.json("DELETE", "/replicas/node1-d0")

    assert status == 500
    assert_error(body, "stop_unconfirmed")
    assert (body["slot"], body["reason"]) == ("node1-d0", "stop-unconfirmed")
    assert "still answers" in body["message"]


@pytest.mark.parametrize(("query", "lines"), [("", 100), ("?lines=1", 1), ("?lines=10000", 10_000), ("?x=1", 100)])
def test_log(router: Router, query: str, lines: int) -> None:
    """The end of a startup log comes as it was written, for slots without a replica, too (spec 6.5)."""
    router.fleet.text = b"a \xff\x1b[31m byte\n"

    answer = router.call("GET", f"/replicas/node1-d2/log{query}")

    assert (answer.status, answer.content_type) == (200, "text/plain; charset=utf-8")
    assert answer.body == router.fleet.text
    assert router.fleet.asked == [("log", "node1-d2", lines)]


@pytest.mark.parametrize("lines", ["0", "10001", "-5", "1e3", "²", "", "9" * 5000])
def test_log_lines(router: Router, lines: str) -> None:
    """How many lines is a number from 1 to 10,000 (spec 6.5)."""
    status, body = router.json("GET", f"/replicas/node1-d2/log?lines={''.join(f'%{b:02x}' for b in lines.encode())}")

    assert status == 400
    assert_error(body, "invalid_query")


def test_log_refused(router: Router) -> None:
    """A log is 404 for unknown slots, 409 for static replicas, 502 where the host can't be asked (spec 6.5)."""
    router.add("node0")
    assert router.json("GET", "/replicas/node0/log")[0] == 409
    router.fleet.error = UnknownSlot("no slot is called x")
    assert router.json("GET", "/replicas/x/log")[0] == 404
    router.fleet.error = TransportError("ssh: connection timed out")

    status, body = router.json("GET", "/replicas/node1-d0/log")

    assert status == 502
    assert_error(body, "host_unreachable")


# --- the token -------------------------------------------------------------------------------

GUARDED = [
    ("GET", "/replicas"), ("POST", "/replicas"), ("DELETE", "/replicas/x"), ("GET", "/replicas/x/log"),
    ("GET", "/%72eplicas"), ("GET", "/replica%73/x/log"), ("PUT", "/replicas"), ("GET", "/replicas/"),
    ("GET", "/replicas/../health"), ("GET", "/replicas/%2e%2e"), ("GET", "/replicas?x"), ("OPTIONS", "/replicas"),
    ("GET", "/replicas/decisions"), ("GET", "/replicas/%64ecisions?session=s"),
    ("GET", "http://router:8000/replicas"), ("GET", "/replicas/no/such/thing"), ("HEAD", "/replicas"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "target"), GUARDED)
@pytest.mark.parametrize(
    "authorization",
    ["", "s3cret", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "Bearer S3CRET"],
)
def test_token_is_needed(guarded: Router, method: str, target: str, authorization: str) -> None:
    """Everything whose first decoded segment is `replicas` wants the token, however it is spelled (spec 6.6)."""
    fields: dict[str, Any] = {"authorization": authorization} if authorization else {}

    answer = guarded.call(method, target, **fields)

    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer ")
    assert_error(json.loads(answer.body), "unauthorized")
    assert guarded.fleet.asked == []


@pytest.mark.parametrize("authorization", ["Bearer s3cret", "bearer s3cret", "BEARER   s3cret"])
def test_token_is_enough(guarded: Router, authorization: str) -> None:
    """With the token everything is as without one (spec 6.6)."""
    assert guarded.call("GET", "/replicas", authorization=authorization).status == 200
    assert guarded.call("DELETE", "/replicas/x", authorization=authorization).status == 200
    assert guarded.call("GET", "/replicas/x/y", authorization=authorization).status == 404


@pytest.mark.parametrize("target", ["/health", "/metrics", "/"])
def test_open_paths(guarded: Router, target: str) -> None:
    """Health, metrics and the page need no token (spec 6.6)."""
    assert guarded.call("GET", target).status in (200, 503)


def test_refusals_are_logged_once(guarded: Router) -> None:
    """Somebody who tries tokens is noticed, and cannot flood the log; the token itself is never logged (spec 6.6)."""
    for _ in range(50):
        guarded.call("GET", "/replicas?token=s3cret", authorization="Bearer guess")
    guarded.time += 61
    guarded.call("GET", "/replicas", authorization="Bearer guess")

    assert [(w["status"], w["suppressed"]) for w in guarded.log.warnings] == [(401, 0), (401, 49)]
    assert "s3cret" not in str(guarded.log.warnings)
    assert "guess" not in str(guarded.log.warnings)


def test_cross_site(router: Router, guarded: Router) -> None:
    """Another site's page gets 403, token or not, for reading as well (spec 6.6)."""
    for method, target in (("GET", "/replicas"), ("POST", "/replicas"), ("DELETE", "/replicas/x")):
        for asked in (router, guarded):
            answer = asked.call(method, target, sec_fetch_site="cross-site", authorization="Bearer s3cret")

            assert answer.status == 403
            assert_error(json.loads(answer.body), "cross_site")
    assert router.fleet.asked == guarded.fleet.asked == []
