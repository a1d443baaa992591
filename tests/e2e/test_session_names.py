"""Conversations named in their clients' own ways, through the installed router."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import Answer, chat

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.router import Router
    from tests.support.upstream import RawUpstream

NAMES = (
    *("--session-header", "x-session-affinity", "--session-header", "Session-Id"),
    *("--session-field", "prompt_cache_key", "--session-field", "metadata.session_id"),
)

# What a client sends, and the session it is known by. No id occurs in two of them.
CASES: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"X-Session-Affinity": "a1"}, {}, "x-session-affinity:a1"),
    ({"session-id": "a2"}, {"session_id": "b2"}, "session-id:a2"),
    ({"session-id": "a3", "x-session-affinity": "b3"}, {}, "x-session-affinity:b3"),
    ({"session-id": "a4"}, {"prompt_cache_key": "b4"}, "session-id:a4"),
    ({}, {"prompt_cache_key": "b5"}, ".prompt_cache_key:b5"),
    ({}, {"metadata": {"session_id": "b6"}}, ".metadata.session_id:b6"),
    ({}, {"session_id": "s7", "prompt_cache_key": "b7"}, "s7"),
    ({"X-Session-Id": "s8", "session-id": "a8"}, {"prompt_cache_key": "b8"}, "s8"),
    ({"session-id": "a1"}, {}, "session-id:a1"),
]


@pytest.fixture
def replicas(start_upstream: Callable[..., RawUpstream]) -> list[RawUpstream]:
    """Two replicas."""
    return [start_upstream(), start_upstream()]


@pytest.fixture
def router(start_router: Callable[..., Router], replicas: list[RawUpstream]) -> Router:
    """A router that knows names beside its own."""
    return start_router(replicas, *NAMES, "--max-body-size", "1000")


def turn(router: Router, headers: dict[str, str] | None = None, **fields: object) -> Answer:
    """Take one turn, which must succeed."""
    answer = router.request("POST", "/v1/chat/completions", headers=headers, body=chat("hi", **fields))
    assert answer.status == 200
    return answer


def placement(answer: Answer) -> tuple[str | None, str | None]:
    """Tell where a turn went, and why."""
    return answer.header("X-Router-Replica"), answer.header("X-Router-Placement")


def test_a_conversation_keeps_its_replica(router: Router) -> None:
    """The client's own name is enough, and so is the id that the answer told (spec 3.1, 3.3)."""
    for headers, fields, session in CASES:
        first = turn(router, headers, **fields)
        turn(router)  # another conversation, so that the least load would be elsewhere
        again = turn(router, headers, **fields)
        told = turn(router, {"X-Session-Id": session})

        assert {answer.header("X-Session-Id") for answer in (first, again, told)} == {session}
        assert placement(first)[1] == "new"
        assert placement(again) == placement(told) == (placement(first)[0], "affinity")


def test_a_value_that_is_no_id_keeps_its_place_too(router: Router) -> None:
    """Too long or with odd characters, it is hashed, not dropped; the answer tells a usable id (spec 3.1)."""
    for headers in ({"session-id": "x" * 500}, {"session-id": "M\xfcller, 3"}):
        first, again = turn(router, headers), turn(router, headers)

        assert placement(again) == (placement(first)[0], "affinity")
        assert re.fullmatch(r"session-id:[0-9a-f]{32}", first.header("X-Session-Id") or "")


def test_an_unusable_id_of_our_own_still_begins_a_session(router: Router) -> None:
    """`X-Session-Id` wins even where it is unusable: a fresh id takes its place, and no other name (spec 3.1)."""
    answer = turn(router, {"X-Session-Id": "two words", "session-id": "a"}, prompt_cache_key="b")

    assert re.fullmatch("[0-9a-f]{32}", answer.header("X-Session-Id") or "")


def test_refusals_and_other_methods_know_the_names(router: Router) -> None:
    """A refused request is told its session, and a GET goes to the session's replica (spec 3.3)."""
    named = {"session-id": "a"}
    home = placement(turn(router, named))[0]
    refused = router.request("POST", "/v1/completions", headers=named, body=b"x" * 1001)
    models = [router.request("GET", "/v1/models", headers=named) for _ in range(3)]

    assert (refused.status, refused.header("X-Session-Id")) == (413, "session-id:a")
    assert {placement(answer)[0] for answer in models} == {home}


def test_names_are_only_read(router: Router, replicas: list[RawUpstream]) -> None:
    """Header and body go on as they came, with no session id added (spec 3.3, 3.10)."""
    body = b'{"prompt_cache_key": "k", "messages": []}'
    router.request("POST", "/v1/chat/completions", headers={"Session-ID": "a"}, body=body)
    (request,) = replicas[0].requests + replicas[1].requests

    assert b"\r\nSession-ID: a\r\n" in request
    assert request.endswith(b"\r\n\r\n" + body)
    assert b"x-session-id" not in request.lower()


def test_names_mean_nothing_unless_they_are_asked_for(
    start_router: Callable[..., Router], replicas: list[RawUpstream]
) -> None:
    """Without the options, only our own names name a session (spec 3.1)."""
    router = start_router(replicas)
    answers = [turn(router, {"session-id": "a"}, prompt_cache_key="b") for _ in range(2)]

    assert [placement(answer)[1] for answer in answers] == ["new", "new"]
