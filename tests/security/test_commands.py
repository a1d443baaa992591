"""Every text of a fleet file, on its way to a shell on another machine and to the ssh client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import stat
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.slots import all_ended

from pypto_serving_router.config.load import parse_fleet
from pypto_serving_router.core.slot import Gone, Launched, Unknown
from pypto_serving_router.errors import ConfigError, TransportError
from pypto_serving_router.launch.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pypto_serving_router.config.model import SlotSpec

FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    **{
        field: lambda text, field=field: {field: text}  # type: ignore[misc] # bound now
        for field in ("ssh", "address", "identity_file", "model", "served_model_name", "workdir", "log_dir", "name")
    },
    "env": lambda text: {"env": {"A": text}},
    "env name": lambda text: {"env": {text: "a"}},
    "serve_args": lambda text: {"serve_args": [text]},
    "serve_command": lambda text: {"serve_command": ["true", text]},
    "launch_wrapper": lambda text: {"launch_wrapper": ["sh", "-c", 'eval "$2"', "broker", text]},
    "stop_command": lambda text: {"stop_command": ["true", text]},
}
"""A host's fields, with a text in one of them."""


def payloads(canary: Path) -> list[str]:
    """Texts that leave a file behind if a shell, or ssh, takes them for more than text."""
    touch = f"touch {canary}"
    return [
        f"$({touch})",
        f"`{touch}`",
        f"; {touch};",
        f"' ; {touch} ; '",
        f'" ; {touch} ; "',
        f"\n{touch}\n",
        f"| {touch} && {touch}",
        f"-oProxyCommand={touch}",
        f"-oPermitLocalCommand=yes\t-oLocalCommand={touch}",
        f"%h {{slot}} $({touch})",
    ]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put an `ssh` in place that notes its arguments and does with the last one what sshd does; give its notes."""
    notes = tmp_path / "ssh.notes"
    script = tmp_path / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\nprintf \'%s\\0\' "$@" END >>{notes}\nfor command; do :; done\nexec /bin/sh -c "$command"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    with all_ended():
        yield notes


def host(folder: Path, *fields: dict[str, Any]) -> dict[str, Any]:
    """Return a host behind ssh, with these fields."""
    entry: dict[str, Any] = {
        "name": "far",
        "ssh": "user@far",
        "address": "127.0.0.1",
        "devices": [0],
        "port_base": 9,
        "model": "/m",
        "serve_command": ["true"],
        "log_dir": str(folder / "logs"),
    }
    for one in fields:
        entry |= one
    return entry


def accepted(folder: Path, *fields: dict[str, Any]) -> SlotSpec | None:
    """Return the slot of such a host, if the file is not refused."""
    document = json.dumps({"hosts": [host(folder, *fields)]}).encode()
    try:
        (slot,) = parse_fleet(document, source="fleet.json").slots
    except ConfigError:
        return None
    return slot


@pytest.mark.parametrize("number", range(9))
def test_no_text_is_taken_for_a_command_or_an_option(number: int, client: Path, tmp_path: Path) -> None:
    """Nothing is interpolated into a shell unquoted, and nothing reaches ssh as an option (spec 7.3)."""
    canary = tmp_path / "canary"
    text = payloads(canary)[number]
    taken = {name: make(text) for name, make in FIELDS.items() if accepted(tmp_path, make(text))}
    assert {"env", "serve_args", "serve_command"} <= set(taken)
    for wrapped in (True, False):
        fields = [field for name, field in taken.items() if wrapped or name != "launch_wrapper"]
        slot = accepted(tmp_path, *fields)
        assert slot
        asyncio.run(_use(Launcher([slot], patience=20), slot.id, 1 + wrapped))
        assert not canary.exists(), f"{text!r} was run, from one of {list(taken)}"
    for call in client.read_bytes().split(b"END\0")[:-1]:
        words = call.rstrip(b"\0").split(b"\0")
        end = words.index(b"--")
        destination, command = words[end + 1 :]
        assert not destination.startswith(b"-")
        assert all(word.startswith(b"-o") for word in words[:end])
        options = dict(word[2:].split(b"=", 1) for word in words[:end])
        assert not {b"ProxyCommand", b"LocalCommand"} & set(options)
        assert (options[b"RemoteCommand"], options[b"PermitLocalCommand"]) == (b"none", b"no")
        assert shlex.split(command.decode())[-4:-1] == ["-", "slotctl", shlex.split(command.decode())[-2]]


async def _use(launcher: Launcher, slot: Any, generation: int) -> None:
    """Do to a slot all that can be done."""
    started = await launcher.start(slot, generation)
    assert isinstance(started, Launched | Gone | Unknown)
    handle = started.handle if isinstance(started, Launched) else None
    await launcher.stop(slot, generation, handle, grace=0.2)
    with contextlib.suppress(TransportError):
        await launcher.log(slot, lines=10)


@pytest.mark.parametrize("field", ["ssh", "address", "identity_file"])
@pytest.mark.parametrize("text", ["-oProxyCommand=id", "-v", "--", "-F/tmp/x"])
def test_no_option_is_a_destination(field: str, text: str, tmp_path: Path) -> None:
    """What starts like an option is refused when the file is read, in words that name the field (spec 2.6, 1.5)."""
    document = json.dumps({"hosts": [host(tmp_path, {field: text})]}).encode()

    with pytest.raises(ConfigError) as refused:
        parse_fleet(document, source="fleet.json")

    assert f"hosts[0].{field}" in str(refused.value)
