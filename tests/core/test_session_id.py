"""Session ids: where they are looked for, and which are usable."""

from __future__ import annotations

import json
import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pypto_serving_router.core.session_id import from_body, from_header

USABLE = string.ascii_letters + string.digits + "._:-"
ids = st.text(USABLE, min_size=1, max_size=128)


def reference(body: bytes) -> str | None:
    """What a strict JSON reader makes of the body, written without regard to speed."""

    def refuse(literal: str) -> None:
        raise ValueError(f"{literal} is not JSON")

    try:
        text = body.removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
        document = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    value = document.get("session_id") if isinstance(document, dict) else None
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", value) else None


def escaped(text: str, draw: st.DrawFn) -> str:
    """Spell some of the characters as escapes."""
    return "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 and draw(st.booleans()) else c for c in text)


@st.composite
def literals(draw: st.DrawFn) -> str:
    """A JSON string, or something near one, as it may stand in a body."""
    kind = draw(st.sampled_from(["id", "id", "key", "text", "raw"]))
    if kind == "id":
        return f'"{escaped(draw(ids), draw)}"'
    if kind == "key":
        return f'"{escaped("session_id", draw)}"'
    if kind == "text":
        return json.dumps(draw(st.text(max_size=8)), ensure_ascii=draw(st.booleans()))
    pieces = st.sampled_from(
        [r"\ud83d", r"\uD83D", r"\ude00", r"\\", r"\\ud83d", r"\ud83", r"\n", r"\x", "a", r"\"", "/"]
    )
    return '"' + "".join(draw(st.lists(pieces, max_size=4))) + '"'


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """JSON objects in which the key of interest is frequent, and frequently twice."""
    keys = st.one_of(st.just('"session_id"'), literals())
    members = st.lists(st.tuples(keys, values).map(":".join), max_size=4)
    return members.map(lambda found: "{" + ",".join(found) + "}")


scalars = st.one_of(literals(), st.sampled_from(["null", "true", "1", "-0", "1e9", "01", "NaN", "Infinity", "", "tru"]))
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(objects(inner), st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")),
    max_leaves=8,
)
bodies = st.one_of(objects(documents), documents).map(lambda text: text.encode("utf-8", "surrogatepass"))


@given(bodies)
@example(b'{"session_id":"a","session_id":1}')
@example(b'{"session_id":1,"session_id":"b"}')
@example(b'{"session_id":"a","x":"\\ud800"}')
@example(b'{"session_id":"a\\\\b","x":"\\ud800"}')
@example(b'{"session_id":"\\ud800"}')
@example(b'{"session_id":"a","x":"\\ud83"}')
@example(b'{"session_id":"a","x":"\xff"}')
@example(b'{"session_id":"a","x":NaN}')
def test_agrees_with_a_strict_reader_on_anything_like_json(body: bytes) -> None:
    """spec 3.1: the top-level string `session_id`, the last of duplicates, and nothing in a body that is not JSON."""
    assert from_body(body) == reference(body)


@given(bodies, st.data())
def test_agrees_with_a_strict_reader_on_damaged_json(body: bytes, data: st.DataObject) -> None:
    """spec 3.1: a byte lost, changed or added makes the same difference to us as to a JSON reader."""
    at = data.draw(st.integers(0, len(body)))
    lost = data.draw(st.integers(0, 1))
    damaged = body[:at] + data.draw(st.binary(max_size=2)) + body[at + lost :]

    assert from_body(damaged) == reference(damaged)


