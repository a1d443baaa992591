"""Who may see and change the fleet."""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from pypto_serving_router.core.answer import error

if TYPE_CHECKING:
    from pypto_serving_router.core.answer import Answer
    from pypto_serving_router.core.head import RequestHead

_DEFAULT_PORTS: Final = {b"http": b":80", b"https": b":443"}
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="pypto-serving-router"'}


def refusal(head: RequestHead, token: bytes | None) -> Answer | None:
    """Return why a request may not see or change the fleet, or None if it may (spec 6.6).

    A browser says what page a request comes from: other sites' pages are kept out, token or not, because a browser
    inside a trusted network runs the code of pages outside it.
    """
    if is_cross_site(head):
        return error(403, "cross_site", "this is a request from another site's page")
    if token is not None and not _bears(head, token):
        return error(401, "unauthorized", "the router's admin token is needed", headers=_CHALLENGE)
    return None


def is_cross_site(head: RequestHead) -> bool:
    """Tell whether a browser made the request for a page that did not come from this router."""
    site = head.field(b"sec-fetch-site")
    if site is not None and site.lower() not in (b"same-origin", b"none"):
        return True
    origin = head.field(b"origin")
    if origin is None:
        return False
    scheme, _, authority = origin.lower().partition(b"://")
    default = _DEFAULT_PORTS.get(scheme)
    return (
        default is None
        or head.host is None
        or authority.removesuffix(default) != head.host.lower().removesuffix(default)
    )


def _bears(head: RequestHead, token: bytes) -> bool:
    scheme, _, given = (head.field(b"authorization") or b"").partition(b" ")
    return scheme.lower() == b"bearer" and compare_digest(given.strip(b" "), token)
