"""From a fleet file to a `Fleet`: what no single field can tell, defaults that follow from other fields, options.

Rules look at drafts (see `document`), so that a fault in one field hides nothing else that is wrong.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
import tempfile
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pypto_serving_router.config import checks, document
from pypto_serving_router.config.document import INVALID, Draft, Invalid, shown
from pypto_serving_router.config.model import NAME_PATTERN, Fleet, Settings, slot_name
from pypto_serving_router.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

_Key = TypeVar("_Key", bound=Hashable)

_LARGEST = 16 * 1024 * 1024
"""Bytes; a file of ten thousand hosts has a tenth of it, and a wrong path may lead to a file without an end."""


def load_fleet(path: str | Path) -> Fleet:
    """Read a fleet file.

    Raises:
        ConfigError: It can't be read or is wrong; every problem is listed.
    """
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(Problem(source, f"can't be read: {reason}")) from error
    if len(data) > _LARGEST:
        raise ConfigError(Problem(source, f"is larger than the {_LARGEST} bytes a fleet file may have"))
    fleet = parse_fleet(data, source=source)
    if problems := tuple(_unusable_authorities(fleet)):
        raise ConfigError(*problems)
    return fleet


def _unusable_authorities(fleet: Fleet) -> Iterator[Problem]:
    for index, replica in enumerate(fleet.replicas):
        try:
            if replica.ca_file is not None:
                ssl.create_default_context(cafile=replica.ca_file)
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or error
            yield Problem(f"replicas[{index}].ca_file", f"found {replica.ca_file}, which can't be used: {reason}")


def parse_fleet(data: bytes, *, source: str) -> Fleet:
    """Read the text of a fleet file; `source` is what messages call it.

    Raises:
        ConfigError: It is wrong; every problem is listed.
    """
    draft, problems = document.check(document.parse(data, source), Fleet)
    if draft is not INVALID:
        problems += _Rules().judge(draft)
        if not problems and not draft["replicas"] and not draft["hosts"]:
            problems.append(Problem("", "lists neither `replicas` nor `hosts`; at least one of either is needed"))
    if problems:
        raise ConfigError(*(Problem(problem.place or source, problem.message) for problem in problems))
    return msgspec.convert(draft, Fleet)


class _Rules:
    """The rules between fields, and the defaults that follow from other fields."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        # What may be taken only once, each with the place in the file that took it.
        self._replica_names: dict[str, str] = {}
        self._host_names: dict[str, str] = {}
        self._listeners: dict[tuple[str, int], str] = {}
        self._devices: dict[tuple[str, str | None, int], str] = {}

    def judge(self, fleet: Draft) -> list[Problem]:
        """Fill in the draft; tell what is wrong with it."""
        for place, _, replica in _entries(fleet, "replicas"):
            self._replica(replica, place)
        for place, index, host in _entries(fleet, "hosts"):
            self._host(host, place, index)
        return self.problems

    def _replica(self, replica: Draft, place: str) -> None:
        host, port = replica["host"], replica["port"]
        twice = INVALID not in (host, port) and not self._claim(
            self._listeners, [(canonical(host), port)], place, f"port {port} of {host}"
        )
        named = "name" in replica
        if not named:
            replica["name"] = self._default_name(host, port, place)
        if replica["name"] is not INVALID and (named or not twice):  # who is listed twice is refused once
            self._claim(self._replica_names, [replica["name"]], f"{place}.name", f"the name {replica['name']}")
        self._expand_home(replica, "ca_file", place)
        if replica["ca_file"] is not None and replica["scheme"] == "http":
            self._refuse(f"{place}.ca_file", "has no effect with `http`; it is allowed with `scheme` `https`")

    def _default_name(self, host: str | Invalid, port: int | Invalid, place: str) -> str | Invalid:
        if host is INVALID or port is INVALID:
            return INVALID
        name = f"{host}:{port}"
        return name if _is_name(name) else self._refuse(f"{place}.name", f"is required: {shown(name)} can't be a name")

    def _host(self, host: Draft, place: str, index: int) -> None:
        ssh = host["ssh"]
        host.setdefault("name", f"host{index}")
        host.setdefault("address", INVALID if ssh is INVALID else _default_address(ssh))
        host.setdefault("log_dir", INVALID if ssh is INVALID else _default_log_dir(ssh))
        if host["address"] is not INVALID and checks.address(host["address"]):  # only a default can be wrong here
            host["address"] = self._refuse(f"{place}.address", f"is required: {shown(ssh)} gives no address")
        if host["name"] is not INVALID:
            self._claim(self._host_names, [host["name"]], f"{place}.name", f"the name {host['name']}")
        self._expand_home(host, "identity_file", place)
        for key in ("serve_command", "launch_wrapper", "stop_command"):
            if host[key] and host[key] is not INVALID and not host[key][0]:
                self._refuse(f"{place}.{key}[0]", "is empty; the name of a program is allowed")
        if INVALID not in (host["devices"], host["devices_per_replica"]):
            self._slots(host, f"{place}.devices")

    def _slots(self, host: Draft, place: str) -> None:
        devices, size = host["devices"], host["devices_per_replica"]
        if len(devices) % size:
            self._refuse(place, f"lists {len(devices)} devices; allowed is a multiple of `devices_per_replica`, {size}")
        for index, device in enumerate(devices):
            here = f"{place}[{index}]"
            machines = [(key, host[key]) for key in ("ssh", "address") if host[key] is not INVALID]
            owners = [(key, canonical(name) if key == "address" else name, device) for key, name in machines]
            free = self._claim(self._devices, owners, here, f"device {device} of this machine")
            if free and index % size == 0:
                self._slot(host, device, here)

    def _slot(self, host: Draft, device: int, place: str) -> None:
        if host["name"] is not INVALID:
            name = slot_name(host["name"], device)
            if not _is_name(name):
                self._refuse(place, f"makes a slot name longer than 128 characters: {name}")
            if name in self._replica_names:  # between slots, host names that differ are enough
                self._refuse(place, f"the slot name {name} is already used by {self._replica_names[name]}")
        if host["port_base"] is not INVALID:
            port = host["port_base"] + device
            if port > 65535:
                self._refuse(place, f"gives port {port} (`port_base` + {device}); allowed is at most 65535")
            elif host["address"] is not INVALID:
                address = canonical(host["address"])
                self._claim(self._listeners, [(address, port)], place, f"port {port} of {host['address']}")

    def _expand_home(self, entry: Draft, key: str, place: str) -> None:
        if entry[key] is None or entry[key] is INVALID:
            return
        try:
            entry[key] = str(Path(entry[key]).expanduser())
        except RuntimeError as error:
            self._refuse(f"{place}.{key}", f"`~` can't be expanded: {error}")

    def _claim(self, taken: dict[_Key, str], keys: list[_Key], place: str, what: str) -> bool:
        """Take something that may be taken once; `keys` are its names. Tell whether it was free."""
        others = [taken[key] for key in keys if key in taken]
        if others:
            self._refuse(place, f"{what} is already used by {others[0]}")
        else:
            taken.update(dict.fromkeys(keys, place))
        return not others

    def _refuse(self, place: str, message: str) -> Invalid:
        self.problems.append(Problem(place, message))
        return INVALID


