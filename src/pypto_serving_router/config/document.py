"""A JSON document checked against a Struct: every problem at once, each with its place.

msgspec stops at the first fault. This walks the document beside the Struct's own description, so that there is no
second list of fields, and goes on after each fault. What comes out is a *draft*: the document as plain dictionaries,
defaults filled in, with `INVALID` wherever something was refused; rules that span fields can still look at the rest.
A field that was not given and whose default is computed is left out of its draft.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias

import msgspec
from msgspec import inspect

from pypto_serving_router.config.checks import nearest
from pypto_serving_router.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Refused(Enum):
    INVALID = "refused"


INVALID: Final = _Refused.INVALID
"""Stands in a draft for what was refused."""
Invalid: TypeAlias = Literal[_Refused.INVALID]
Draft: TypeAlias = dict[str, Any]
Notes: TypeAlias = "Mapping[str, Any]"
"""What the `Meta`s of a field say beyond its type (see `model`)."""

_SHOWN = 60  # characters of a wrong value that are repeated


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys occurred more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs)
        self.repeated = [key for key, count in counts.items() if count > 1]


def parse(data: bytes, source: str) -> object:
    """Read JSON; `source` is what messages call the file.

    Raises:
        ConfigError: It is not JSON in UTF-8.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise ConfigError(Problem(source, "begins with a byte order mark; plain UTF-8 is allowed"))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            Problem(f"{source}:{line}", f"holds the byte {data[error.start]:#04x}, which is not UTF-8")
        ) from error
    if not text.strip():
        raise ConfigError(Problem(source, "is empty; a JSON object is allowed"))
    try:
        return json.loads(text, object_pairs_hook=_Object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"{source}:{error.lineno}:{error.colno}"
        raise ConfigError(Problem(place, f"is not JSON: {error.msg}")) from error
    except RecursionError as error:
        raise ConfigError(Problem(source, "is nested too deeply")) from error
    except ValueError as error:  # a constant, or a number of more digits than Python reads
        raise ConfigError(Problem(source, f"is not JSON: {str(error).partition(';')[0]}")) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def check(document: object, struct: type[msgspec.Struct]) -> tuple[Draft | Invalid, list[Problem]]:
    """Compare a document with a Struct; give its draft, and everything that is wrong with it."""
    walk = _Walk()
    return walk.value(document, inspect.type_info(struct), ""), walk.problems


def plain(kind: inspect.Type) -> tuple[inspect.Type, Notes, bool]:
    """Strip a type of its `Meta`s and of None: the type itself, what the `Meta`s say, whether None is allowed."""
    notes: dict[str, Any] = {}
    optional = False
    while True:
        match kind:
            case inspect.Metadata():
                notes = (kind.extra_json_schema or {}) | (kind.extra or {}) | notes
                kind = kind.type
            case inspect.UnionType(types=types):
                optional = True
                (kind,) = (each for each in types if not isinstance(each, inspect.NoneType))
            case _:
                return kind, notes, optional


def refusal(value: object, kind: inspect.Type, notes: Notes) -> str | None:
    """Tell what is wrong with a single value of a plain type: what was found, and what is allowed."""
    match kind, value:
        case inspect.IntType(), int() if type(value) is int:  # not a bool
            fits = _within(value, kind)
        case inspect.FloatType(), float():
            fits = math.isfinite(value) and _within(value, kind)
        case inspect.StrType(), str():
            fits = len(value) >= (kind.min_length or 0) and bool(re.fullmatch(kind.pattern or "(?s:.*)", value))
        case inspect.LiteralType(), str():
            fits = value in kind.values
        case _:
            fits = False
    secret = notes.get("secret", False)
    if not fits:
        return f"found {'a wrong value' if secret else shown(value)}; allowed is {allowed(kind, notes)}"
    if (text_check := notes.get("check")) and (message := text_check(value)):
        return str(message) if secret else f"{shown(value)} {message}"
    return None


def allowed(kind: inspect.Type, notes: Notes) -> str:
    """Say in words which values a plain type takes."""
    match kind:
        case _ if "allowed" in notes:
            return str(notes["allowed"])
        case inspect.IntType(ge=low, le=None):
            return f"a whole number, {low} or more"
        case inspect.IntType(ge=low, le=high):
            return f"a whole number from {low} to {high}"
        case inspect.StrType(min_length=least):
            return "text that is not empty" if least else "text"
        case inspect.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case inspect.VarTupleType():
            return "an array"
        case inspect.DictType() | inspect.StructType():
            return "an object"
    raise TypeError(f"no words for {kind}")


def shown(value: object) -> str:
    """Repeat a value on one line, shortened; of an array or an object only its type."""
    match value:
        case dict():
            return "an object"
        case list():
            return "an array"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _within(value: float, kind: inspect.IntType | inspect.FloatType) -> bool:
    return (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
    )


def _join(path: str, key: str) -> str:
    step = key if re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$-]*", key) else f"[{json.dumps(key)}]"
    return f"{path}.{step}" if path and not step.startswith("[") else f"{path}{step}"


