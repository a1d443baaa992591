"""The command line: options, `--check`, `--print-schema`, exit statuses; commands that ask a running router.

Options are made from `config.model.Settings`; there is no second list of them here. The commands are in `terminal`.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
import msgspec
from click.core import ParameterSource
from msgspec import inspect

from pypto_serving_router import __version__
from pypto_serving_router.config import document
from pypto_serving_router.config.demo import demo_fleet
from pypto_serving_router.config.load import load_fleet, resolve
from pypto_serving_router.config.model import Settings
from pypto_serving_router.config.schema import fleet_schema
from pypto_serving_router.errors import ConfigError, Problem, RouterError
from pypto_serving_router.launch.command import slot_command
from pypto_serving_router.process import is_compiled, open_missing_streams
from pypto_serving_router.terminal.commands import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pypto_serving_router.config.load import Plan
    from pypto_serving_router.config.model import Fleet, SlotSpec

PROGRAM = "pypto-serving-router"
ENVIRONMENT = "PYPTO_ROUTER"

DONE, REFUSED, USAGE = 0, 1, 2
"""Exit statuses (spec 1.4); the run itself may also end with 3."""

_HELP = """Route OpenAI-compatible requests to several serving replicas, and keep each conversation on the
replica that already holds its KV cache."""
_EPILOG = f"""Every option can be given in the environment instead, as {ENVIRONMENT}_<NAME>: {ENVIRONMENT}_SESSION_TTL
for --session-ttl. The command line wins. S stands for seconds."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit status."""
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_status(args))


def _status(args: Sequence[str] | None) -> int:
    """Run the command line; say what is wrong in one line each, never in a traceback."""
    try:
        status = command.main(args, prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        return _complain([_usage_problem(error)], USAGE)
    except click.Abort:
        return REFUSED
    except ConfigError as error:
        return _complain(error.problems, REFUSED)
    except RouterError as error:
        return _complain([error], REFUSED)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python tries stdout once more on its way out
        return _complain([error.strerror or error], REFUSED)
    return int(status or DONE)


def _complain(problems: Iterable[object], status: int) -> int:
    for problem in problems:
        click.echo(f"{PROGRAM}: {problem}", err=True)
    return status


def _usage_problem(error: click.ClickException) -> Problem:
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option):
        option = error.param.opts[0]
        source = error.ctx and error.ctx.get_parameter_source(error.param.name or "")
        if source is ParameterSource.ENVIRONMENT:
            option += f" (from {_variable(error.param.name or '')})"
        return Problem(option, error.message)
    return Problem("", error.format_message())


def _variable(option: str) -> str:
    return f"{ENVIRONMENT}_{option.upper()}"


# --- options ---------------------------------------------------------------------------------


def _reader(kind: inspect.Type, notes: document.Notes) -> Callable[[Any], Any]:
    """Make a function that reads the value of an option, and judges it as a field of the fleet file would be."""

    def value(given: Any) -> Any:
        parsed = _parse(given, kind)
        if message := document.refusal(parsed, kind, notes):
            raise click.BadParameter(message)
        return parsed

    return value


def _parse(given: Any, kind: inspect.Type) -> Any:
    """Turn text into the type it stands for; text that does not is left to be refused, a default is only cast."""
    try:
        match kind:
            case inspect.IntType():
                return int(given)
            case inspect.FloatType():
                return float(given)
            case inspect.LiteralType():
                return given.lower()
    except ValueError:
        pass
    return given


def _options() -> Iterator[click.Option]:
    """Make an option of each setting."""
    for setting in msgspec.structs.fields(Settings):
        kind, notes, _ = document.plain(inspect.type_info(setting.type))
        name = f"--{setting.name.replace('_', '-')}"
        common = {
            "default": setting.default,
            "help": notes["description"],
            "show_default": notes.get("default", True),
        }
        if isinstance(kind, inspect.BoolType):
            yield click.Option([f"{name}/--no-{name[2:]}"], **common)
            continue
        if isinstance(kind, inspect.VarTupleType):  # the option is repeated; its notes stay those of the whole
            kind, each, _ = document.plain(kind.item_type)
            notes = {**each, **notes}
            common["multiple"] = True
        metavar = "|".join(map(str, kind.values)) if isinstance(kind, inspect.LiteralType) else notes["metavar"]
        bare = {"is_flag": False, "flag_value": notes["bare"]} if "bare" in notes else {}
        yield click.Option([name], type=_reader(kind, notes), metavar=metavar, **common, **bare)
    yield click.Option(
        ["--check"],
        is_flag=True,
        help="Print the replicas, the slots and the exact command each slot would run, and exit.",
    )
    yield click.Option(["--print-schema"], is_flag=True, help="Print the JSON Schema of the fleet file, and exit.")


