"""JSON documents as campaigns make them: right ones, with a few values put in the wrong place."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 8, 65535, 65536, 2**31, 2**63, 2**64, 10**30, 0.5, 1e308, -1e9),
    *(
        "",
        "a",
        "-oProxyCommand=x",
        "a b",
        "a\nb",
        "a\x00b",
        "\x1b[2J",
        "é",
        "\ud83d",
        "😀",
        "\u2028",
        "x" * 300,
        "~",
        "~root",
    ),
    *("{device}", "{devices}{port}", "{nope}", "{{x}}", "$(id)", "`id`", "; id", "'", '"', "\\", "../..", "/", "%h"),
    *(
        "127.0.0.1",
        "::1",
        "[::1]",
        "localhost",
        "user@host",
        "ssh://u@[::1]:22/x",
        "a@b@c",
        "ready",
        "free",
        "stopping",
    ),
    *([], {}, [0], [0, 0], [[]], ["a"], {"a": "b"}, {"": ""}, {"PYPTO_ROUTER_X": "1"}),
]
SCRAPS = [
    b'"',
    b"\\",
    b"\\u0000",
    b"\\ud83d",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"1e999",
    b"NaN",
    b"-",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\0",
    b"\n",
    b"9" * 30,
    b"[" * 3000,
]


@st.composite
def documents(draw: st.DrawFn, samples: Sequence[Any], keys: Sequence[str]) -> bytes:
    """One of the samples, up to four of its values exchanged, left out or added."""
    document = deepcopy(draw(st.sampled_from(samples)))
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 4]))):
        holder = draw(st.sampled_from(_holders(document)))
        value = draw(st.one_of(st.sampled_from(ODD), st.sampled_from(_values(document)), st.text(max_size=5)))
        if isinstance(holder, list):
            exchange = draw(st.booleans())
            if holder and exchange:
                holder[draw(st.integers(0, len(holder) - 1))] = deepcopy(value)
            else:
                holder.append(deepcopy(value))
        else:
            key = draw(st.sampled_from([*holder, *keys]))
            if draw(st.integers(0, 4)) == 0:
                holder.pop(key, None)
            else:
                holder[key] = deepcopy(value)
    return json.dumps(document, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")


def _holders(document: Any) -> list[Any]:
    """Return every object and array in a document."""
    if isinstance(document, dict):
        return [document, *(found for value in document.values() for found in _holders(value))]
    if isinstance(document, list):
        return [document, *(found for value in document for found in _holders(value))]
    return []


def _values(document: Any) -> list[Any]:
    """Return every value in the objects and arrays of a document."""
    held = (holder.values() if isinstance(holder, dict) else holder for holder in _holders(document))
    return [value for values in held for value in values] or [0]
