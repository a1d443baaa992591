"""How the site is made from pages that are written to be read in the repository, too: hooks for MkDocs.

- The navigation follows the folders, so no page can be forgotten in it.
- A link to a file outside the documentation becomes the file's name.
- A diagram of states becomes a table, as the program that would draw it is on another site.
- `console norun` is for the test that runs the commands, not for readers.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

SECTIONS: Final = {"How to": "how-to", "Reference": "reference", "Explanation": "explanation"}

_LINK: Final = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
_DIAGRAM: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CHANGE: Final = re.compile(r"^ *(\S+) --> (\S+): (.*)$", re.MULTILINE)


def on_config(config: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """List every page: the ones at the top first, then the folders."""
    docs = Path(config["docs_dir"])
    sections = [
        {title: [f"{folder}/{page.name}" for page in sorted((docs / folder).glob("*.md"))]}
        for title, folder in SECTIONS.items()
    ]
    config["nav"] = ["index.md", "tutorial.md", *sections, "architecture.md"]
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn a page of the repository into one of the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def stay_inside(link: re.Match[str]) -> str:
        leaves = posixpath.normpath(posixpath.join(folder, link[2])).startswith("../")
        return f"{link[1]} (`{link[2].replace('../', '')}` in the repository)" if leaves else link[0]

    markdown = _DIAGRAM.sub(lambda block: _table(block[1]), markdown)
    return _LINK.sub(stay_inside, markdown).replace("```console norun\n", "```console\n")


def _table(diagram: str) -> str:
    rows = [f"| `{before}` | `{after}` | {events} |" for before, after, events in _CHANGE.findall(diagram)]
    return "\n".join(["| From | To | On |", "|---|---|---|", *rows])