@click.pass_context
def _serve(ctx: click.Context, /, *, check: bool, print_schema: bool, **options: Any) -> int:
    """Do what the options ask for, unless a command follows, which does the rest."""
    if ctx.invoked_subcommand is not None:
        _refuse_own_options(ctx, ctx.invoked_subcommand)
        return DONE
    if print_schema:
        click.echo(json.dumps(fleet_schema(), indent=2))
        return DONE
    settings = _choose_fleet(ctx, Settings(**options))
    if settings.replicas is not None:
        return _with_fleet(settings, _load(settings.replicas), check=check)
    # What outlives the demo may still write its log when the folder goes.
    with tempfile.TemporaryDirectory(prefix=f"{PROGRAM}-demo-", ignore_cleanup_errors=True) as log_dir:
        return _with_fleet(settings, demo_fleet(settings.demo or 0, log_dir), check=check)


def _refuse_own_options(ctx: click.Context, name: str) -> None:
    """Refuse options before a command: they would have no effect."""
    for option in ctx.params:
        if ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            flag = f"--{option.replace('_', '-')}"
            raise click.UsageError(f"{flag}: is for a router that is to be started; `{name}` asks one that runs")


def _load(path: str) -> Fleet:
    """Read the fleet file, and name it in every problem."""
    try:
        return load_fleet(path)
    except ConfigError as error:
        raise ConfigError(*(_in_file(path, problem) for problem in error.problems)) from error


def _in_file(path: str, problem: Problem) -> Problem:
    if problem.place == path or problem.place.startswith(f"{path}:"):
        return problem
    return Problem(f"{path}: {problem.place}", problem.message)


def _choose_fleet(ctx: click.Context, settings: Settings) -> Settings:
    """Keep one of `--replicas` and `--demo`: that of the command line, if the other comes from the environment."""
    if settings.replicas is None and settings.demo is None:
        raise click.UsageError("--replicas: is missing; a fleet file is required, or --demo")
    if settings.replicas is None or settings.demo is None:
        return settings
    for kept, dropped in (("replicas", "demo"), ("demo", "replicas")):
        if ctx.get_parameter_source(kept) is not ctx.get_parameter_source(dropped) is ParameterSource.ENVIRONMENT:
            return msgspec.structs.replace(settings, **{dropped: None})
    raise click.UsageError("--demo: takes the place of --replicas; only one of the two is allowed")


def _with_fleet(settings: Settings, fleet: Fleet, *, check: bool) -> int:
    plan = resolve(settings, fleet)
    if check:
        for line in _listing(fleet, plan):
            click.echo(line)
        return DONE
    from pypto_serving_router import app  # noqa: PLC0415 - loads what --help and --check have no use for

    return app.run(settings, fleet)


command = click.Group(
    PROGRAM,
    callback=_serve,
    invoke_without_command=True,
    add_help_option=False,
    params=[*_options()],
    context_settings={"auto_envvar_prefix": ENVIRONMENT},
    options_metavar="--replicas FILE [OPTIONS]",
    subcommand_metavar="| COMMAND",
    commands=COMMANDS,
    help=_HELP,
    epilog=_EPILOG,
)
# A deployment may well have a PYPTO_ROUTER_VERSION of its own: these two are only asked for on the command line.
_BUILD: Final = "compiled" if is_compiled() else "not compiled"
click.version_option(__version__, message=f"%(prog)s %(version)s ({_BUILD})", allow_from_autoenv=False)(command)
click.help_option("--help", allow_from_autoenv=False)(command)


# --- --check ---------------------------------------------------------------------------------


def _listing(fleet: Fleet, plan: Plan) -> Iterator[str]:
    """Tell what a run would route to and launch."""
    for replica in fleet.replicas:
        yield f"replica {replica.name}"
        yield f"  url      {replica.url}"
        if replica.ca_file is not None:
            yield f"  ca_file  {replica.ca_file}"
    for slot in fleet.slots:
        yield f"slot {slot.id}"
        yield from (f"  {label:<8} {text}" for label, text in _slot_facts(slot) if text)
    yield f"static replicas: {len(fleet.replicas)}"
    yield f"slots: {len(fleet.slots)}, launched at start: {plan.initial_replicas}, at most: {plan.ceiling}"


def _slot_facts(slot: SlotSpec) -> Iterator[tuple[str, str | None]]:
    host, run = slot.host, slot_command(slot)
    yield "url", slot.url
    yield "devices", ",".join(map(str, slot.devices))
    yield "ssh", host.ssh
    yield "identity", host.identity_file
    yield "workdir", run.workdir
    yield "env", " ".join(f"{name}={shlex.quote(value)}" for name, value in run.env.items())
    yield "run", shlex.join(run.argv)
    yield "stop", shlex.join(run.stop_argv) if run.stop_argv else None
    yield "log", run.log_path
