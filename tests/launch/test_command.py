"""The exact command of a slot."""

import json
import shlex
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.config.load import parse_fleet
from pypto_serving_router.config.model import SlotSpec
from pypto_serving_router.launch.command import SlotCommand, slot_command


def slots(**fields: Any) -> tuple[SlotSpec, ...]:
    """Load a fleet of one host; give its slots."""
    entry = {"name": "h", "devices": [4], "model": "/m", "log_dir": "/logs"} | fields
    return parse_fleet(json.dumps({"hosts": [entry]}).encode(), source="x").slots


def argv(**fields: Any) -> list[str]:
    """Tell what the first slot of such a host runs."""
    return list(slot_command(slots(**fields)[0]).argv)


OPTIONS = ["--model", "/m", "--devices", "4", "--host", "127.0.0.1", "--port", "8005", "--show-startup-logs"]


def test_the_serving_command_of_a_local_slot() -> None:
    """Without more, pypto-serving runs directly, on the loopback address (spec 2.5)."""
    assert slot_command(slots()[0]) == SlotCommand(
        argv=("pypto-serving", *OPTIONS), env={}, workdir=None, log_path="/logs/h-d4.log", stop_argv=None
    )


def test_the_serving_command_of_a_whole_node() -> None:
    """The devices of a group are listed, the name is passed, serve_args come last (spec 2.5)."""
    host = {
        "ssh": "u@n",
        "devices": [7, 6, 5, 4],
        "devices_per_replica": 2,
        "served_model_name": "{x} y",
        "serve_args": ["--dp", "2", "--log", "{slot}-{host}"],
    }
    assert [shlex.join(slot_command(slot).argv) for slot in slots(**host)] == [
        "pypto-serving --model /m --devices 7,6 --host 0.0.0.0 --port 8008 --served-model-name '{x} y' "
        "--show-startup-logs --dp 2 --log h-d7-h",
        "pypto-serving --model /m --devices 5,4 --host 0.0.0.0 --port 8006 --served-model-name '{x} y' "
        "--show-startup-logs --dp 2 --log h-d5-h",
    ]


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({}, "127.0.0.1"),
        ({"address": "localhost"}, "127.0.0.1"),
        ({"address": "127.0.0.2"}, "127.0.0.2"),
        ({"address": "::1"}, "::1"),
        ({"address": "10.0.0.1"}, "0.0.0.0"),
        ({"address": "node01"}, "0.0.0.0"),
        ({"address": "2001:db8::7"}, "::"),
        ({"ssh": "n"}, "0.0.0.0"),
        ({"ssh": "n", "address": "127.0.0.1"}, "0.0.0.0"),
        ({"ssh": "n", "address": "2001:db8::7"}, "::"),
    ],
)
def test_a_replica_is_bound_where_the_router_reaches_it(fields: dict[str, Any], bound: str) -> None:
    """Everywhere, but on the router's own machine only locally if that is enough (spec 2.5, symptom M4)."""
    command = argv(**fields)

    assert command[command.index("--host") + 1] == bound


@pytest.mark.parametrize("own", [["--host", "10.0.0.1"], ["--host=10.0.0.1"]])
def test_serve_args_may_say_where_to_bind(own: list[str]) -> None:
    """A `--host` in serve_args is the only one (spec 2.5)."""
    command = argv(serve_args=own)

    assert command[-len(own) :] == own
    assert sum(each.startswith("--host") for each in command) == 1


def test_serve_command_replaces_the_program() -> None:
    """Without `{model}` the options follow it (spec 2.3)."""
    assert argv(serve_command=["python3", "-m", "pypto_serving.cli", "{{model}}"]) == [
        "python3",
        "-m",
        "pypto_serving.cli",
        "{model}",
        *OPTIONS,
    ]


def test_serve_command_with_the_model_is_the_whole_command() -> None:
    """Other engines can be launched, with options of their own (spec 2.3)."""
    assert argv(
        serve_command=["engine", "serve", "--at=:{port}", "--path={model}"],
        serve_args=["--cards", "{devices}"],
        served_model_name="ignored",
    ) == ["engine", "serve", "--at=:8005", "--path=/m", "--cards", "4"]


def test_a_wrapper_gets_the_command_as_one_argument() -> None:
    """The wrapper is a prefix; the serving command is one shell-quoted argument (spec 2.3)."""
    command = argv(
        model="/my models/m", launch_wrapper=["task-submit", "--device", "{device}", "--run"], serve_args=["a'b", "$X"]
    )

    assert command[:4] == ["task-submit", "--device", "4", "--run"]
    assert command[4:] == [
        "pypto-serving --model '/my models/m' --devices 4 --host 127.0.0.1 --port 8005 --show-startup-logs "
        """'a'"'"'b' '$X'"""
    ]


def test_everything_that_may_expand_does() -> None:
    """Placeholders expand in env, log_dir and stop_command, and nowhere that a path is meant (spec 2.4)."""
    command = slot_command(
        slots(
            model="/m/{port}",
            workdir="/w/{port}",
            env={"DIR": "/b/{device}", "JSON": '{"x": {port}}'},
            log_dir="/logs/{slot}/",
            stop_command=["cancel", "{slot}", "{{slot}}"],
            serve_args=["{model}"],
        )[0]
    )

    assert command.env == {"DIR": "/b/4", "JSON": '{"x": 8005}'}
    assert command.log_path == "/logs/h-d4/h-d4.log"
    assert command.stop_argv == ("cancel", "h-d4", "{slot}")
    assert command.workdir == "/w/{port}"
    assert command.argv[-1] == "/m/{port}"
    assert command.argv[2] == "/m/{port}"


_arguments = st.lists(st.text("'\"$`\\ \n\t*?!~;&|<>()[]#=-abü"), max_size=5)


@given(_arguments)
def test_a_shell_sees_the_very_arguments_of_the_command(arguments: list[str]) -> None:
    """Splitting the wrapper's argument as a shell does gives the command back (spec 2.3)."""
    plain = argv(serve_args=arguments)
    wrapped = argv(serve_args=arguments, launch_wrapper=["w"])

    assert len(wrapped) == 2
    assert shlex.split(wrapped[1]) == plain


def test_a_real_shell_runs_the_wrapped_command() -> None:
    """What a broker hands to a shell arrives unchanged at the program (spec 2.3)."""
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    hostile = ["it's", "$HOME", "`id`", 'a"b', "line\nbreak", "*", "\\", "", "-x", "ü", "!", "~", "a;b&c|d"]
    command = argv(
        serve_command=[sys.executable, "-c", show, "{model}"], serve_args=hostile, launch_wrapper=["sh", "-c"]
    )

    done = subprocess.run(command, capture_output=True, check=True, timeout=30)
    assert json.loads(done.stdout) == ["/m", *hostile]
