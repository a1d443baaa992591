"""The page about the commands that ask a running router."""

from __future__ import annotations

import click

from pypto_serving_router import cli
from pypto_serving_router.terminal.commands import COMMANDS, DEFAULT_URL, INTERRUPTED, TOKEN_VARIABLE, URL_VARIABLE


def commands() -> str:
    """Each command with its parameters."""
    return f"""# Commands

<!-- Generated from src/pypto_serving_router/terminal/commands.py. -->

With a command, `{cli.PROGRAM}` asks a router that runs.
[How to use them](../how-to/terminal.md).

Every command takes `--url URL`: where the router is, by default `{DEFAULT_URL}`, or what `{URL_VARIABLE}` says.
The admin token, if the router wants one, is taken from `{TOKEN_VARIABLE}` in the environment, and from nowhere else.

{"".join(map(_command, COMMANDS))}## Exit statuses

| Status | Meaning |
|---|---|
| 0 | Done. Of `status`, and of `top` without a terminal: all is well. |
| 1 | The router can't be asked, or refused; or what was asked for has failed. |
| 2 | Wrong usage. |
| 3 | Of `retire`: the slot could not be confirmed to be free. Of `status` and `top`: somebody is needed. |
| 4 | Of `status` and `top`: no replica is routable. |
| {INTERRUPTED} | Ended by Ctrl-C. What the router was asked to do goes on. |

Results go to stdout; progress and errors to stderr, an error in one line.
Colours and lines that are written over are for terminals only; `NO_COLOR` turns colours off.
"""


def _command(command: click.Command) -> str:
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    names = "".join(
        f" {param.human_readable_name}" if param.required else f" [{param.human_readable_name}]" for param in arguments
    )
    shared = ("url", "help")
    options = [param for param in command.params if isinstance(param, click.Option) and param.name not in shared]
    table = "".join(["| Option | Meaning |\n", "|---|---|\n", *map(_row, options)]) + "\n" if options else ""
    return f"## {command.name}\n\n```text\n{cli.PROGRAM} {command.name}{names}\n```\n\n{_paragraphs(command)}\n{table}"


def _paragraphs(command: click.Command) -> str:
    paragraphs = (command.help or "").split("\n\n")
    return "".join(f"{' '.join(paragraph.split())}\n" for paragraph in paragraphs)


def _row(option: click.Option) -> str:
    metavar = f" {option.metavar}" if option.metavar else ""
    names = ", ".join(f"`{name}{metavar}`" for name in option.opts)
    default = f" {option.default:g} unless given." if isinstance(option.default, int | float) and metavar else ""
    return f"| {names} | {option.help}{default} |\n"
