"""`retire`: drains and stops a replica, and tells how far that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pypto_serving_router.errors import RouterError, RouterRefused
from pypto_serving_router.terminal.background import Background
from pypto_serving_router.terminal.overview import ATTENTION
from pypto_serving_router.terminal.render import count, duration

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client
    from pypto_serving_router.terminal.console import Console

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at the replica."""


def run(console: Console, client: Client, *, name: str, force: bool) -> int:
    """Retire a replica; return once its stop is confirmed, or can't be."""
    began = console.now()
    asked = Background(lambda: client.retire(name, force=force))
    try:
        with console.progress() as progress:
            while not asked.answered(LOOK_EVERY):
                progress.show(f"{name}: {_stage(client, name)}", duration(console.now() - began))
    except KeyboardInterrupt:
        console.note(f"the retirement of {name} goes on in the router; `retire {name}` waits for its end again")
        raise
    except RouterRefused as refused:
        if refused.code != "stop_unconfirmed":
            raise
        console.note(str(refused))
        return ATTENTION
    console.say(f"{name} is retired: its slot is free")
    return 0


def _stage(client: Client, name: str) -> str:
    """Tell how far a retirement is."""
    try:
        rows = client.fleet()["replicas"]
    except RouterError:
        return "the router does not answer"
    row = next((row for row in rows if row["name"] == name), None)
    if row is None:
        return "its slot is being looked at"
    if row["outstanding"]:
        return f"draining, {count(row['outstanding'], 'request')} left"
    return "being stopped"
