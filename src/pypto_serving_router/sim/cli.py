"""`pypto-serving-sim`: pypto-serving's command line in front of a simulation."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, TypeVar, get_args

import click
import msgspec
import uvloop

from pypto_serving_router.sim.cache import PrefixCache
from pypto_serving_router.sim.engine import Engine
from pypto_serving_router.sim.faults import Faults
from pypto_serving_router.sim.replica import Identity, Replica
from pypto_serving_router.sim.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

Struct = TypeVar("Struct", bound=msgspec.Struct)
FAULT_PREFIX = "sim-"


def options_of(struct: type[msgspec.Struct], *, prefix: str = "") -> list[click.Option]:
    """Return an option for each field of a struct; the struct itself checks their values."""
    options = []
    for field in msgspec.structs.fields(struct):
        metas = (extra for extra in get_args(field.type) if isinstance(extra, msgspec.Meta))
        description = next(meta.description for meta in metas if meta.description)
        flag = prefix + field.name.replace("_", "-")
        switch = isinstance(field.default, bool)
        default = "" if field.default in (None, False) else f" [{field.default}]"
        options.append(
            click.Option(
                [f"--{flag}/--no-{flag}" if field.default is True else f"--{flag}", field.name],
                is_flag=switch,
                default=None,  # tells one that was not given
                metavar=None if switch else "VALUE",
                help=f"{description}{' [required]' if field.required else default}",
            )
        )
    return options


def build(struct: type[Struct], given: Mapping[str, object], *, prefix: str = "") -> Struct:
    """Make the struct of the options given.

    Raises:
        click.UsageError: a value is missing, or is not what its field allows.
    """
    for field in msgspec.structs.fields(struct):
        if field.required and given[field.name] is None:
            raise click.UsageError(f"--{prefix}{field.name.replace('_', '-')}: missing")
    values = {name: given[name] for name in struct.__struct_fields__ if given[name] is not None}
    try:
        return msgspec.convert(values, struct, strict=False)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        raise click.UsageError(f"--{prefix}{place.rstrip('`').replace('_', '-')}: {what}") from None


def start(engine_flags: tuple[str, ...], **given: object) -> None:
    """Stand in for pypto-serving where no NPU is at hand: a SIMULATION, whose answers mean nothing.

    Takes pypto-serving's own options; those of the engine that mean nothing here are ignored.
    """
    unknown = [flag for flag in engine_flags if flag.startswith("--sim-")]
    if unknown:
        raise click.UsageError(f"no such option: {unknown[0]}")
    settings = build(Settings, given)
    faults = build(Faults, given, prefix=FAULT_PREFIX)
    raise SystemExit(uvloop.run(run(settings, faults, engine_flags)))


command = click.Command(
    "pypto-serving-sim",
    callback=start,
    help=start.__doc__,
    params=[
        *options_of(Settings),
        *options_of(Faults, prefix=FAULT_PREFIX),
        click.Argument(["engine_flags"], nargs=-1, type=click.UNPROCESSED),
    ],
    context_settings={"ignore_unknown_options": True, "max_content_width": 110},
)


async def run(settings: Settings, faults: Faults, engine_flags: tuple[str, ...]) -> int:
    """Load, listen, serve until told to stop; return the exit status."""
    loop = asyncio.get_running_loop()
    replica = make_replica(settings, faults)
    stop: asyncio.Future[int] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, take_signal, number, replica, stop)

    if settings.show_startup_logs:
        log(f"loading {settings.model} onto devices {settings.devices}, in {settings.sim_load_delay:g} s")
        if engine_flags:
            log(f"ignoring {' '.join(engine_flags)}")
    await asyncio.wait([stop], timeout=settings.sim_load_delay)
    if stop.done():
        return stop.result()
    if settings.sim_fail_load is not None:
        log(f"the load failed, as it was told to; exiting with status {settings.sim_fail_load}")
        return settings.sim_fail_load

    host = settings.host
    try:
        server = await loop.create_server(replica.connection, host, settings.port, backlog=1024)
    except OSError as error:
        log(f"cannot listen on {host}:{settings.port}: {error.strerror}")
        return 1
    port = server.sockets[0].getsockname()[1]
    click.echo(f"pypto-serving-sim listening on http://{f'[{host}]' if ':' in host else host}:{port} (simulation)")
    if settings.sim_exit_after is not None:
        loop.call_later(settings.sim_exit_after, give_up, stop)
    status = await stop

    server.close()
    answering = [task for connection in list(replica.connections) if (task := connection.stop())]
    if answering:
        await asyncio.wait(answering, timeout=settings.sim_stop_grace)
    await asyncio.sleep(0)  # the last bytes leave
    return status


def make_replica(settings: Settings, faults: Faults) -> Replica:
    """Put the parts together."""
    build_dir = os.environ.get("PYPTO_PROG_BUILD_DIR")
    if build_dir is not None:
        log(f"PYPTO_PROG_BUILD_DIR is {build_dir}; nothing is built in a simulation")
    identity = Identity(
        model=settings.model_name,
        devices=settings.devices,
        pid=os.getpid(),
        build_dir=build_dir,
        escaped_pid=None if settings.sim_escape is None else escape(settings.sim_escape),
    )
    engine = Engine(
        cache=PrefixCache(
            block_size=settings.block_size,
            capacity=settings.sim_cache_blocks if settings.enable_prefix_caching else 0,
        ),
        seats=settings.max_num_seqs,
        prefill_rate=settings.sim_prefill_rate,
        decode_rate=settings.sim_decode_rate,
    )
    return Replica(identity, engine, faults)


def take_signal(number: int, replica: Replica, stop: asyncio.Future[int]) -> None:
    """Begin an orderly end; the second signal ends it at once."""
    name = signal.Signals(number).name
    if replica.faults.ignore_sigterm:
        log(f"{name} is ignored, as it was told to")
    elif stop.done():
        os._exit(128 + number)
    else:
        log(f"stopping on {name}")
        stop.set_result(0)


def give_up(stop: asyncio.Future[int]) -> None:
    """End as an engine does whose worker has died."""
    log("the worker died, as it was told to; exiting with status 1")
    if not stop.done():
        stop.set_result(1)


def escape(seconds: int) -> int:
    """Start a child that no signal to our process group reaches; return its pid."""
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(["sleep", str(seconds)], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    log(f"started process {child.pid} in a session of its own; it will outlive this one")
    return child.pid


def log(text: str) -> None:
    """Write one line of the log, which is stderr; stdout has the address alone."""
    click.echo(f"[simulation] {text}", err=True)


def open_missing_streams() -> None:
    """Open what this process was started without: else its first pipe or socket would be taken for stdin or stderr.

    The router does the same with a copy of its own: nothing is shared with it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(file, True)  # noqa: FBT003 - has no name
            setattr(sys, name, os.fdopen(file, mode))


def main() -> None:
    """Run the command."""
    open_missing_streams()
    command(prog_name=command.name)
