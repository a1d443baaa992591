"""The table of log fields, and its use."""

from __future__ import annotations

import ast
from pathlib import Path

import pypto_serving_router
from pypto_serving_router.telemetry.access import Record
from pypto_serving_router.telemetry.fields import COMMON, FIELDS, reference
from pypto_serving_router.telemetry.metrics import OUTCOMES

LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
SOURCES = Path(pypto_serving_router.__file__).parent
OF_THE_LOG_ITSELF = {"lost", "exception"}
"""Made in telemetry/log.py, of what happens to records."""


def used_fields() -> set[str]:
    """Find the fields in every call like `log.info(...)`, those passed as `**{...}` included."""
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and any(map(is_log_method, ast.walk(node.func))):
                for keyword in node.keywords:
                    found |= {keyword.arg} if keyword.arg is not None else constant_keys(keyword.value)
    return found - {"exc_info"}


def is_log_method(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr not in LEVELS:
        return False
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return name.lstrip("_") == "log"


def constant_keys(value: ast.expr) -> set[str]:
    return {
        str(key.value)
        for node in ast.walk(value)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }


def test_every_field_is_documented() -> None:
    """Whatever field the source logs is in the table, and the table has no other (spec 9)."""
    of_exchanges = set(Record.__struct_fields__) - set(COMMON)

    assert used_fields() | of_exchanges | OF_THE_LOG_ITSELF == set(FIELDS)


def test_reference() -> None:
    """The reference page names every field and outcome (spec 9)."""
    page = reference()

    assert all(f"`{name}`" in page for name in {**COMMON, **FIELDS, **OUTCOMES})
