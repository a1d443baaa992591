"""The documentation's site."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.markdown import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOCS = ROOT / "docs"
HOOKS = runpy.run_path(str(DOCS / "pages/site.py"))

_FETCHED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|"""
                      r"""<link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preload|preconnect))[^>]*\bhref=["']?(?:https?:)?//|"""
                      r"""@import|url\(["']?(?:https?:)?//""")  # fmt: skip


def page_of_site(markdown: str, path: str) -> str:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=path))
    text: str = HOOKS["on_page_markdown"](markdown, page=page, config={}, files=[])
    return text


def test_every_page_is_in_the_navigation() -> None:
    """A page cannot be forgotten, and none is listed that is not there (spec 9)."""
    nav: list[Any] = HOOKS["on_config"]({"docs_dir": str(DOCS)})["nav"]
    flat = [page for entry in nav for page in (next(iter(entry.values())) if isinstance(entry, dict) else [entry])]

    assert sorted(flat) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize(
    ("markdown", "path", "shown"),
    [
        ("[x](../../bench/README.md)", "explanation/a.md", "x (`bench/README.md` in the repository)"),
        ("[x](../README.md)", "a.md", "x (`README.md` in the repository)"),
        ("[x](../architecture.md#b)", "explanation/a.md", "[x](../architecture.md#b)"),
        ("```console norun\n$ a\n```", "a.md", "```console\n$ a\n```"),
        (
            "```mermaid\nstateDiagram-v2\n    [*] --> free\n    free --> ready: A, B\n```\n",
            "a.md",
            "| From | To | On |\n|---|---|---|\n| `free` | `ready` | A, B |\n",
        ),
    ],
)
def test_pages_of_the_repository_become_pages_of_the_site(markdown: str, path: str, shown: str) -> None:
    """What only the repository can show is turned into what a site can show (spec 9)."""
    assert page_of_site(markdown, path) == shown


@pytest.mark.slow
def test_the_site_is_built_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    """No warning, every page, and nothing that a browser would fetch from another site (spec 9)."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for page in DOCS.rglob("*.md"):
        assert (tmp_path / page.relative_to(DOCS).with_suffix(".html")).is_file()
    for file in tmp_path.rglob("*"):
        if file.suffix in (".html", ".css"):
            assert not _FETCHED.search(file.read_text()), file
        assert file.suffix != ".py", file
