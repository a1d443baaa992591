"""Every command in the documentation runs, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.console import Command, Shell, read

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/tutorial.md", *sorted((ROOT / "docs/how-to").glob("*.md"))]
RUN = [page for page in PAGES if any(isinstance(step, Command) for step in read(page.read_text()))]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """A reader who follows a page gets what it promises, and is left with nothing running (spec 1.1)."""
    folder = tmp_path / "reader"
    folder.mkdir()
    shell = Shell(folder)
    try:
        assert shell.follow(page.read_text())
    finally:
        shell.close()
