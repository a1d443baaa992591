"""`status`: how the fleet is, as a table and as an exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pypto_serving_router.terminal import overview

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client
    from pypto_serving_router.terminal.console import Console


def run(console: Console, client: Client, *, as_json: bool) -> int:
    """Show the fleet once; return whether it is well."""
    seen = overview.look(client)
    if as_json:
        document = {"url": client.url, "health": seen.health, "fleet": seen.fleet}
        console.say(msgspec.json.format(msgspec.json.encode(document)).decode())
    else:
        now, painter = console.wall(), console.painter
        console.say(f"{client.url} {overview.head(seen, painter)[0]}", *overview.head(seen, painter)[1:], "")
        console.say(*overview.replicas(seen, painter, now), "", *overview.slots(seen, painter, now))
    return seen.status
