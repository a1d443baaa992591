"""The only list of options and fleet-file fields, each documented where it stands.

The command line, the check of a fleet file, its JSON Schema and the reference pages are all made from these classes.
A `Meta` says what a value means and may be. Its `extra` holds what JSON Schema has no word for:

- `check`: a function from `checks` that tells what is wrong with a text,
- `key_check`: the same for the keys of an object,
- `allowed`: what is allowed, for messages,
- `default`: how a default that is computed reads in the documentation,
- `secret`: the value is never shown,
- `metavar`, `bare`: how an option's value is called, and what the option means without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from pypto_serving_router.config import checks
from pypto_serving_router.core.ids import SlotId

NAME_PATTERN = "^[A-Za-z0-9._:-]{1,128}$"
"""A replica, host or slot name, and a session id: safe in a header, a URL path, a log line and a file name."""

Seconds = Annotated[float, Meta(gt=0, extra={"metavar": "S", "allowed": "seconds, finite and above 0"})]
Port = Annotated[int, Meta(ge=1, le=65535)]
Count = Annotated[int, Meta(ge=0, extra={"metavar": "N"})]
Name = Annotated[str, Meta(pattern=NAME_PATTERN, extra={"allowed": "1 to 128 of the characters `A-Z a-z 0-9 . _ : -`"})]
Line = Annotated[str, Meta(min_length=1, extra={"check": checks.line})]
Argument = Annotated[str, Meta(extra={"check": checks.templated_argument})]
Command = tuple[Argument, ...]
Address = Annotated[str, Meta(min_length=1, extra={"check": checks.address, "allowed": "a host name or an IP address"})]
SshDestination = Annotated[
    str,
    Meta(
        min_length=1,
        extra={"check": checks.ssh_destination, "allowed": "`user@host` or an alias of ssh_config"},
    ),
]
KeyPath = Annotated[
    str, Meta(min_length=1, extra={"check": checks.key_path, "allowed": "the path of a key file", "secret": True})
]

SessionHeader = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9_-]{1,64}$",
        extra={"check": checks.session_header, "allowed": "1 to 64 of the characters `A-Z a-z 0-9 _ -`"},
    ),
]
SessionField = Annotated[
    str,
    Meta(
        pattern=r"^(?=.{1,64}$)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
        extra={"allowed": "a key, or keys joined by dots, up to 64 of the characters `A-Z a-z 0-9 _ - .`"},
    ),
]


# --- the fleet file --------------------------------------------------------------------------


class ReplicaSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A static replica: it already runs, and the router never starts or stops it."""

    host: Annotated[Address, Meta(description="Host name or IP address at which the router reaches it.")]
    port: Annotated[Port, Meta(description="Its port.")]
    name: Annotated[
        Name,
        Meta(description="What it is called in the API, logs and metrics.", extra={"default": "`host:port`"}),
    ] = field(default_factory=str)
    scheme: Annotated[
        Literal["http", "https"],
        Meta(description="With `https` its certificate and host name are always verified."),
    ] = "http"
    ca_file: Annotated[
        Line | None,
        Meta(
            description="File of CA certificates to verify an `https` replica against (`~` expands).",
            extra={"default": "the system's"},
        ),
    ] = None

    @property
    def url(self) -> str:
        """Where it is reached, without a path."""
        return _url(self.scheme, self.host, self.port)


class HostSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine the router may launch replicas on: one slot for each group of its devices."""

    name: Annotated[
        Name,
        Meta(
            description="What it is called. Its slots are named `<name>-d<first device>`.",
            extra={"default": "`host<N>`, with the entry's position, from 0"},
        ),
    ] = field(default_factory=str)
    ssh: Annotated[
        SshDestination | None,
        Meta(
            description="How the system's ssh client reaches it.",
            extra={"default": "none: the router's own machine"},
        ),
    ] = None
    address: Annotated[
        Address,
        Meta(
            description="Where the router reaches this host's replicas.",
            extra={"default": "`127.0.0.1`, or the host part of `ssh`"},
        ),
    ] = field(default_factory=str)
    identity_file: Annotated[
        KeyPath | None,
        Meta(description="Path of the private key ssh is to use (`~` expands). A key itself is refused."),
    ] = None
    devices: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Meta(
            min_length=1,
            description="Ids of the devices the router may use, each once.",
            extra_json_schema={"uniqueItems": True},
        ),
    ]
    devices_per_replica: Annotated[
        int,
        Meta(
            ge=1,
            description="How many devices one replica needs. "
            "`devices` is cut into groups of this many, in the order given; a remainder is refused.",
        ),
    ] = 1
    port_base: Annotated[Port, Meta(description="The port of a slot is `port_base` plus its first device.")] = 8001
    model: Annotated[Line, Meta(description="Path of the model on that machine.")]
    served_model_name: Annotated[
        Line | None, Meta(description="Passed to the serving command as `--served-model-name`.")
    ] = None
    serve_args: Annotated[Command, Meta(description="Appended to the serving command.")] = ()
    serve_command: Annotated[
        Command,
        Meta(
            min_length=1,
            description="The program that serves, with its first arguments. "
            "If `{model}` occurs in it, it is the whole command and only `serve_args` are added.",
        ),
    ] = ("pypto-serving",)
    env: Annotated[
        dict[str, Annotated[Argument, Meta(extra={"secret": True})]],
        Meta(description="Added to the environment of the replica.", extra={"key_check": checks.variable}),
    ] = field(default_factory=dict)
    launch_wrapper: Annotated[
        Command,
        Meta(
            description="A command that starts the replica, such as a broker's: "
            "the serving command is handed to it as one more argument, quoted for a shell.",
        ),
    ] = ()
    stop_command: Annotated[
        Annotated[Command, Meta(min_length=1)] | None,
        Meta(
            description="A command that stops the replica, run on that machine.",
            extra={"default": "none: the launched processes are signalled"},
        ),
    ] = None
    workdir: Annotated[
        Line | None,
        Meta(
            description="The folder the replica is started in (`~` expands over there).",
            extra={"default": "the router's, or the home directory over ssh"},
        ),
    ] = None
    log_dir: Annotated[
        Annotated[str, Meta(min_length=1, extra={"check": checks.templated_line})],
        Meta(
            description="The folder of the replicas' logs, `<slot>.log` each, on the machine that runs them "
            "(`~` expands over there).",
            extra={"default": "`pypto-serving-router-<user>` in the folder for temporary files"},
        ),
    ] = field(default_factory=str)


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """One device group of a host: it holds at most one replica."""

    id: SlotId
    host: HostSpec
    devices: tuple[int, ...]
    port: int

    @property
    def address(self) -> str:
        """The host name or IP address at which the router reaches the slot's replica."""
        return self.host.address

    @property
    def url(self) -> str:
        """Where the slot's replica is reached, without a path."""
        return _url("http", self.address, self.port)


class Fleet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What the router may route to: replicas that already run, and hosts to launch more on."""

    replicas: Annotated[tuple[ReplicaSpec, ...], Meta(description="Replicas that already run.")] = ()
    hosts: Annotated[tuple[HostSpec, ...], Meta(description="Machines to launch replicas on.")] = ()

    @cached_property
    def slots(self) -> tuple[SlotSpec, ...]:
        """Every slot in launch order: the router's own machine first, then as listed."""
        local_first = sorted(self.hosts, key=lambda host: host.ssh is not None)
        return tuple(slot for host in local_first for slot in _slots(host))


def slot_name(host: str, first_device: int) -> SlotId:
    """Name the slot of a host that begins with this device."""
    return SlotId(f"{host}-d{first_device}")


def _slots(host: HostSpec) -> list[SlotSpec]:
    size = host.devices_per_replica
    groups = [host.devices[start : start + size] for start in range(0, len(host.devices), size)]
    return [SlotSpec(slot_name(host.name, group[0]), host, group, host.port_base + group[0]) for group in groups]


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


# --- the options -----------------------------------------------------------------------------


