"""Session ids: where they come from, where they go, and that every answer to a POST has one."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import openai
import pytest
from tests.support.client import chat
from tests.support.ports import refusing_port
from tests.support.sim import answer_to
from tests.support.talk import CHAT, post

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import Stage
    from tests.support.router import Router
    from tests.support.sim import Sim
    from tests.support.talk import Talker
    from tests.support.upstream import RawUpstream

MINTED = re.compile(r"[0-9a-f]{32}")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_id_is_minted_and_leads_back(stage: Stage, stream: bool) -> None:
    """A first turn gets an id of 32 hex digits; sent back as a header it leads to the same replica (spec 3.1-3.3)."""
    first = stage.talker.say("Hello", stream=stream)
    second = stage.talker.say("Hello", "Hi", "More", session=first.session, stream=stream)
    other = stage.talker.say("Hello", stream=stream)

    assert MINTED.fullmatch(first.session)
    assert first.text == answer_to(chat("Hello", max_tokens=4))
    assert (second.session, second.replica, second.placement) == (first.session, first.replica, "affinity")
    assert second.text == answer_to(chat("Hello", "Hi", "More", max_tokens=4))
    assert MINTED.fullmatch(other.session)
    assert other.session != first.session


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_id_may_be_in_the_body(stage: Stage, stream: bool) -> None:
    """A top-level `session_id` is an id as good as the header's, and the header wins (spec 3.1)."""
    first = stage.talker.say("Hello", stream=stream)
    other = stage.talker.say("Hello", stream=stream)

    by_body = stage.talker.say("Hello", body_session=first.session, stream=stream)
    by_both = stage.talker.say("Hello", session=other.session, body_session=first.session, stream=stream)

    assert (by_body.session, by_body.replica, by_body.placement) == (first.session, first.replica, "affinity")
    assert (by_both.session, by_both.replica, by_both.placement) == (other.session, other.replica, "affinity")


UNUSABLE = {
    "a blank": "two words",
    "too long": "x" * 129,
    "a character outside ASCII": "sess\u00e9",
    "a slash": "a/b",
    "nothing": "",
}


