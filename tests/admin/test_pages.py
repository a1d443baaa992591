"""The dashboard's files as they are given out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.admin.conftest import Router

SCRIPTS = [f"/{name}.js" for name in ("dashboard", "api", "decisions", "history", "view")]
FILES = {
    "/": "text/html",
    "/dashboard.css": "text/css",
    "/icon.svg": "image/svg",
    **dict.fromkeys(SCRIPTS, "text/javascript"),
}


@pytest.mark.parametrize(("target", "kind"), FILES.items())
def test_files(router: Router, target: str, kind: str) -> None:
    """The page and its files are served by the router itself (spec 6.7)."""
    answer = router.call("GET", target)

    assert answer.status == 200
    assert answer.content_type.startswith(kind)
    assert answer.body


def test_policy(router: Router) -> None:
    """The page may load only its own files, run no inline script, and be framed by nobody (spec 6.7)."""
    for target in FILES:
        policy = router.call("GET", target).headers["Content-Security-Policy"].split("; ")

        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy)
        assert not any("unsafe" in rule or "*" in rule or "http" in rule for rule in policy)


def test_self_contained(router: Router) -> None:
    """The page needs no network beyond the router, has nothing inline, and is small (spec 9)."""
    bodies = {target: router.call("GET", target).body.decode() for target in FILES}

    assert sum(len(body.encode()) for body in bodies.values()) < 60_000
    page = bodies["/"]
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+\s*=|\sstyle\s*=|javascript:", page, re.IGNORECASE)
    for target, body in bodies.items():
        links = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)|url\(\s*["']?([^"')]*)|https?://[^\s"')<]+""", body)
        for link in links if target != "/icon.svg" else []:
            assert "//" not in "".join(link), (target, link)


def test_linked_files_exist(router: Router) -> None:
    """Whatever the page refers to is there (spec 6.7)."""
    page = router.call("GET", "/").body.decode()
    imports = "".join(router.call("GET", target).body.decode() for target in SCRIPTS)
    links = re.findall(r'(?:src|href)="([^"#]+)"', page) + re.findall(r' from "([^"]+)"', imports)
    for link in links:
        assert router.call("GET", f"/{link.removeprefix('./')}").status in (200, 503), link


def test_text_is_inserted_as_text(router: Router) -> None:
    """Nothing the page shows can become markup (spec 6.7)."""
    for target in SCRIPTS:
        script = router.call("GET", target).body.decode()

        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
