"""Finds the series that a PromQL expression asks for. It does not judge the expression: promtool does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN: Final = re.compile(r'\s*("[^"]*"|\[[^\]]*\]|[0-9][\w.]*|[a-zA-Z_:][\w:]*|=~|!~|!=|>=|<=|.)', re.DOTALL)
_LABEL_LISTS: Final = ("by", "without", "on", "ignoring", "group_left", "group_right")
_WORDS: Final = ("and", "or", "unless", "bool", "offset")


@dataclass(frozen=True, slots=True)
class Selector:
    """A name of series, and what is asked of their labels: label, operator, value."""

    name: str
    matchers: tuple[tuple[str, str, str], ...] = ()


def read(expression: str) -> tuple[list[Selector], set[str]]:
    """Return the selectors of an expression, and the labels that it groups or joins by."""
    tokens = [token for token in _TOKEN.findall(expression.strip()) if token.strip()]
    selectors: list[Selector] = []
    grouped: set[str] = set()
    rest = iter(enumerate(tokens))
    for position, token in rest:
        following = tokens[position + 1] if position + 1 < len(tokens) else ""
        if token in _LABEL_LISTS:
            grouped.update(inside for inside in _until(rest, ")") if inside not in "(,")
        elif token in _WORDS or following in ("(", "by", "without") or not re.match(r"[a-zA-Z_:]", token):
            continue
        else:
            matchers = _matchers(list(_until(rest, "}"))) if following == "{" else ()
            selectors.append(Selector(token, matchers))
    return selectors, grouped


def _until(rest: Iterator[tuple[int, str]], end: str) -> Iterator[str]:
    for _, token in rest:
        if token == end:
            return
        yield token


def _matchers(tokens: list[str]) -> tuple[tuple[str, str, str], ...]:
    """Read what stands between braces, the first of which is still there."""
    triples = " ".join(tokens[1:]).split(" , ")
    matchers = [triple.split(" ", 2) for triple in triples if triple]
    return tuple((label, operator, value.strip('"')) for label, operator, value in matchers)
