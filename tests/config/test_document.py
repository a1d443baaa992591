"""JSON against a Struct."""

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, inspect

from pypto_serving_router.config import document
from pypto_serving_router.config.document import INVALID
from pypto_serving_router.errors import ConfigError


class Leaf(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An entry."""

    size: Annotated[int, Meta(ge=1, le=9)]
    label: Annotated[str, Meta(min_length=1)] | None = None


class Tree(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A document with every kind of field."""

    leaves: tuple[Leaf, ...] = ()
    numbers: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(extra_json_schema={"uniqueItems": True})] = (7,)
    kind: Literal["oak", "elm"] = "oak"
    names: Annotated[
        dict[str, Annotated[str, Meta(extra={"secret": True, "check": lambda text: "is bad" * (text == "bad")})]],
        Meta(extra={"key_check": lambda key: "is no name" if " " in key else None}),
    ] = msgspec.field(default_factory=dict)
    derived: str = msgspec.field(default_factory=str)


def problems(text: str) -> dict[str, str]:
    """Check a document; give its problems by place."""
    _, found = document.check(document.parse(text.encode(), "x.json"), Tree)
    return {problem.place: problem.message for problem in found}


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b"", "x.json", "is empty"),
        (b" \n\t", "x.json", "is empty"),
        (b"\xef\xbb\xbf{}", "x.json", "byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "x.json:1", "0xff, which is not UTF-8"),
        (b'{\n "a": "\xe9"}', "x.json:2", "0xe9, which is not UTF-8"),
        (b'{"a": 1,\n  "b" 2}', "x.json:2:7", "is not JSON"),
        (b"{} {}", "x.json:1:4", "Extra data"),
        (b'{"a": NaN}', "x.json", "NaN is not a number"),
        (b'{"a": -Infinity}', "x.json", "-Infinity is not a number"),
        (b"[" * 100_000, "x.json", "nested too deeply"),
        (b"1" * 5000, "x.json", "is not JSON"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(data: bytes, place: str, message: str) -> None:
    """A file that can't be read as JSON is one clear problem (spec 1.5)."""
    with pytest.raises(ConfigError) as caught:
        document.parse(data, "x.json")

    (problem,) = caught.value.problems
    assert problem.place == place
    assert message in problem.message
    assert "\n" not in problem.message


def test_every_fault_is_found_in_one_pass() -> None:
    """All problems are reported at once, each with its place and what is allowed (spec 1.5)."""
    text = """{
        "leaves": [{"size": 10, "labell": "a"}, {"size": "3", "label": ""}, 5, {}],
        "numbers": [1, -1, true, 2.0, 1],
        "kind": "ash",
        "names": {"ok": "bad", "a b": "x", "n": 3},
        "derived": null
    }"""
    assert problems(text) == {
        "leaves[0].size": "found 10; allowed is a whole number from 1 to 9",
        "leaves[0].labell": "is not a known key; did you mean `label`?",
        "leaves[1].size": 'found "3"; allowed is a whole number from 1 to 9',
        "leaves[1].label": 'found ""; allowed is text that is not empty',
        "leaves[2]": "found 5; allowed is an object",
        "leaves[3].size": "is missing; it is required",
        "numbers[1]": "found -1; allowed is a whole number, 0 or more",
        "numbers[2]": "found true; allowed is a whole number, 0 or more",
        "numbers[3]": "found 2.0; allowed is a whole number, 0 or more",
        "numbers[4]": "found 1 again; each is allowed once",
        "kind": 'found "ash"; allowed is `elm` or `oak`',
        "names.ok": "is bad",
        'names["a b"]': "is no name",
        "names.n": "found a wrong value; allowed is text",
        "derived": "found null; allowed is text",
    }


def test_a_repeated_key_is_refused_at_any_depth() -> None:
    """A key that is given twice would silently lose a value (spec 2.1)."""
    found = problems('{"kind": "oak", "kind": "elm", "leaves": [{"size": 1, "size": 2}], "names": {"a": "", "a": ""}}')

    assert found == dict.fromkeys(["kind", "leaves[0].size", "names.a"], "is given more than once")


@pytest.mark.parametrize("found", [[], 3, None, "text", True])
def test_the_document_itself_must_be_an_object(found: object) -> None:
    """The top level is an object (spec 2.1)."""
    draft, (problem,) = document.check(document.parse(json.dumps(found).encode(), "x"), Tree)

    assert draft is INVALID
    assert problem.place == ""
    assert "allowed is an object" in problem.message


def test_a_draft_holds_defaults_and_marks_what_was_refused() -> None:
    """Rules between fields can still look at what is right (spec 1.5)."""
    draft, _ = document.check(document.parse(b'{"leaves": [{"size": 2}, {"size": 0}], "numbers": "x"}', "x"), Tree)

    assert draft == {
        "leaves": ({"size": 2, "label": None}, {"size": INVALID, "label": None}),
        "numbers": INVALID,
        "kind": "oak",
        "names": {},
    }


def test_a_long_value_is_shortened() -> None:
    """A message stays one line that can be read (spec 1.5)."""
    message = problems(json.dumps({"kind": "x\n" * 1000}))["kind"]

    assert len(message) < 120
    assert message.isprintable()


@given(st.text('ab.$[]"\n\\ü\u2028\ud800'))
def test_any_key_makes_a_printable_place(key: str) -> None:
    """A place is one printable line, whatever the key (spec 1.5)."""
    for place in problems(json.dumps({key + "?": 1})):
        assert place.isascii()
        assert place.isprintable()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab\n", max_size=3),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["size", "label", "ok", "not ok"]), inner),
    max_leaves=10,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(["leaves", "numbers", "kind", "names", "derived"], _json)))
def test_a_document_without_problems_is_one_that_msgspec_takes(value: dict[str, Any]) -> None:
    """The walk refuses all that the Struct refuses; an independent decoder agrees (spec 2.1)."""
    try:
        text = json.dumps(value, allow_nan=False).encode()
        found = document.check(document.parse(text, "x"), Tree)[1]
    except ValueError:
        return  # not a number
    if not found:
        msgspec.json.decode(text, type=Tree)


def test_plain_strips_metas_and_none() -> None:
    """The notes of the outer `Meta` win over those of the inner (spec 1.2)."""
    inner = Annotated[int, Meta(ge=0, extra={"metavar": "N", "allowed": "few"})]
    kind = inspect.type_info(Annotated[inner | None, Meta(description="How many.", extra={"metavar": "M"})])

    plain, notes, optional = document.plain(kind)
    assert plain == inspect.IntType(ge=0)
    assert notes == {"metavar": "M", "allowed": "few", "description": "How many."}
    assert optional


@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, float("nan"), float("inf"), True, "1", None])
def test_refusal_knows_what_is_not_a_finite_positive_number(value: object) -> None:
    """Seconds are finite and above 0 (spec 1.4)."""
    assert document.refusal(value, inspect.FloatType(gt=0), {"allowed": "seconds"}) is not None
    assert document.refusal(1e-9, inspect.FloatType(gt=0), {"allowed": "seconds"}) is None
