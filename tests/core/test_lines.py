"""Header lines judged one by one: the same judgement first and later, and nothing secret or endless is kept."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pypto_serving_router.core import lines
from pypto_serving_router.core.lines import LineMemory, is_ordinary, is_text, is_token
from pypto_serving_router.errors import RequestError

KINDS = {b"host": lines.HOST, b"content-length": lines.LENGTH, b"x-session-id": lines.SESSION}


@pytest.fixture
def memory() -> LineMemory:
    """Give an empty memory."""
    return LineMemory(KINDS)


@pytest.mark.parametrize(
    ("line", "kind", "value"),
    [
        (b"Host: \t a \t", lines.HOST, b"a"),
        (b"hOST:a", lines.HOST, b"a"),
        (b"Content-Length: 5 ", lines.LENGTH, b"5"),
        (b"X-Session-Id: s", lines.SESSION, b"s"),
        (b"Accept: a", lines.PLAIN, b""),
        (b"A:", lines.PLAIN, b""),
        (b"TE: trailers", lines.HOP, b"trailers"),
        (b"PROXY-Anything: x", lines.HOP, b"x"),
        (b"proxy:x", lines.PLAIN, b""),
    ],
)
def test_a_line_is_judged_the_same_each_time(memory: LineMemory, line: bytes, kind: int, value: bytes) -> None:
    """spec 4.2: what kind of field it is, whatever its spelling, and its value where that matters."""
    for _ in range(3):
        assert (memory.fields.get(line) or memory.learn(line)) == (kind, value)


@pytest.mark.parametrize(
    "line", [b"", b"Host", b": a", b"A B: c", b"A : b", b" A: b", b"A: \0", b"A: b\rc", b"A: b\nc", b"\xe4: b"]
)
def test_what_is_no_field_is_refused_each_time(memory: LineMemory, line: bytes) -> None:
    """spec 4.8: also where the field's name is known, and nothing of it is kept."""
    memory.learn(b"Host: a")
    memory.learn(b"A: b")
    known = dict(memory.fields)

    for _ in range(2):
        with pytest.raises(RequestError):
            memory.learn(line)
    assert memory.fields == known


@pytest.mark.parametrize(
    "name", [b"Authorization", b"cookie", b"Set-Cookie", b"API-Key", b"x-api-key", b"X-Session-Id"]
)
def test_secrets_and_what_is_never_the_same_are_not_kept(memory: LineMemory, name: bytes) -> None:
    """spec 1.3: a key that passed once is nowhere in memory afterwards, and ids do not push out what is of use."""
    memory.learn(name + b": secret")
    memory.learn(b"Accept: a")

    assert list(memory.fields) == [b"Accept: a"]


def test_what_is_kept_is_bounded(memory: LineMemory) -> None:
    """spec 4.10: by number and by length."""
    memory.learn(b"Long: " + b"a" * 1000)
    assert not memory.fields
    most = 0
    for number in range(10_000):
        memory.learn(b"A%d: b" % number)
        most = max(most, len(memory.fields))

    assert 1000 <= most <= 5000


@given(st.binary(max_size=8) | st.binary(min_size=60, max_size=70))
@example(bytes(range(0x20, 0x7F)))
@example(bytes(range(0x80, 0x100)) + b"\t")
def test_tokens_and_text(value: bytes) -> None:
    """spec 4.8: a token is printable ASCII without separators (RFC 9110 5.6.2), text has no control but the tab."""
    text = value.decode("latin-1")
    separators = '"(),/:;<=>?@[\\]{} '

    assert is_token(value) == bool(text and all("!" <= c <= "~" and c not in separators for c in text))
    assert is_text(value) == all(c == "\t" or (c >= " " and c != "\x7f") for c in text)


def test_which_fields_are_ordinary() -> None:
    """spec 3.1, 4.2: no field that the router treats in a way of its own, or that holds a secret, is ordinary."""
    ordinary = [b"x-chat-id", b"accept", b"content-type"]
    special = [b"host", b"content-length", b"x-session-id", b"te", b"proxy-a", b"authorization", b"cookie", b"a b", b""]

    assert [name for name in ordinary + special if is_ordinary(name)] == ordinary