class _Walk:
    """One pass over a document."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def value(self, value: object, kind: inspect.Type, path: str) -> Any:
        """Check any value against any type."""
        kind, notes, optional = plain(kind)
        match kind, value:
            case _, None if optional:
                return None
            case inspect.StructType(), _Object():
                return self._struct(value, kind, path)
            case inspect.DictType(), _Object():
                return self._dict(value, kind, path, notes)
            case inspect.VarTupleType(), list():
                return self._array(value, kind, path, notes)
        message = refusal(value, kind, notes)
        return self._refuse(path, message) if message else value

    def _refuse(self, path: str, message: str) -> Invalid:
        self.problems.append(Problem(path, message))
        return INVALID

    def _struct(self, value: _Object, kind: inspect.StructType, path: str) -> Draft:
        self._repeated(value, path)
        fields = {field.encode_name: field for field in kind.fields}
        for key in value:
            if key not in fields:
                self._refuse(_join(path, key), f"is not a known key; {nearest(key, list(fields))}")
        draft: Draft = {}
        for name, field in fields.items():
            if name in value:
                draft[name] = self.value(value[name], field.type, _join(path, name))
            elif field.required:
                draft[name] = self._refuse(_join(path, name), "is missing; it is required")
            elif field.default is not msgspec.NODEFAULT:
                draft[name] = field.default
            elif field.default_factory is dict:
                draft[name] = {}
        return draft

    def _dict(self, value: _Object, kind: inspect.DictType, path: str, notes: Notes) -> Any:
        self._repeated(value, path)
        draft: Draft = {}
        for key, item in value.items():
            place = _join(path, key)
            if message := notes["key_check"](key):
                draft[key] = self._refuse(place, message)
            else:
                draft[key] = self.value(item, kind.value_type, place)
        return INVALID if INVALID in draft.values() else draft

    def _array(self, value: list[Any], kind: inspect.VarTupleType, path: str, notes: Notes) -> Any:
        if len(value) < (kind.min_length or 0):
            return self._refuse(path, f"is empty; at least {kind.min_length} is needed")
        places = [f"{path}[{index}]" for index in range(len(value))]
        items = [self.value(item, kind.item_type, place) for item, place in zip(value, places, strict=True)]
        if notes.get("uniqueItems"):
            seen = {INVALID}
            for index, item in enumerate(items):
                if item in seen and item is not INVALID:
                    items[index] = self._refuse(places[index], f"found {shown(item)} again; each is allowed once")
                seen.add(item)
        if isinstance(kind.item_type, inspect.StructType):
            return tuple(items)  # faults inside one object leave the others to be looked at
        return INVALID if INVALID in items else tuple(items)

    def _repeated(self, value: _Object, path: str) -> None:
        for key in value.repeated:
            self._refuse(_join(path, key), "is given more than once")
