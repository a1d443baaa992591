"""Session ids under names of the client's own: which place wins, and what becomes of a value."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pypto_serving_router.core.session_id import from_body
from pypto_serving_router.core.session_sources import LONGEST_NAME, SessionSources

USABLE = re.compile(r"[A-Za-z0-9._:-]{1,128}")
HEADERS = ("X-Session-Affinity", "session-id")
FIELDS = ("prompt_cache_key", "metadata.session_id", "user")
ODD = "Grüße, x@y.example"

sources = SessionSources(HEADERS, FIELDS)
names = st.sampled_from(["x-session-affinity", "Session-Id", "SESSION-ID", "Accept", "x-other"])
values = st.one_of(st.text("ab:.-_0", max_size=6), st.text("ab ,@\xe9", max_size=6), st.text("x", min_size=120))
texts = st.one_of(values, st.text(max_size=6))
anything = st.recursive(
    st.one_of(texts, st.none(), st.integers(-9, 9)),
    lambda inner: st.dictionaries(st.sampled_from(["session_id", "user", "x"]), inner, max_size=3),
    max_leaves=5,
)
bodies = st.dictionaries(
    st.sampled_from(["session_id", "prompt_cache_key", "metadata", "user", "messages"]), anything, max_size=5
)


def line(name: str, value: str) -> bytes:
    """Spell a header line."""
    return f"{name}: {value} ".encode("latin-1")


def place_in_head(lines: list[tuple[str, str]]) -> tuple[str, str] | None:
    """Tell which field names the session and with what text, written without regard to speed."""
    for wanted in HEADERS:
        found = [value.strip(" \t") for name, value in lines if name.lower() == wanted.lower()]
        if text := ", ".join(dict.fromkeys(value for value in found if value)):
            return f"{wanted.lower()}:", text
    return None


def place_in_body(document: Any) -> tuple[str, str] | None:
    """Tell which body field names the session and with what text."""
    for path in FIELDS:
        value = document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            return f".{path}:", value
    return None


def agrees(session: str | None, place: tuple[str, str] | None) -> None:
    """Check an id against the place it must come from."""
    if place is None:
        assert session is None
        return
    assert session is not None
    assert USABLE.fullmatch(session)
    prefix, text = place
    if USABLE.fullmatch(prefix + text):
        assert session == prefix + text
    else:
        assert re.fullmatch(re.escape(prefix) + "[0-9a-f]{32}", session)


@given(st.lists(st.tuples(names, values), max_size=5))
@example([("session-id", "a"), ("x-session-affinity", "b")])
@example([("session-id", "a"), ("session-id", "a"), ("SESSION-id", "b")])
@example([("x-session-affinity", "\t"), ("session-id", "a")])
def test_head(lines: list[tuple[str, str]]) -> None:
    """The first named field that has a value gives the id; any value gives one that is valid by spec 3.1."""
    agrees(sources.in_head([line(*each) for each in lines]), place_in_head(lines))


@given(bodies, st.booleans())
@example({"metadata": {"session_id": "a"}, "user": "b"}, False)
@example({"metadata": "no object", "user": "b"}, False)
@example({"prompt_cache_key": "", "user": ODD}, True)
@example({"session_id": "two words", "user": "b"}, False)
@example({"session_id": 7, "prompt_cache_key": 7, "user": "b"}, False)
def test_body(document: dict[str, Any], ascii_only: bool) -> None:
    """A usable `session_id` comes before other fields, and they come in the order given (spec 3.1)."""
    body = json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "replace")
    ours = from_body(body)

    if ours is not None:
        assert sources.in_body(body) == ours
    else:
        agrees(sources.in_body(body), place_in_body(json.loads(body)))


@given(texts, texts)
def test_equal_values_of_one_place_and_only_those_are_one_session(one: str, other: str) -> None:
    """No two values meet in one id, short or long, plain or odd, and no value meets that of another place."""

    def ids(value: str) -> list[str | None]:
        found = [sources.in_body(json.dumps(document).encode()) for document in documents(value)]
        return [*found, sources.in_head([line("session-id", value)]), sources.in_head([line(HEADERS[0], value)])]

    def documents(value: str) -> list[dict[str, Any]]:
        return [{"user": value}, {"prompt_cache_key": value}, {"metadata": {"session_id": value}}]

    assume(all(value and value == value.strip(" \t") and value.isprintable() for value in (one, other)))
    assume(all(ord(character) < 256 for character in one + other))

    both = ids(one) + ids(other)
    assert None not in both
    assert len(set(both)) == (5 if one == other else 10)


def test_an_id_that_was_answered_can_be_sent_back() -> None:
    """The id that a client is told is usable as `X-Session-Id`, however long its name and value (spec 3.1)."""
    name = "n" * LONGEST_NAME
    wide = SessionSources([name], [name])

    for value in ("v", "v" * 500, ODD):
        for session in (wide.in_head([line(name, value)]), wide.in_body(json.dumps({name: value}).encode())):
            assert session
            assert USABLE.fullmatch(session)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"user": "a", "user": "b"}', ".user:b"),
        (b'{"us\\u0065r": "a"}', ".user:a"),
        (b'\xef\xbb\xbf{"user": "a"}', ".user:a"),
        (b'{"user": "a", "messages": ["\\ud83d"]}', ".user:a"),
        (b'{"metadata": {"session_id": "a", "x": "\\ud83d"}}', ".metadata.session_id:a"),
        (b'{"metadata": [], "user": "a"}', ".user:a"),
        (b'{"user": "a"', None),
        (b'["user"]', None),
        (b"", None),
        (b'{"user": ' + b"[" * 200_000, None),
        (b'{"user": {"user": "a"}}', None),
    ],
)
def test_what_counts_as_json(body: bytes, expected: str | None) -> None:
    """Other fields are read with the same eyes as `session_id` (spec 3.1)."""
    assert sources.in_body(body) == expected


@pytest.mark.parametrize(
    "spelled", ["\\ud83d\\ude00", "\\\\ud83d", "C:\\\\users\\\\x", "\\nd83d", "//", "caf\\u00e9", "😀"]
)
def test_a_broken_character_elsewhere_changes_no_id(spelled: str) -> None:
    """spec 3.1: a turn whose transcript holds half an emoji is of the same conversation as the turn before."""
    ids = {
        sources.in_body((mark + '{"user": "%s", "messages": ["%s"]}' % (spelled, said)).encode())  # noqa: UP031 - braces
        for mark in ("", "\ufeff")
        for said in ("hello", "\\ud83d", "\\ude00\\\\", "\\\\\\uD83D")
    }

    assert len(ids) == 1
    assert None not in ids


def test_different_texts_stay_different_when_looked_at_again() -> None:
    """No two names meet because a transcript holds half an emoji (spec 3.1)."""
    spelled = ["a\\\\b", "a//b", "\\ud83d", "\\ude00", "\\nd83d", "\\ud83d\\ude00", "\\\\ud83d"]
    bodies = [f'{{"user": "{text}", "messages": ["\\ud83d"]}}'.encode() for text in spelled]

    assert len({sources.in_body(body) for body in bodies}) == len(spelled)


def test_session_id_itself_may_be_named() -> None:
    """`session_id` as a field of the operator's keeps ids that are too long, and leaves usable ones alone."""
    named = SessionSources([], ["session_id"])

    assert named.in_body(b'{"session_id": "s-1"}') == "s-1"
    assert re.fullmatch(r"\.session_id:[0-9a-f]{32}", named.in_body(b'{"session_id": "two words"}') or "")
    assert named.in_head([b"session_id: a"]) is None
