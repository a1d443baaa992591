"""`launch`: one more replica, and if wanted the wait until it is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from pypto_serving_router.errors import LaunchFailed, RouterError
from pypto_serving_router.telemetry.text import one_line
from pypto_serving_router.terminal.background import Background
from pypto_serving_router.terminal.render import duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pypto_serving_router.terminal.client import Client
    from pypto_serving_router.terminal.console import Console, Progress

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at the replica, and until there is something to show."""
LOG_EVERY: Final = 3.0
"""Seconds between two looks at its log, each of which is a command on its host."""


def run(console: Console, client: Client, *, slot: str | None, host: str | None, wait: bool) -> int:
    """Launch a replica; return once its start is accepted, or once it is ready.

    Raises:
        LaunchFailed: it was launched, and will not be ready.
    """
    if slot is not None and host is not None:
        raise click.UsageError("--slot: says on which host, too; --host is not allowed beside it")
    where = {key: name for key, name in (("slot", slot), ("host", host)) if name is not None}
    began = console.now()
    name = ""
    row: dict[str, Any] = {}
    asked = Background(lambda: row.update(client.launch(where)))
    try:
        with console.progress() as progress:
            while not asked.answered(LOOK_EVERY):  # what can't be launched is refused at once
                progress.show("launching a replica", "its host is being asked")
            name = row["name"]
            if wait:
                _wait(console, client, row, progress)
    except KeyboardInterrupt:
        goes_on = f"{name} goes on loading; `retire {name}` stops it" if name else "the launch may go on in the router"
        console.note(f"{goes_on}; `status` shows it")
        raise
    if wait:
        console.say(f"{name} is ready at {row['url']} after {duration(console.now() - began)}")
    else:
        console.say(f"{name} is starting at {row['url']}; `logs {name} -f` shows how it gets on")
    return 0


def _wait(console: Console, client: Client, row: dict[str, Any], progress: Progress) -> None:
    """Return once the replica is ready."""
    name, slot, began = row["name"], row["slot"], console.now()
    log_due, last_line = began, ""
    while True:
        fleet = client.fleet()
        found = next((replica for replica in fleet["replicas"] if replica["name"] == name), None)
        if found is None:
            raise LaunchFailed(slot, f"{name} is gone before it was ready{_why(fleet['capacity'], slot)}")
        if found["phase"] == "ready":
            return
        if found["phase"] == "failed":
            raise LaunchFailed(
                slot, f"{name} was ready, and does not answer any more: {one_line(found['last_error'] or '')}"
            )
        now = console.now()
        if now >= log_due:
            log_due, last_line = now + LOG_EVERY, _last_line(client, name) or last_line
        news = f"{name} is {'being stopped' if found['draining'] else 'starting'}"
        progress.show(f"{news}: {last_line}" if last_line else news, duration(now - began))
        console.sleep(LOOK_EVERY)


def _last_line(client: Client, name: str) -> str:
    """Return what the replica said last; nothing if that can't be found out now."""
    try:
        return client.log(name, 1).decode(errors="replace").strip()
    except RouterError:
        return ""


def _why(capacity: Mapping[str, Any], slot: str) -> str:
    """Tell what became of a slot whose replica is gone."""
    reserved = [f" ({entry['reason']})" for entry in capacity["unconfirmed"] if entry["slot"] == slot]
    error = one_line(capacity["last_errors"].get(slot) or "no reason is known")
    return f"{''.join(reserved)}: {error}; `logs {slot}` shows what it said"
