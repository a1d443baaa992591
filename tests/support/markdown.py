"""What the pages of the documentation are made of: blocks, headings, links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

_FENCES: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
_HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return what the headings of a page are called in links, as GitHub and the documentation's site name them."""
    titles = _HEADING.findall(_FENCES.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def leads_somewhere(link: str, folder: Path) -> bool:
    """Whether a link to a file of the project, and to a heading in it, leads somewhere from a folder."""
    name, _, anchor = link.partition("#")
    target = (folder / name).resolve()
    return target.exists() and (not anchor or anchor in anchors(target))


def broken_links(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere; those to other sites are not followed."""
    links = _LINK.findall(_FENCES.sub("", page.read_text()))
    return [
        link
        for link in links
        if "://" not in link and not leads_somewhere(page.name + link if link.startswith("#") else link, page.parent)
    ]
