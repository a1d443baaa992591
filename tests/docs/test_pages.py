"""What the documentation points to is there, and what it shows is allowed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.support.markdown import ROOT, broken_links

from pypto_serving_router.config.load import parse_fleet

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "bench/**/*.md") for path in ROOT.glob(pattern)
)
JSON = re.compile(r"^( *)```json[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def by_path(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=by_path)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Pages and headings that a page links to exist (spec 9)."""
    assert broken_links(page) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    """The check of links sees a missing page and a missing heading, and not what is within a block (spec 9)."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`: c\n[x](#a-b-c) [x](page.md#none) [x](none.md) [x](https://h/)\n```\n[x](also-none.md)\n```\n"
    )

    assert broken_links(page) == ["page.md#none", "none.md"]


SHOWN = [
    pytest.param(text, id=f"{by_path(page)}-{number}")
    for page in PAGES
    for number, (_, text) in enumerate(JSON.findall(page.read_text()))
    if '"hosts"' in text or '"replicas": [' in text
]


@pytest.mark.parametrize("text", SHOWN)
def test_every_fleet_file_shown_is_one(text: str) -> None:
    """What a page shows as a fleet file is accepted as it stands (spec 2.1)."""
    parse_fleet(text.encode(), source="a page")
