"""Who may see and change the fleet."""

from __future__ import annotations

import pytest

from pypto_serving_router.admin.access import is_cross_site
from pypto_serving_router.core.head import parse_request


@pytest.mark.parametrize(
    ("host", "origin", "site", "cross"),
    [
        # no browser, or one that was told the address
        ("router:8000", None, None, False),
        ("router:8000", None, "none", False),
        # the router's own page
        ("router:8000", "http://router:8000", "same-origin", False),
        ("ROUTER:8000", "http://router:8000", None, False),
        ("router", "http://router", None, False),
        ("router:80", "http://router", None, False),
        ("router", "https://router", "same-origin", False),  # behind a proxy that speaks TLS
        ("router:443", "https://router", None, False),
        ("[::1]:8000", "http://[::1]:8000", None, False),
        # somebody else's page
        ("router:8000", "http://evil.example", None, True),
        ("router:8000", "http://router:8001", None, True),
        ("router:8000", "http://router", None, True),
        ("router:8000", "http://router:8000.evil.example", None, True),
        ("router:8000", "null", None, True),
        ("router:8000", "", None, True),
        ("router:8000", "ftp://router:8000", None, True),
        ("router:8000", None, "cross-site", True),
        ("router:8000", None, "same-site", True),
        ("router:8000", None, "", True),
        ("router:8000", "http://router:8000", "cross-site", True),
        ("router:8000", "http://evil.example", "same-origin", True),
        ("router:8000", "http://router:8000", "SAME-ORIGIN", False),
    ],
)
def test_cross_site(host: str, origin: str | None, site: str | None, cross: bool) -> None:
    """What a browser says of where a request comes from is believed, and both fields must agree (spec 6.6)."""
    lines = [f"Host: {host}"]
    lines += [] if origin is None else [f"Origin: {origin}"]
    lines += [] if site is None else [f"Sec-Fetch-Site: {site}"]
    head = parse_request("\r\n".join(["POST /replicas HTTP/1.1", *lines]).encode())

    assert is_cross_site(head) is cross


def test_no_host() -> None:
    """A request that says where it comes from and not where it goes is not let in (spec 6.6)."""
    assert is_cross_site(parse_request(b"GET /replicas HTTP/1.0\r\nOrigin: http://router"))
