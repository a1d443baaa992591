"""The look-up of a session id in a body, against Python's own JSON parser, with names of the operator's own too."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any, NoReturn

from hypothesis import strategies as st

from fuzz.documents import SCRAPS
from fuzz.target import Target
from pypto_serving_router.core.session_id import from_body
from pypto_serving_router.core.session_sources import SessionSources

_USABLE = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_FIELDS = ("user", "metadata.session_id", "a.b.c")
_SOURCES = SessionSources([], _FIELDS)


def check(data: bytes) -> None:
    """Look for the id in both ways."""
    assert from_body(data) == _plain(data), data
    found = _SOURCES.in_body(data)
    if _is_text(data):
        assert found == _named(data), data


def _document(data: bytes) -> dict[str, Any]:
    try:
        # Strings beside the id need not be UTF-8: that is the replica's business.
        found = json.loads(
            data.removeprefix(b"\xef\xbb\xbf").decode(errors="replace"), parse_constant=_refuse, parse_int=bool
        )
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _plain(data: bytes) -> str | None:
    value = _document(data).get("session_id")
    return value if isinstance(value, str) and _USABLE.fullmatch(value) else None


def _named(data: bytes) -> str | None:
    ours = _plain(data)
    if ours is not None:
        return ours
    for name in _FIELDS:
        value: Any = _document(data)
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, str) or not value:
            continue
        spelled = value.encode(errors="surrogatepass")
        whole = f".{name}:{value}"
        return whole if _USABLE.fullmatch(whole) else f".{name}:{blake2b(spelled, digest_size=16).hexdigest()}"
    return None


@st.composite
def _strings(draw: st.DrawFn) -> str:
    pieces = st.sampled_from(
        [
            r"\ud83d",
            r"\uD83D\uDE00",
            r"\ude00",
            r"\\",
            r"\\ud83d",
            r"\n",
            r"\u0061",
            "a",
            "b1",
            r"\"",
            "/",
            "😀",
            "é",
            r"\nd83d",
            "//",
        ]
    )
    return '"' + "".join(draw(st.lists(pieces, max_size=4))) + '"'


_KEYS = st.sampled_from(
    ['"session_id"', r'"session\u005fid"', '"user"', '"metadata"', '"a"', '"b"', '"c"', '"messages"']
)
_SCALARS = st.one_of(
    _strings(), _strings(), st.sampled_from(["1", "-0.5e3", "true", "null", '"9f2c1b7e"', "[]", "{}", "1" * 40])
)


def _objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(st.tuples(_KEYS, values).map(":".join), max_size=4)
    return st.one_of(
        members.map(lambda found: "{" + ",".join(found) + "}"),
        st.lists(values, max_size=3).map(lambda found: "[" + ", ".join(found) + "]"),
    )


_INPUTS = st.builds(
    lambda mark, text: mark + text.encode(),
    st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf", b" \n"]),
    _objects(st.recursive(_SCALARS, _objects, max_leaves=8)),
)

TARGET = Target(
    "session", _INPUTS, [*SCRAPS, rb"\ud83d", rb"\\", rb"\ud83d\ude00", b'"session_id":"x",', b'"user":"x",'], check
)