@pytest.mark.parametrize("value", UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_id_is_replaced(stage: Stage, value: str) -> None:
    """What is no id is replaced by a fresh one, and never an error; as a header it still wins (spec 3.1)."""
    with stage.router.connect() as wire:
        named = f"X-Session-Id: {value}\r\nContent-Length".encode("latin-1")
        for request in (
            post(chat("Hello", session_id="usable")).replace(b"Content-Length", named),
            post(chat("Hello", session_id=value)),
        ):
            wire.send(request)
            answer = wire.read_answer("POST")

            assert answer.status == 200
            assert MINTED.fullmatch(answer.header("X-Session-Id") or "")


def test_several_different_ids_are_none(stage: Stage) -> None:
    """Two headers that differ are replaced by a fresh id; two that agree are one (spec 3.1)."""
    with stage.router.connect() as wire:
        answers = []
        for second in (b"one", b"two"):
            both = b"X-Session-Id: one\r\nX-Session-Id: %b\r\nContent-Length" % second
            wire.send(post(chat("Hello")).replace(b"Content-Length", both))
            answers.append(wire.read_answer("POST").header("X-Session-Id") or "")

    assert answers[0] == "one"
    assert MINTED.fullmatch(answers[1])


ODD_BODIES = {
    "of duplicate keys the last": (b'{"session_id": "first", "session_id": "last", "prompt": "x"}', "last"),
    "escapes": (rb'{"session_id": "\u0061b", "prompt": "x"}', "ab"),
    "a key in a value": (b'{"prompt": "\\"session_id\\": \\"no\\""}', None),
    "a nested key": (b'{"prompt": "x", "metadata": {"session_id": "no"}}', None),
    "a number": (b'{"session_id": 7, "prompt": "x"}', None),
    "null": (b'{"session_id": null, "prompt": "x"}', None),
    "the longest": (b'{"prompt": "x", "session_id": "%b"}' % (b"x" * 128), "x" * 128),
    "all characters": (b'{"prompt": "x", "session_id": "aZ0._:-"}', "aZ0._:-"),
    "not JSON": (b'{"session_id": "s1", oops', None),
    "an array": (b'[{"session_id": "s1"}]', None),
    "not even text": (b"\xff\xfe\x00", None),
    "no body": (b"", None),
}


@pytest.mark.parametrize(("body", "session"), ODD_BODIES.values(), ids=ODD_BODIES)
def test_the_body_is_read_for_the_id_and_not_touched(stage: Stage, body: bytes, session: str | None) -> None:
    """Whatever the body and its type, it reaches the replica as it is, and the replica answers (spec 3.1, 3.10)."""
    with stage.router.connect() as wire:
        wire.send(post(body, path="/v1/completions", Content_Type="text/plain"))
        answer = wire.read_answer("POST")
        wire.send(post(body, path="/v1/completions", X_Sim_Echo="1"))
        echo = json.loads(wire.read_answer("POST").body)

    named = answer.header("X-Session-Id") or ""
    assert named == session if session else MINTED.fullmatch(named)
    assert answer.status == (200 if body.startswith(b"{") and b"oops" not in body else 400)
    assert echo["body_bytes"] == len(body)


def test_only_the_clients_own_id_is_forwarded(stage: Stage) -> None:
    """The replica sees the client's header as it was received, and never a minted one (spec 3.3)."""
    with stage.router.connect() as wire:
        seen = []
        for own in ({}, {"x_SESSION_id": "mine"}, {"X_Session_Id": "not usable"}):
            wire.send(post(chat("Hello"), X_Sim_Echo="1", **own))
            fields = json.loads(wire.read_answer("POST").body)["headers"]
            seen.append([(name, value) for name, value in fields if name.lower() == "x-session-id"])

    assert seen == [[], [("x-SESSION-id", "mine")], [("X-Session-Id", "not usable")]]


def test_a_replicas_own_id_is_replaced(
    start_upstream: Callable[..., RawUpstream], start_router: Callable[..., Router]
) -> None:
    """An id that a replica sends, twice even, never reaches the client (spec 3.3)."""
    upstream = start_upstream(
        b"HTTP/1.1 200 OK\r\nX-Session-Id: theirs\r\nx-session-id: twice\r\nContent-Length: 2\r\n\r\nok"
    )
    router = start_router([upstream])

    answer = router.request("POST", CHAT, body=chat("Hello"), headers={"X-Session-Id": "mine"})

    assert [value for name, value in answer.headers if name.lower() == "x-session-id"] == ["mine"]


def test_other_methods_open_no_session(stage: Stage, talk: Callable[[Router], Talker]) -> None:
    """GETs and the like are answered without an id, and a known id leads them to its replica (spec 3.3, 4.1)."""
    models = talk(stage.router).client.models.list()
    assert [model.id for model in models] == ["qwen"]
    before = stage.router.health()
    for sim in stage.sims:
        name = sim.url.removeprefix("http://")
        session = next(turn.session for turn in iter(lambda: stage.talker.say("Hello"), None) if turn.replica == name)
        for _ in range(3):
            answer = stage.router.request("GET", "/v1/models?a=%20b", headers={"X-Session-Id": session})
            assert (answer.status, answer.header("X-Router-Replica")) == (200, name)
            assert answer.header("X-Session-Id") is None
        assert sim.state()["last_request"]["target"] == "/v1/models?a=%20b"

    unknown = stage.router.request("GET", "/v1/models", headers={"X-Session-Id": "never-seen"})
    deleted = stage.router.request("DELETE", "/v1/files/x", headers={"X-Session-Id": "never-seen"})
    after = stage.router.health()

    assert (unknown.status, deleted.status) == (200, 404)
    assert deleted.json() == {"detail": "Not Found"}, "the replica's own answer"
    posts = after["routed"] - before["routed"]
    assert after["sessions"] - before["sessions"] == posts, "each POST opened one, and nothing else did"


@pytest.mark.parametrize(("own", "stream"), [(None, True), ("mine", False)], ids=["minted, stream", "own, whole"])
def test_the_routers_errors_have_an_id(
    start_sim: Callable[..., Sim],
    start_router: Callable[..., Router],
    talk: Callable[[Router], Talker],
    own: str | None,
    stream: bool,
) -> None:
    """413, 504, 502 and 503 carry the client's id or a minted one; the official client reads them (spec 3.3, 4.7)."""
    sim = start_sim()
    options = ("--max-body-size", "2000", "--request-timeout", "2", "--health-interval", "60")
    router = start_router([sim], *options)
    talker = talk(router)
    seen = {}

    def fail(*turns: str, **faults: object) -> None:
        headers = {"X-Sim-Faults": json.dumps(faults)} if faults else None
        with pytest.raises(openai.APIStatusError) as caught:
            talker.say(*turns, session=own, stream=stream, headers=headers)
        error = caught.value
        named = error.response.headers["X-Session-Id"]
        assert named == own if own else MINTED.fullmatch(named)
        assert error.body == {**error.body, "message": error.response.json()["message"], "param": None}  # type: ignore[dict-item]
        assert error.response.json()["object"] == "error"
        seen[error.status_code] = error.code
        if error.status_code == 503:
            assert int(error.response.headers["Retry-After"]) >= 1

    fail("x" * 3000)
    fail("Hello", break_with="hang")
    sessions = router.health()["sessions"]
    sim.kill()
    fail("Hello")
    fail("Hello")

    assert seen == {413: "body_too_large", 504: "upstream_timeout", 502: "upstream_unreachable", 503: "no_replica"}
    counts = router.health()
    assert (counts["routed"], counts["rejected"]) == (2, 1)
    assert counts["sessions"] == (1 if own else sessions + 1), "who got no replica left no pin"


def test_without_any_replica_nothing_is_pinned(start_router: Callable[..., Router]) -> None:
    """Requests that find no replica leave no pin, however many come (spec 3.3, 6.1)."""
    with refusing_port() as port:
        router = start_router([f"http://127.0.0.1:{port}"])
        router.wait_ready(0)

        answers = [router.request("POST", CHAT, body=chat("Hello")) for _ in range(5)]

    assert {answer.status for answer in answers} == {503}
    health = router.health()
    assert (health["sessions"], health["routed"], health["rejected"]) == (0, 0, 5)
