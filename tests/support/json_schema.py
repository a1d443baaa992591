"""A small validator for the part of JSON Schema that the fleet file's schema uses; any other keyword is an error."""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "null": type(None),
}
_ANNOTATIONS = {"$schema", "$defs", "title", "description", "default"}


def is_valid(document: object, schema: dict[str, Any]) -> bool:
    """Whether the document satisfies the schema."""
    return _valid(document, schema, schema["$defs"])


def _valid(value: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> bool:
    return all(
        keyword in _ANNOTATIONS or _satisfies(keyword, expected, value, schema, definitions)
        for keyword, expected in schema.items()
    )


def _satisfies(keyword: str, expected: Any, value: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> bool:
    match keyword:
        case "$ref":
            return _valid(value, definitions[expected.rpartition("/")[2]], definitions)
        case "anyOf":
            return any(_valid(value, each, definitions) for each in expected)
        case "type":
            return isinstance(value, _TYPES[expected]) and not isinstance(value, bool)
        case "enum":
            return bool(value in expected)
    match keyword, value:
        case "properties", dict():
            return all(_valid(value[key], each, definitions) for key, each in expected.items() if key in value)
        case "required", dict():
            return set(expected) <= set(value)
        case "additionalProperties", dict() if expected is False:
            return set(value) <= set(schema["properties"])
        case "additionalProperties", dict():
            return all(_valid(each, expected, definitions) for each in value.values())
        case "items", list():
            return all(_valid(each, expected, definitions) for each in value)
        case "minItems", list():
            return bool(len(value) >= expected)
        case "uniqueItems", list():
            return len(set(value)) == len(value)
        case "pattern", str():
            return re.search(expected, value) is not None
        case "minLength", str():
            return bool(len(value) >= expected)
        case "minimum", int():
            return bool(value >= expected)
        case "maximum", int():
            return bool(value <= expected)
    known = {"properties", "required", "additionalProperties", "items", "minItems", "uniqueItems", "pattern"}
    assert keyword in known | {"minLength", "minimum", "maximum"}, f"unknown keyword {keyword}"
    return True
