"""Placeholders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.config import template

VALUES = {"device": "4", "devices": "4,5", "port": "8005", "host": "{port}", "model": "/m{{device}}", "slot": "a-d4"}

# A piece of text, and what becomes of it. No piece ends or begins with a brace that could join its neighbour's.
_braceless = st.text('ab1 :"$ü\n', min_size=1)
_pieces = st.one_of(
    _braceless.map(lambda text: (text, text)),
    st.sampled_from(sorted(VALUES)).map(lambda name: (f"{{{name}}}", VALUES[name])),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).map(lambda name: (f"{{{{{name}}}}}", f"{{{name}}}")),
    st.sampled_from(['{"x": 1}', "{}", "{ port }", "{0}", "{a-b}", "{a.b}", "{é}"]).map(lambda text: (text, text)),
)


@given(st.lists(st.tuples(_pieces, _braceless)))
def test_every_piece_of_a_text_expands_on_its_own(pieces: list[tuple[tuple[str, str], str]]) -> None:
    """Placeholders are replaced once, doubled braces lose one pair, all else stays (spec 2.4)."""
    text = "".join(before + gap for (before, _), gap in pieces)
    expected = "".join(after + gap for (_, after), gap in pieces)

    assert template.expand(text, VALUES) == expected


@given(st.text(alphabet='{}ab1 "'))
def test_a_text_without_unknown_names_always_expands(text: str) -> None:
    """What `names` does not report can't fail to expand (spec 2.4)."""
    values = dict.fromkeys(template.names(text), "")

    assert isinstance(template.expand(text, values), str)


def test_json_around_a_placeholder_is_left_alone() -> None:
    """Only a name between braces is a placeholder (spec 2.4)."""
    assert template.expand('{"a": {"rank": {device}}}', VALUES) == '{"a": {"rank": 4}}'


def test_names_lists_unknown_placeholders_too() -> None:
    """The loader can refuse what it does not know (spec 2.4)."""
    assert template.names("{port} {{port}} {nope} {}") == ["port", "nope"]


def test_a_placeholder_without_a_value_is_an_error() -> None:
    """A name that slipped through the loader is never left in a command (spec 2.4)."""
    with pytest.raises(KeyError):
        template.expand("{nope}", VALUES)