class Settings(Struct, frozen=True, kw_only=True):
    """Every option, with its default; `None` where it was not given."""

    replicas: Annotated[
        Line | None,
        Meta(
            description="The fleet file: which replicas there are, and where more can be launched.",
            extra={"metavar": "FILE"},
        ),
    ] = None
    host: Annotated[
        Line,
        Meta(
            description="The address to listen on; `::` is every address, IPv4 and IPv6.", extra={"metavar": "ADDRESS"}
        ),
    ] = "0.0.0.0"  # noqa: S104 - clients are on other machines
    port: Annotated[
        int, Meta(ge=0, le=65535, description="The port to listen on; 0 picks a free one.", extra={"metavar": "PORT"})
    ] = 8000
    session_ttl: Annotated[
        Seconds, Meta(description="How long a conversation may be inactive before it loses its pin.")
    ] = 600
    affinity_slack: Annotated[
        Count,
        Meta(
            description="How many more outstanding requests than the least loaded a pinned replica may have "
            "before the conversation moves; 0 turns affinity off."
        ),
    ] = 8
    session_header: Annotated[
        tuple[SessionHeader, ...],
        Meta(
            description="A request header that names the session where there is no `X-Session-Id`; "
            "several, in order of preference, by repeating the option.",
            extra={"metavar": "NAME"},
        ),
    ] = ()
    session_field: Annotated[
        tuple[SessionField, ...],
        Meta(
            description="A text in the JSON body that names the session where no header and no `session_id` does: "
            "`user`, or `metadata.session_id` for one inside another; several by repeating the option.",
            extra={"metavar": "NAME"},
        ),
    ] = ()
    health_interval: Annotated[Seconds, Meta(description="Between two health probes of one replica.")] = 5
    request_timeout: Annotated[Seconds, Meta(description="For one whole exchange with a replica.")] = 3600
    connect_timeout: Annotated[
        Seconds, Meta(description="For connecting to a replica, TLS included; also for one health probe.")
    ] = 5
    connect_retries: Annotated[
        Count,
        Meta(description="How many other replicas to try where a connection was refused, so that nothing was sent."),
    ] = 0
    initial_replicas: Annotated[
        Count | None,
        Meta(
            description="How many replicas to launch at start.",
            extra={"metavar": "N", "default": "1 if the file has hosts, else 0; all of a demo"},
        ),
    ] = None
    max_replicas: Annotated[
        Count | None,
        Meta(
            description="The most replicas to hold at once, below the number of slots.",
            extra={"metavar": "N", "default": "the number of slots"},
        ),
    ] = None
    launch_timeout: Annotated[Seconds, Meta(description="A launched replica that is not ready by then is stopped.")] = (
        600
    )
    drain_timeout: Annotated[Seconds, Meta(description="How long a stop waits for requests in flight.")] = 300
    replace_after: Annotated[
        Seconds,
        Meta(
            description="A launched replica that was ready and is unroutable for this long is replaced; "
            "never less than two health intervals."
        ),
    ] = 30
    state_file: Annotated[
        Line | None,
        Meta(
            description="Records launched replicas, so that a router that was killed finds them again.",
            extra={"metavar": "FILE"},
        ),
    ] = None
    admin_token: Annotated[
        Annotated[str, Meta(pattern="^[!-~]+$", extra={"allowed": "printable ASCII without spaces"})] | None,
        Meta(
            description="Bearer token that requests to /replicas must carry; "
            "set it in the environment to keep it off the process list.",
            extra={"metavar": "TOKEN", "secret": True},
        ),
    ] = None
    max_sessions: Annotated[
        int, Meta(ge=1, description="The most conversations pinned at once.", extra={"metavar": "N"})
    ] = 100_000
    max_body_size: Annotated[
        int, Meta(ge=1, description="Larger request bodies are refused.", extra={"metavar": "BYTES"})
    ] = 100 * 1024 * 1024
    access_log: Annotated[bool, Meta(description="Log one line for each routed request.")] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least severe diagnostics to log.")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="The form of diagnostics, which go to stderr.")] = (
        "text"
    )
    demo: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(
            description="Instead of a fleet file: launch simulated replicas here, 2 unless N is given, "
            "and route to them.",
            extra={"metavar": "[N]", "bare": 2},
        ),
    ] = None

    def __repr__(self) -> str:
        """Show every option but a token's value."""
        hidden = self.admin_token and "***"
        shown = {name: getattr(self, name) for name in self.__struct_fields__} | {"admin_token": hidden}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
