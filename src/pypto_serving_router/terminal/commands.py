"""The commands that ask a running router, as the command line has them.

What a command does is the `run` of the module of its name, which is imported when the command is: whoever starts a
router does not wait for it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from click.shell_completion import CompletionItem

from pypto_serving_router.errors import RouterError

if TYPE_CHECKING:
    from pypto_serving_router.terminal.client import Client

DEFAULT_URL: Final = "http://127.0.0.1:8000"
URL_VARIABLE: Final = "PYPTO_ROUTER_URL"
TOKEN_VARIABLE: Final = "PYPTO_ROUTER_ADMIN_TOKEN"  # noqa: S105 - the name of a variable

INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM

_PACKAGE: Final = "pypto_serving_router.terminal"
_EPILOG: Final = f"The admin token, if the router wants one, is taken from {TOKEN_VARIABLE} in the environment."


def _option(*names: str, **more: Any) -> click.Option:
    """Make an option that is not taken from a variable, which may be one of the router's own options."""
    return click.Option(names, allow_from_autoenv=False, **more)


def _command(name: str, *params: click.Parameter, help: str) -> click.Command:  # noqa: A002 - as click calls it
    where = _option(
        "--url",
        envvar=URL_VARIABLE,
        show_envvar=True,
        default=DEFAULT_URL,
        show_default=True,
        metavar="URL",
        callback=_judge_url,
        help="Where the router is.",
    )
    ask = click.pass_context(partial(_ask, name))
    command = click.Command(
        name, callback=ask, params=[*params, where], help=help, epilog=_EPILOG, add_help_option=False
    )
    return click.help_option("--help", allow_from_autoenv=False)(command)


def _ask(name: str, context: click.Context, /, *, url: str, **given: Any) -> int:
    """Do what a command is for; return its exit status."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        run = import_module(f"{_PACKAGE}.{name}").run
        console = import_module(f"{_PACKAGE}.console").Console(
            out=sys.stdout,
            err=sys.stderr,
            now=time.monotonic,
            wall=time.time,
            sleep=time.sleep,
            program=context.find_root().command_path,
        )
        status: int = run(console, _client(url), **given)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    return status


def _client(url: str) -> Client:
    # A token that no header can carry has been refused already: it is an option of the router's, too.
    client: Client = import_module(f"{_PACKAGE}.client").Client(url, os.environ.get(TOKEN_VARIABLE) or None)
    return client


def _terminate(*_: object) -> NoReturn:
    """Leave as by Ctrl-C, so that a terminal is put in order."""
    raise SystemExit(TERMINATED)


def _judge_url(_context: click.Context, _option: click.Parameter, url: str) -> str:
    if problem := import_module(f"{_PACKAGE}.client").trouble(url):
        raise click.BadParameter(f"found {url!a}; {problem}")
    return url


def _names(context: click.Context, _argument: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete the name of a launched replica, or of a slot with something to settle; nothing where nobody answers."""
    try:
        fleet = _client(context.params.get("url") or DEFAULT_URL).fleet()
    except RouterError:
        return []
    capacity = fleet["capacity"]
    slots = [row["slot"] for row in fleet["replicas"] if row["owned"]]
    slots += [entry["slot"] for kind in ("cooling", "unconfirmed", "abandoned") for entry in capacity[kind]]
    return [CompletionItem(slot) for slot in slots if slot.startswith(begun)]


COMMANDS: Final = (
    _command(
        "status",
        _option("--json", "as_json", is_flag=True, help="Print what the router says, as one JSON object."),
        help="""Show the replicas and the slots.

        The exit status is 0 if all is well; 3 if a replica has failed, or a slot is unconfirmed or abandoned; 4 if no
        replica is routable; 1 if the router can't be asked.""",
    ),
    _command(
        "launch",
        _option("--slot", metavar="NAME", help="Launch on this slot."),
        _option("--host", metavar="NAME", help="Launch on the next free slot of this host."),
        _option("--wait", is_flag=True, help="Wait until the replica is ready, and show how it gets on."),
        help="Launch a replica, on the next free slot unless one is chosen.",
    ),
    _command(
        "retire",
        click.Argument(["name"], shell_complete=_names),
        _option("--force", is_flag=True, help="Free an unconfirmed slot, on your word that nothing holds its devices."),
        help="""Drain a replica and stop it, or settle what is wrong with a slot.

        The exit status is 3 if it can't be confirmed that the slot is free.""",
    ),
    _command(
        "logs",
        click.Argument(["name"], shell_complete=_names),
        _option("--follow", "-f", is_flag=True, help="Go on with what is added to it."),
        _option(
            "--lines",
            type=click.IntRange(1, 10_000),
            default=100,
            show_default=True,
            metavar="N",
            help="How many of the last lines to show.",
        ),
        help="Show the log of a launched replica, or of the last one on a slot.",
    ),
    _command(
        "top",
        _option(
            "--interval",
            type=click.FloatRange(0.1, 3600),
            default=2.0,
            show_default=True,
            metavar="S",
            help="Seconds between two looks.",
        ),
        help="""Show the fleet live, until Ctrl-C.

        Once, if the output is not a terminal; the exit status is that of `status` then.""",
    ),
    _command(
        "explain",
        click.Argument(["session"], required=False),
        _option(
            "--last",
            type=click.IntRange(1, 100),
            default=20,
            show_default=True,
            metavar="N",
            help="How many of the last choices to tell.",
        ),
        help="""Tell where a session is, and why.

        Without SESSION, the last choices of a replica for whatever sessions.""",
    ),
)
