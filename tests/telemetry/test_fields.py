"""The table of log fields, and its use."""

from __future__ import annotations

import ast
from pathlib import Path

import pypto_serving_router
from pypto_serving_router.telemetry.fields import COMMON, FIELDS, reference
from pypto_serving_router.telemetry.metrics import OUTCOMES

LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
SOURCES = Path(pypto_serving_router.__file__).parent


def used_fields() -> dict[str, set[str]]:
    """Find the keyword arguments of every call like `log.info(...)` and `self._log.bind(...)`."""
    found: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if name.lstrip("_") != "log" or node.func.attr not in LEVELS | {"bind"}:
                continue
            for keyword in node.keywords:
                if keyword.arg is not None:
                    found.setdefault(keyword.arg, set()).add(str(path.relative_to(SOURCES)))
                elif isinstance(keyword.value, ast.Dict):
                    for key in keyword.value.keys:
                        if isinstance(key, ast.Constant):
                            found.setdefault(str(key.value), set()).add(str(path.relative_to(SOURCES)))
    return found


def test_every_field_is_documented() -> None:
    """Whatever field the source logs is in the table (spec 9)."""
    undocumented = {name: files for name, files in used_fields().items() if name not in FIELDS and name != "exc_info"}

    assert undocumented == {}


def test_reference() -> None:
    """The reference page names every field and outcome (spec 9)."""
    page = reference()

    assert all(f"`{name}`" in page for name in {**COMMON, **FIELDS, **OUTCOMES})
