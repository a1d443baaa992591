"""The exact command, environment and log file of one slot: what a launch runs, before it is decided how to run it."""

from __future__ import annotations

import ipaddress
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pypto_serving_router.config import template

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pypto_serving_router.config.model import HostSpec, SlotSpec


@dataclass(frozen=True, slots=True)
class SlotCommand:
    """What to run for one slot on its host, every placeholder expanded."""

    argv: tuple[str, ...]
    """The program and its arguments; with a `launch_wrapper`, the wrapper's, whose last one is the serving command
    quoted for a shell."""
    env: Mapping[str, str]
    """What is added to the environment."""
    workdir: str | None
    """The folder to start in."""
    log_path: str
    """Where output is appended, on the slot's host."""
    stop_argv: tuple[str, ...] | None
    """What stops the replica, instead of signals to its processes."""


def slot_command(slot: SlotSpec) -> SlotCommand:
    """Tell what to run for a slot."""
    host = slot.host
    values = _values(slot)

    def expand(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(template.expand(text, values) for text in texts)

    whole = any("model" in template.names(text) for text in host.serve_command)
    options = () if whole else _serving_options(slot)
    serving = (*expand(host.serve_command), *options, *expand(host.serve_args))
    return SlotCommand(
        argv=(*expand(host.launch_wrapper), shlex.join(serving)) if host.launch_wrapper else serving,
        env={name: template.expand(value, values) for name, value in host.env.items()},
        workdir=host.workdir,
        log_path=f"{template.expand(host.log_dir, values).rstrip('/')}/{slot.id}.log",
        stop_argv=expand(host.stop_command) if host.stop_command else None,
    )


def _values(slot: SlotSpec) -> Mapping[str, str]:
    """Tell what each of `template.PLACEHOLDERS` stands for in this slot."""
    return {
        "device": str(slot.devices[0]),
        "devices": ",".join(map(str, slot.devices)),
        "port": str(slot.port),
        "host": slot.host.name,
        "model": slot.host.model,
        "slot": slot.id,
    }


def _serving_options(slot: SlotSpec) -> list[str]:
    """Build the options of pypto-serving that the slot decides."""
    host = slot.host
    options = ["--model", host.model, "--devices", ",".join(map(str, slot.devices))]
    if not any(argument == "--host" or argument.startswith("--host=") for argument in host.serve_args):
        options += ["--host", _bind_address(host)]
    options += ["--port", str(slot.port)]
    if host.served_model_name is not None:
        options += ["--served-model-name", host.served_model_name]
    return [*options, "--show-startup-logs"]


def _bind_address(host: HostSpec) -> str:
    """Choose the narrowest address at which the router still reaches the replica."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host.address == "localhost" else host.address)
    except ValueError:
        return "0.0.0.0"  # noqa: S104 - the router reaches it from another machine
    if host.ssh is None and address.is_loopback:
        return str(address)
    return "::" if address.version == 6 else "0.0.0.0"  # noqa: S104 - as above
