"""What a simulated replica is asked and what it answers."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.sim.completion import DEFAULT_TOKENS, Answer, answer_pieces, error_document, parse


def chat(*contents: object) -> bytes:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return json.dumps({"messages": messages}).encode()


def test_next_turn_begins_with_the_last() -> None:
    """A conversation's prompt is a prefix of its next turn's, as templates make it (spec 10)."""
    first = parse(chat("Hello"), chat=True).rendered()
    second = parse(chat("Hello", "Hi there.", "Say more"), chat=True).rendered()

    assert second.startswith(first + b"Hi there.")


def test_content_may_be_parts_or_missing() -> None:
    """The content forms of the chat API are read: text, parts, null (spec 10)."""
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]

    assert parse(chat(parts), chat=True).rendered() == parse(chat("Hello"), chat=True).rendered()
    assert parse(chat(None), chat=True).rendered() == parse(chat(""), chat=True).rendered()


def test_prompts_may_be_tokens() -> None:
    """A prompt given as token ids keeps its number of tokens (spec 10)."""
    assert len(parse(b'{"prompt": [1, 2, 151643]}', chat=False).rendered()) == 12
    assert parse(b'{"prompt": "abc"}', chat=False).rendered() == b"abc"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"messages": 1}', "$.messages"),
        (b"{}", "messages"),
        (b'{"messages": [], "n": 2}', "n is 2"),
        (b'{"messages": [], "max_tokens": 0}', "$.max_tokens"),
    ],
)
def test_wrong_requests_are_refused(body: bytes, told: str) -> None:
    """A request that can't be read, or wants several choices, is refused with a reason (spec 10)."""
    with pytest.raises(ValueError, match=re.escape(told)) as refusal:
        parse(body, chat=True)

    assert json.loads(error_document(str(refusal.value))) == {"object": "error", "message": str(refusal.value)}


def test_unknown_fields_are_ignored() -> None:
    """Fields that mean nothing to the simulation don't disturb it (spec 10)."""
    assert parse(b'{"prompt": "x", "session_id": "s", "temperature": 0, "n": 1}', chat=False).tokens == DEFAULT_TOKENS


def test_length_and_finish_reason() -> None:
    """An answer has as many tokens as its limit says and then ends by length, else a set number (spec 10)."""
    for body, tokens, reason in (
        (b'{"prompt": "x"}', DEFAULT_TOKENS, "stop"),
        (b'{"prompt": "x", "max_tokens": 5}', 5, "length"),
        (b'{"prompt": "x", "max_completion_tokens": 6}', 6, "length"),
    ):
        wanted = parse(body, chat=False)
        assert (wanted.tokens, wanted.finish_reason) == (tokens, reason)


@given(st.binary(max_size=50), st.integers(1, 50), st.integers(1, 50))
def test_answers_are_deterministic(prompt: bytes, short: int, more: int) -> None:
    """The same prompt gets the same answer, a longer one continuing it; another prompt gets another (spec 10)."""
    pieces = answer_pieces(prompt, short)

    assert pieces == answer_pieces(prompt, short + more)[:short]
    assert all(len(piece) == 4 for piece in pieces)
    assert answer_pieces(prompt, 16) != answer_pieces(prompt + b"?", 16)


@given(st.integers(1, 40), st.integers(1, 5000))
def test_stretched_answers_have_the_size_asked_for(tokens: int, size: int) -> None:
    """A stretched answer has exactly the bytes that were asked for, in as many pieces as it has tokens (spec 10)."""
    pieces = answer_pieces(b"x", tokens, size)

    assert len(pieces) == tokens
    assert len("".join(pieces).encode()) == size


def test_documents_carry_the_usage() -> None:
    """Usage counts the prompt, the answer and what of the prompt was cached (spec 10)."""
    wanted = parse(b'{"prompt": "12345678", "max_tokens": 2}', chat=False)
    answer = Answer(wanted, wanted.rendered(), model="m", serial=1, cached=1)

    document = json.loads(answer.whole(["ab", "cd"]))

    assert document["choices"][0]["text"] == "abcd"
    assert document["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert b"[DONE]" in answer.closing_events()
    assert "simulation" in document["system_fingerprint"]