@given(st.binary(max_size=40), st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_agrees_with_a_strict_reader_on_any_bytes(noise: bytes, mark: bytes) -> None:
    """spec 3.1: bytes that are not JSON hold no session id, and are no error."""
    body = mark + b'{"session_id":"a"' + noise

    assert from_body(body) == reference(body)
    assert from_body(noise) == reference(noise)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"session_id": "s-1"}', "s-1"),
        (b'{"session\\u005fid": "s\\u002d1"}', "s-1"),
        (b'\xef\xbb\xbf{"session_id": "s-1"}', "s-1"),
        (b'{"session_id": "s-1", "messages": ["\\ud83d"]}', "s-1"),
        (b'{"session_id": "s-1", "messages": ["\\uD83D"]}', "s-1"),
        (b'{"session_id": "s-1", "messages": ["\\\\ud83d"]}', "s-1"),
        (b'{"session_id": "s-1", "messages": ["\\ud83d", "C:\\\\udev"]}', "s-1"),
        ('{"session_id": "s-1", "messages": ["你好"]}'.encode(), "s-1"),
        (b'{"session_id": "a", "session_id": "b"}', "b"),
        (b'{"session_id": 7, "session_id": "b"}', "b"),
        (b'{"session_id": "a", "session_id": null}', None),
        (b'{"metadata": {"session_id": "a"}}', None),
        (b'[{"session_id": "a"}]', None),
        (b'"session_id"', None),
        (b"", None),
        (b'{"session_id": "a"} trailing', None),
        (b'{"session_id": "a"', None),
        (b'{"session_id": "a", "x": NaN}', None),
        (b'{"session_id": "\xff"}', None),
        (b'{"session_id": "two words"}', None),
        (b'{"session_id": ""}', None),
        (b'{"session_id": ["a"]}', None),
        (rb'{"session\u005fid": "a"}', "a"),
        (rb'{"\u0073ession_id": "a"}', "a"),
        ('{"session_id": "a"}'.encode("utf-16"), None),
        (b'{"session_id": "a"}\n', "a"),
        (b'{"session_id": "a\\n"}', None),
        (b'{"session_id": "' + b"x" * 128 + b'"}', "x" * 128),
        (b'{"session_id": "' + b"x" * 129 + b'"}', None),
        (b'{"session_id": "' + rb"\u0078" * 128 + b'"}', "x" * 128),
    ],
)
def test_body(body: bytes, expected: str | None) -> None:
    """spec 3.1: what counts as the id in a body, case by case."""
    assert from_body(body) == expected


@pytest.mark.parametrize("opening", [b"[", b'{"session_id":', b'{"x":['])
def test_a_body_nested_without_end_is_harmless(opening: bytes) -> None:
    """spec 3.1: no depth of nesting ends in more than "no session id"."""
    assert from_body(opening * 200_000) is None
    assert from_body(b'{"session_id": "a", "x": "\\ud800", "y": ' + opening * 50_000) is None


def test_a_large_body_is_given_no_second_look() -> None:
    """spec 3.9: half a surrogate pair is worth a second look only in a body too small to hold the event loop."""
    small = b'{"session_id": "a", "x": "\\ud83d", "pad": "' + b"x" * 200_000 + b'"}'
    large = b'{"session_id": "a", "x": "\\ud83d", "pad": "' + b"x" * 300_000 + b'"}'

    assert from_body(small) == "a"
    assert from_body(large) is None


@given(ids)
def test_any_usable_id_is_taken_from_a_header(value: str) -> None:
    """spec 3.1: `[A-Za-z0-9._:-]{1,128}`, once or repeated."""
    assert from_header([value.encode()]) == value
    assert from_header([value.encode()] * 3) == value


@given(st.binary(max_size=130))
def test_any_other_header_is_unusable(value: bytes) -> None:
    """spec 3.1: no bytes in the header are an error."""
    usable = re.fullmatch(rb"[A-Za-z0-9._:-]{1,128}", value)

    assert from_header([value]) == (value.decode() if usable else None)


def test_different_headers_are_unusable() -> None:
    """spec 3.1: several different headers make no id."""
    assert from_header([b"a", b"b"]) is None
    assert from_header([b"a", b"a", b"b"]) is None
    assert from_header([b"a, a"]) is None
