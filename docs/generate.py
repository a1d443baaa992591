#!/usr/bin/env python3
"""Write the pages of the documentation that come from the code; with `--check`, only say which are stale.

A page is a function that returns its Markdown, and an entry in `PAGES`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pages import commands, configuration, slots, wire

from pypto_serving_router.telemetry import families, fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DOCS = Path(__file__).parent

PAGES: Mapping[str, Callable[[], str]] = {
    "explanation/slot-states.md": slots.states,
    "reference/commands.md": commands.commands,
    "reference/fleet-file.md": configuration.fleet_file,
    "reference/log-fields.md": fields.reference,
    "reference/metrics.md": families.reference,
    "reference/options.md": configuration.options,
    "reference/wire-behaviour.md": wire.behaviour,
}


def main() -> int:
    """Write the pages, or check them; the exit status is 1 where a check finds one stale."""
    check = sys.argv[1:] == ["--check"]
    stale = {DOCS / name: text for name, page in PAGES.items() if not _is_current(DOCS / name, text := page())}
    for path, text in stale.items():
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        place = path.relative_to(DOCS.parent)
        sys.stdout.write(f"{place} {'is stale: run docs/generate.py' if check else 'was written'}\n")
    return 1 if check and stale else 0


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
