"""The files of the dashboard, ready to be given out."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Final

from pypto_serving_router.core.answer import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILES: Final = {
    b"": ("index.html", "text/html; charset=utf-8"),
    b"dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    b"dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    b"api.js": ("api.js", "text/javascript; charset=utf-8"),
    b"decisions.js": ("decisions.js", "text/javascript; charset=utf-8"),
    b"history.js": ("history.js", "text/javascript; charset=utf-8"),
    b"view.js": ("view.js", "text/javascript; charset=utf-8"),
    b"icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Path (without its slash), file and content type."""

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
"""The page needs nothing but its own files, and nobody may frame its buttons."""


def load() -> Mapping[bytes, Answer]:
    """Read the files, by path."""
    folder = resources.files("pypto_serving_router.admin").joinpath("dashboard")
    return {
        path: Answer(200, folder.joinpath(file).read_bytes(), content_type, _HEADERS)
        for path, (file, content_type) in _FILES.items()
    }
