"""The pages about options and the fleet file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import inspect

from pypto_serving_router import cli
from pypto_serving_router.config import checks, document, template
from pypto_serving_router.config.model import Fleet, HostSpec, ReplicaSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_EXAMPLE = """{
  "replicas": [
    {"name": "lab", "host": "10.0.0.7", "port": 8001}
  ],
  "hosts": [
    {
      "name": "big",
      "ssh": "serving@big.example",
      "devices": [0, 1, 2, 3],
      "devices_per_replica": 2,
      "model": "/models/Qwen3-14B",
      "serve_args": ["--tp", "2"],
      "env": {"PYPTO_PROG_BUILD_DIR": "/scratch/build-{slot}"}
    }
  ]
}"""


def options() -> str:
    """The command line."""
    return f"""# Options

```text
{cli.PROGRAM} --replicas FILE [OPTIONS]
```

`python -m pypto_serving_router` is the same command.

{_table(("Option", "Default", "Meaning"), _option_rows())}

`S` is a number of seconds, finite and above 0.

## The environment

Every option can be given as `{cli.ENVIRONMENT}_<NAME>` instead: `{cli.ENVIRONMENT}_SESSION_TTL` for `--session-ttl`.
The command line wins.
An empty variable counts as absent.
An on-off option takes `1`, `true`, `yes`, `on` or their opposites.

Put the admin token there: a command line can be read by every user of the machine.
No log, listing or error message ever shows the token.

In Kubernetes a service called `pypto-router` puts a variable `{cli.ENVIRONMENT}_PORT` of its own into every container.
Give the service another name, or set `enableServiceLinks: false`.

## Exit statuses

| Status | Meaning |
|---|---|
| 0 | Orderly end. |
| 1 | The fleet file is missing, unreadable or wrong; the options contradict it; the address can't be bound; \
or the state file is held by another router. |
| 2 | Wrong usage, a value out of range included. |
| 3 | Orderly end, but the stop of a launched replica was not confirmed, or a second signal cut it short. |

Whatever is wrong is said on stderr, one line for each problem:
the option or the place in the file, what was found, what is allowed.
"""


def fleet_file() -> str:
    """The fleet file."""
    return f"""# The fleet file

A JSON object in UTF-8, at most 16 MiB.
`{cli.PROGRAM} --print-schema` prints its JSON Schema.
`{cli.PROGRAM} --replicas FILE --check` tells what a run would do with it.

```json
{_EXAMPLE}
```

At least one of the two arrays has an entry.
An unknown or repeated key is refused.
All problems of a file are reported at once.

{_table(("Key", "Allowed", "Default", "Meaning"), _field_rows(Fleet))}

## `replicas[]`

{_sentence(ReplicaSpec)}

{_table(("Key", "Allowed", "Default", "Meaning"), _field_rows(ReplicaSpec))}

## `hosts[]`

{_sentence(HostSpec)}

{_table(("Key", "Allowed", "Default", "Meaning"), _field_rows(HostSpec))}

## Placeholders

These expand, for each slot, in {_listed(_templated(HostSpec))}:

{_table(("Placeholder", "Stands for"), ((f"`{{{name}}}`", f"{text}.") for name, text in template.PLACEHOLDERS.items()))}

Only a name between braces is a placeholder: `{{"x": 1}}` stays as it is.
An unknown name is refused.
`{{{{name}}}}` gives a literal `{{name}}`, so a shell's `${{HOME}}` is written `${{{{HOME}}}}`.
What a placeholder stands for is not expanded again.

## The command of a slot

```text
pypto-serving --model MODEL --devices D,... --host ADDRESS --port PORT
    [--served-model-name NAME] --show-startup-logs SERVE_ARGS...
```

- `serve_command` stands in place of `pypto-serving`.
  If `{{model}}` occurs in it, it is the whole command up to `serve_args`, which allows other engines to be launched.
- `ADDRESS` is `0.0.0.0`, or `::` if the host's `address` is an IPv6 address.
  On the router's own machine, a replica that is reached at a loopback address is bound to that address only.
  A `--host` among `serve_args` takes the place of both.
- With a `launch_wrapper` the command is joined, quoted for a shell, and handed to the wrapper as its last argument.
- The environment of a replica on the router's machine is the router's, without `{cli.ENVIRONMENT}_*`, and with `env`.

## Rules between entries

- Names of replicas and slots differ from one another, and so do names of hosts.
- No two slots or static replicas are at one address and port.
  `localhost` is `127.0.0.1`, upper case is lower case, and each spelling of an IP address is that address.
- No device of a machine is in two groups.
  Hosts with the same `ssh` destination, or the same `address`, are one machine.
- The port of every slot is at most 65535.
- The router's own `--port` is not that of a replica on the same machine.
"""


def _option_rows() -> Iterator[tuple[str, str, str]]:
    context = click.Context(cli.command)
    for option in cli.command.get_params(context):
        assert isinstance(option, click.Option)
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        if option.metavar:
            names = f"`{option.opts[0]} {option.metavar}`".replace("|", "\\|")
        yield names, _option_default(option), option.help or ""


def _option_default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    if isinstance(option.default, bool) or option.is_eager:
        return ""
    return f"`{option.default}`" if isinstance(option.default, int | float | str) else ""


def _field_rows(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str, str, str]]:
    for field in msgspec.structs.fields(struct):
        kind, notes, _ = document.plain(inspect.type_info(field.type))
        yield f"`{field.name}`", _kind(kind, notes), _field_default(field, notes), notes["description"]


def _kind(kind: inspect.Type, notes: document.Notes) -> str:
    match kind:
        case inspect.VarTupleType(item_type=item):
            inner, inner_notes, _ = document.plain(item)
            return f"an array of: {_kind(inner, inner_notes)}"
        case inspect.DictType(value_type=value):
            inner, inner_notes, _ = document.plain(value)
            return f"an object; its values: {_kind(inner, inner_notes)}"
    return document.allowed(kind, notes)


def _field_default(field: msgspec.structs.FieldInfo, notes: document.Notes) -> str:
    if "default" in notes:
        return str(notes["default"])
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return "none" if value is None else f"`{json.dumps(value)}`"


def _templated(struct: type[msgspec.Struct]) -> list[str]:
    """Find the fields in which placeholders expand: those that refuse an unknown one."""
    fields = msgspec.structs.fields(struct)
    return [field.name for field in fields if _is_templated(inspect.type_info(field.type))]


def _is_templated(kind: inspect.Type) -> bool:
    kind, notes, _ = document.plain(kind)
    match kind:
        case inspect.VarTupleType(item_type=inner) | inspect.DictType(value_type=inner):
            return _is_templated(inner)
    return notes.get("check") in (checks.templated_argument, checks.templated_line)


def _sentence(struct: type[msgspec.Struct]) -> str:
    return (struct.__doc__ or "").strip()


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