def canonical(address: str) -> str:
    """Spell an address so that two spellings of one machine are equal."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        name = address.lower().rstrip(".")
        return "127.0.0.1" if name == "localhost" else name
    return str((ip.version == 6 and ip.ipv4_mapped) or ip)


def _entries(fleet: Draft, key: str) -> Iterator[tuple[str, int, Draft]]:
    """Go through the entries that are objects: place, position, draft."""
    if fleet[key] is not INVALID:
        for index, entry in enumerate(fleet[key]):
            if entry is not INVALID:
                yield f"{key}[{index}]", index, entry


def _is_name(text: str) -> bool:
    return re.fullmatch(NAME_PATTERN, text) is not None


def _default_address(ssh: str | None) -> str:
    """Find the host in `user@host`, an alias, or `ssh://user@host:port`."""
    if ssh is None:
        return "127.0.0.1"
    host = ssh.rpartition("@")[2]
    if not ssh.startswith("ssh://"):
        return host
    authority = host.removeprefix("ssh://").partition("/")[0]
    if bracketed := re.fullmatch(r"\[(.*)\](:\d+)?", authority):
        return bracketed[1]
    return authority.partition(":")[0]


def _default_log_dir(ssh: str | None) -> str:
    """Choose a folder that another user of the machine has no reason to have made."""
    if ssh is None:
        return str(Path(tempfile.gettempdir()) / f"pypto-serving-router-{os.getuid()}")
    user = ssh.removeprefix("ssh://").rpartition("@")[0] or os.getuid()
    return f"/tmp/pypto-serving-router-{user}"  # noqa: S108 - the folder over there; slotctl checks who owns it


# --- options and file together ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What options and fleet file come to together."""

    ceiling: int
    """The most owned replicas at once."""
    initial_replicas: int
    """How many are launched at start."""
    replace_after: float
    """Seconds after which an owned replica that went unroutable counts as dead."""


def resolve(settings: Settings, fleet: Fleet) -> Plan:
    """Settle what the options leave to the fleet file.

    Raises:
        ConfigError: The options contradict the file.
    """
    slots = len(fleet.slots)
    ceiling = slots if settings.max_replicas is None else min(slots, settings.max_replicas)
    default = settings.demo or (1 if fleet.hosts else 0)
    problems = list(_self_routing(settings, fleet))
    if settings.initial_replicas is not None and settings.initial_replicas > ceiling:
        cause = "the number of slots" if ceiling == slots else "as --max-replicas says"
        message = f"found {settings.initial_replicas}; allowed is at most {ceiling}, {cause}"
        problems.append(Problem("--initial-replicas", message))
    if problems:
        raise ConfigError(*problems)
    return Plan(
        ceiling=ceiling,
        initial_replicas=min(default, ceiling) if settings.initial_replicas is None else settings.initial_replicas,
        replace_after=max(settings.replace_after, 2 * settings.health_interval),
    )


def _self_routing(settings: Settings, fleet: Fleet) -> Iterator[Problem]:
    """Find replicas at the address the router itself is to listen on."""
    own = canonical(settings.host)
    everywhere = own in ("0.0.0.0", "::")  # noqa: S104 - a comparison
    replicas = [(replica.name, replica.host, replica.port) for replica in fleet.replicas]
    replicas += [(slot.id, slot.address, slot.port) for slot in fleet.slots]
    for name, host, port in replicas:
        address = canonical(host)
        if port == settings.port and (address == own or (everywhere and address in ("127.0.0.1", "::1"))):
            yield Problem("--port", f"found {port}, where the replica {name} is; another one is allowed")
