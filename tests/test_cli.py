"""The installed command, as a user runs it."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import pypto_serving_router
from pypto_serving_router import cli
from pypto_serving_router.config.model import Fleet, Settings
from pypto_serving_router.config.schema import fleet_schema
from pypto_serving_router.errors import JournalError
from pypto_serving_router.process import is_compiled

PROGRAM = str(Path(sys.executable).parent / "pypto-serving-router")
TOKEN = "hunter2-hunter2"

FLEET = {
    "replicas": [{"name": "lab", "host": "10.0.0.7", "port": 9001, "scheme": "https"}],
    "hosts": [
        {
            "name": "node01",
            "devices": [4],
            "model": "/my models/Q",
            "served_model_name": "q",
            "env": {"BUILD": "/scratch/b {device}"},
            "workdir": "/scratch",
            "log_dir": "/logs",
        },
        {
            "name": "node02",
            "ssh": "user@node02",
            "identity_file": "/keys/id",
            "devices": [0, 1],
            "model": "/w/Q",
            "launch_wrapper": ["task-submit", "--device", "{device}", "--run"],
            "stop_command": ["task-cancel", "{slot}"],
        },
    ],
}


@pytest.fixture
def fleet_file(tmp_path: Path) -> str:
    """Write a fleet file with replicas and hosts."""
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(FLEET))
    return str(path)


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command to its end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYPTO_ROUTER_")}
    return subprocess.run(
        [PROGRAM, *args], capture_output=True, text=True, timeout=60, env=kept | environment, check=False
    )


def refusal(*args: str, **environment: str) -> tuple[int, str]:
    """Run a command that must be refused in one line; give its status and the line."""
    done = run(*args, **environment)
    (line,) = done.stderr.splitlines()
    assert not done.stdout
    assert line.startswith("pypto-serving-router: ")
    return done.returncode, line.removeprefix("pypto-serving-router: ")


def called(*args: str) -> int | str | None:
    """Call the command in this process; give its exit status."""
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    return caught.value.code


# --- wrong usage -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ([], "--replicas: is missing; a fleet file is required, or --demo"),
        (["--prot", "1"], "No such option"),
        (["--port"], "Option '--port' requires an argument."),
        (["fleet.json"], "No such command 'fleet.json'."),
        (["--demo", "--replicas", "f"], "--demo: takes the place of --replicas; only one of the two is allowed"),
        (["--demo", "0"], "--demo: found 0; allowed is a whole number from 1 to 1000"),
        (["--port", "65536"], "--port: found 65536; allowed is a whole number from 0 to 65535"),
        (["--port", "-1"], "--port: found -1; allowed"),
        (["--port", "80.5"], '--port: found "80.5"; allowed'),
        (["--host", ""], '--host: found ""; allowed is text that is not empty'),
        (["--affinity-slack", "-1"], "--affinity-slack: found -1; allowed is a whole number, 0 or more"),
        (["--initial-replicas", "-1"], "--initial-replicas: found -1; allowed"),
        (["--max-replicas", "x"], '--max-replicas: found "x"; allowed is a whole number, 0 or more'),
        (["--connect-retries", "-1"], "--connect-retries: found -1; allowed"),
        (["--max-sessions", "0"], "--max-sessions: found 0; allowed is a whole number, 1 or more"),
        (["--max-body-size", "0"], "--max-body-size: found 0; allowed is a whole number, 1 or more"),
        (["--max-sessions", "9" * 5000], '--max-sessions: found "9999'),
        (["--session-header", "a", "--session-header", "a b"], '--session-header: found "a b"; allowed is 1 to 64'),
        (["--session-header", "X-Session-Id"], '--session-header: "X-Session-Id" has a meaning of its own'),
        (["--session-header", "authorization"], '--session-header: "authorization" has a meaning of its own, or'),
        (["--session-header", "proxy-id"], '--session-header: "proxy-id" has a meaning of its own'),
        (["--session-field", "a..b"], '--session-field: found "a..b"; allowed is a key, or keys joined by dots'),
        (["--session-field", "n" * 65], '--session-field: found "nnn'),
        (["--log-level", "loud"], '--log-level: found "loud"; allowed is `debug`'),
        (["--log-format", "xml"], '--log-format: found "xml"; allowed is `json` or `text`'),
        (["--admin-token", ""], "--admin-token: found a wrong value; allowed is printable ASCII without spaces"),
        (["--state-file", "a\nb"], '--state-file: "a\\nb" contains the control character'),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_and_status_2(args: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the option, what was found and what is allowed (spec 1.4, 1.5)."""
    assert called(*args) == 2

    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"pypto-serving-router: {line}")
    assert err.count("\n") == 1


def test_wrong_usage_of_the_installed_command() -> None:
    """The same, as a user meets it (spec 1.5)."""
    assert refusal("--port", "x") == (2, '--port: found "x"; allowed is a whole number from 0 to 65535')


@pytest.mark.parametrize("value", ["0", "-0", "-1", "nan", "inf", "-inf", "1e400", "abc", "5s", ""])
@pytest.mark.parametrize(
    "option",
    [
        "--session-ttl",
        "--health-interval",
        "--request-timeout",
        "--connect-timeout",
        "--launch-timeout",
        "--drain-timeout",
        "--replace-after",
    ],
)
def test_seconds_are_finite_and_above_0(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No deadline is none, negative, endless or not a number (spec 1.4)."""
    assert called(option, value, "--replicas", "f") == 2

    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"pypto-serving-router: {option}: found ")
    assert err.endswith("; allowed is seconds, finite and above 0\n")
    assert err.count("\n") == 1


# --- a wrong file, or options that contradict it ---------------------------------------------


def test_a_missing_file_is_status_1() -> None:
    """The fleet file is missing (spec 1.4)."""
    assert refusal("--replicas", "/none") == (1, "/none: can't be read: No such file or directory")


def test_every_problem_of_a_file_is_a_line(tmp_path: Path) -> None:
    """All of a file's problems come at once, a line each, with file and place (spec 1.5)."""
    path = tmp_path / "hosts"  # a file may be called like a place in it
    path.write_text(json.dumps({"hosts": [{"devices": [0, 1, "x"], "modle": "\n"}, 7]}))
    done = run("--replicas", str(path), "--check")

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"pypto-serving-router: {path}: hosts[0].modle: is not a known key; did you mean `model`?",
        f'pypto-serving-router: {path}: hosts[0].devices[2]: found "x"; allowed is a whole number, 0 or more',
        f"pypto-serving-router: {path}: hosts[0].model: is missing; it is required",
        f"pypto-serving-router: {path}: hosts[1]: found 7; allowed is an object",
    ]


def test_the_place_of_a_syntax_error_is_named_once(tmp_path: Path) -> None:
    """A file that is not JSON is one line with line and column (spec 1.5)."""
    path = tmp_path / "fleet.json"
    path.write_text('{"hosts": [}')

    assert refusal("--replicas", str(path)) == (1, f"{path}:1:12: is not JSON: Expecting value")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--initial-replicas", "4"], "--initial-replicas: found 4; allowed is at most 3, the number of slots"),
        (
            ["--initial-replicas", "3", "--max-replicas", "2"],
            "--initial-replicas: found 3; allowed is at most 2, as --max-replicas says",
        ),
        (["--port", "8005"], "--port: found 8005, where the replica node01-d4 is; another one is allowed"),
    ],
)
def test_options_that_contradict_the_file_are_status_1(args: list[str], line: str, fleet_file: str) -> None:
    """An `--initial-replicas` above the pool is refused before anything is started (spec 1.4, 2.7)."""
    assert refusal("--replicas", fleet_file, *args) == (1, line)


# --- the environment -------------------------------------------------------------------------


def test_every_option_can_come_from_the_environment(fleet_file: str) -> None:
    """`PYPTO_ROUTER_<NAME>` stands for `--name` (spec 1.3)."""
    done = run(PYPTO_ROUTER_REPLICAS=fleet_file, PYPTO_ROUTER_CHECK="1", PYPTO_ROUTER_MAX_REPLICAS="2")

    assert done.returncode == 0
    assert done.stdout.endswith("slots: 3, launched at start: 1, at most: 2\n")


def test_the_command_line_wins_over_the_environment(fleet_file: str) -> None:
    """An option beats its variable, and an empty variable counts as absent (spec 1.3)."""
    done = run(
        *("--replicas", fleet_file, "--check", "--initial-replicas", "2"),
        PYPTO_ROUTER_INITIAL_REPLICAS="9",
        PYPTO_ROUTER_DEMO="4",
        PYPTO_ROUTER_PORT="",
    )

    assert done.returncode == 0
    assert done.stdout.endswith("slots: 3, launched at start: 2, at most: 3\n")


def test_a_demo_on_the_command_line_wins_over_a_file_in_the_environment() -> None:
    """The same where the two options exclude each other (spec 1.2, 1.3)."""
    assert run("--demo", "--check", PYPTO_ROUTER_REPLICAS="/none").returncode == 0


def test_a_demo_and_a_file_in_the_environment_exclude_each_other() -> None:
    """`--demo` with `--replicas` is wrong usage (spec 1.2)."""
    status, line = refusal(PYPTO_ROUTER_REPLICAS="/none", PYPTO_ROUTER_DEMO="2")

    assert (status, line[:7]) == (2, "--demo:")


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("PORT", "tcp://10.0.0.1:80", '--port (from PYPTO_ROUTER_PORT): found "tcp://10.0.0.1:80"; allowed'),
        ("SESSION_TTL", "nan", "--session-ttl (from PYPTO_ROUTER_SESSION_TTL): found NaN; allowed"),
        ("ACCESS_LOG", "maybe", "--access-log (from PYPTO_ROUTER_ACCESS_LOG): "),
        ("ADMIN_TOKEN", f"{TOKEN} x", "--admin-token (from PYPTO_ROUTER_ADMIN_TOKEN): found a wrong value; allowed"),
    ],
)
def test_a_wrong_variable_is_named_with_its_option(name: str, value: str, line: str) -> None:
    """A value from the environment is traced to where it came from, and a token isn't shown (spec 1.3, 1.5)."""
    status, found = refusal("--replicas", "f", **{f"PYPTO_ROUTER_{name}": value})

    assert found.startswith(line)
    assert TOKEN not in found
    assert status == 2


def test_version_and_help_are_asked_for_on_the_command_line_only(fleet_file: str) -> None:
    """A deployment's `PYPTO_ROUTER_VERSION` does not keep the router from running (spec 1.3)."""
    done = run("--replicas", fleet_file, "--check", PYPTO_ROUTER_VERSION="1", PYPTO_ROUTER_HELP="1")

    assert done.stdout.startswith("replica lab")


# --- what is printed -------------------------------------------------------------------------


def test_check_prints_what_would_run(fleet_file: str) -> None:
    """Replicas, slots, ports and the exact command of each slot (spec 1.2)."""
    done = run("--replicas", fleet_file, "--check")

    assert done.returncode == 0
    assert not done.stderr
    user = "/tmp/pypto-serving-router-user"
    assert (
        done.stdout
        == f"""replica lab
  url      https://10.0.0.7:9001
slot node01-d4
  url      http://127.0.0.1:8005
  devices  4
  workdir  /scratch
  env      BUILD='/scratch/b 4'
  run      pypto-serving --model '/my models/Q' --devices 4 --host 127.0.0.1 --port 8005 --served-model-name q \
--show-startup-logs
  log      /logs/node01-d4.log
slot node02-d0
  url      http://node02:8001
  devices  0
  ssh      user@node02
  identity /keys/id
  run      task-submit --device 0 --run \
'pypto-serving --model /w/Q --devices 0 --host 0.0.0.0 --port 8001 --show-startup-logs'
  stop     task-cancel node02-d0
  log      {user}/node02-d0.log
slot node02-d1
  url      http://node02:8002
  devices  1
  ssh      user@node02
  identity /keys/id
  run      task-submit --device 1 --run \
'pypto-serving --model /w/Q --devices 1 --host 0.0.0.0 --port 8002 --show-startup-logs'
  stop     task-cancel node02-d1
  log      {user}/node02-d1.log
static replicas: 1
slots: 3, launched at start: 1, at most: 3
"""
    )


def test_check_of_a_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    """A bare `--demo` is two simulated replicas; all of them are launched (spec 1.2)."""
    done = run("--demo", "--check", TMPDIR=str(tmp_path))

    assert done.returncode == 0
    assert done.stdout.count("-m pypto_serving_router.sim --model") == 2
    assert done.stdout.endswith("slots: 2, launched at start: 2, at most: 2\n")
    assert list(tmp_path.iterdir()) == []


def test_check_in_an_encoding_that_lacks_a_character(tmp_path: Path) -> None:
    """A terminal that can't show a path gets it escaped, not a traceback (spec 1.5)."""
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"hosts": [{"devices": [0], "model": "/模型"}]}))
    done = run("--replicas", str(path), "--check", PYTHONIOENCODING="latin-1")

    assert done.returncode == 0
    assert "\\u6a21" in done.stdout


def test_print_schema_prints_the_schema() -> None:
    """`--print-schema` needs no fleet file (spec 2.1)."""
    done = run("--print-schema")

    assert done.returncode == 0
    assert json.loads(done.stdout) == json.loads(json.dumps(fleet_schema()))


@pytest.mark.parametrize(
    ("redirection", "status", "err"),
    [(">/dev/full", 1, "pypto-serving-router: No space left on device\n"), (">&-", 0, "")],
)
def test_output_that_cannot_be_written_is_no_traceback(redirection: str, status: int, err: str) -> None:
    """A full disk is one line and status 1; a closed output is nobody's loss (spec 1.5)."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" --print-schema {redirection}', PROGRAM],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, err)


def test_version() -> None:
    """`--version` names program, version and build (spec 1.2)."""
    build = "compiled" if is_compiled() else "not compiled"
    assert run("--version").stdout == f"pypto-serving-router {pypto_serving_router.__version__} ({build})\n"


def test_help_lists_every_option_of_the_specification() -> None:
    """Names and defaults as users type them (spec 1.2)."""
    text = " ".join(run("--help").stdout.split())

    for option in [
        "--replicas FILE",
        "--host ADDRESS",
        "--port PORT",
        "--session-ttl S",
        "--affinity-slack N",
        "--health-interval S",
        "--request-timeout S",
        "--connect-timeout S",
        "--connect-retries N",
        "--initial-replicas N",
        "--max-replicas N",
        "--launch-timeout S",
        "--drain-timeout S",
        "--replace-after S",
        "--state-file FILE",
        "--admin-token TOKEN",
        "--max-sessions N",
        "--max-body-size BYTES",
        "--access-log",
        "--log-level debug|error|info|warning",
        "--log-format json|text",
        "--check",
        "--demo [N]",
        "--print-schema",
        "--version",
        "--help",
    ]:
        assert f" {option} " in text
    assert "[default: 104857600]" in text
    assert "PYPTO_ROUTER_SESSION_TTL" in text


def python(*args: str) -> str:
    """Run Python to its end; give what it printed."""
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_module_is_the_command() -> None:
    """`python -m pypto_serving_router` is the same (spec 1.1)."""
    assert python("-m", "pypto_serving_router", "--version") == run("--version").stdout


def test_help_loads_nothing_of_the_run() -> None:
    """What only prints starts fast (spec 1.2)."""
    heavy = {"asyncio", "httptools", "prometheus_client", "structlog", "uvloop"}

    assert python("-c", f"import sys, pypto_serving_router.cli; print({heavy} & set(sys.modules))") == "set()\n"


# --- the run ---------------------------------------------------------------------------------


class Runs:
    """Stands in for the composition root: notes what it was given, and ends as it is told to."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.given: list[tuple[Settings, Fleet]] = []

    def __call__(self, settings: Settings, fleet: Fleet) -> int:
        self.given.append((settings, fleet))
        return self.status


def replace_app(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """Let the command line find another composition root."""
    app = types.ModuleType("pypto_serving_router.app")
    monkeypatch.setattr(app, "run", run, raising=False)
    monkeypatch.setitem(sys.modules, "pypto_serving_router.app", app)
    monkeypatch.setattr(pypto_serving_router, "app", app, raising=False)


@pytest.mark.parametrize("status", [0, 1, 3])
def test_the_run_gets_settings_and_fleet_and_gives_the_status(
    status: int, fleet_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends as the run did (spec 1.4)."""
    runs = Runs(status)
    replace_app(monkeypatch, runs)

    assert called("--replicas", fleet_file, "--admin-token", TOKEN, "--session-ttl", "0.5", "--access-log") == status
    ((settings, fleet),) = runs.given
    expected = Settings(replicas=fleet_file, admin_token=TOKEN, session_ttl=0.5, access_log=True)
    assert settings == expected
    assert [slot.id for slot in fleet.slots] == ["node01-d4", "node02-d0", "node02-d1"]


def test_a_demo_runs_with_its_own_log_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of a demo are private to it, and go when it ends (spec 1.2)."""
    folders = []

    def run(settings: Settings, fleet: Fleet) -> int:
        assert (settings.demo, len(fleet.slots)) == (3, 3)
        folder = Path(fleet.hosts[0].log_dir)
        assert folder.stat().st_mode & 0o777 == 0o700
        folders.append(folder)
        return 0

    replace_app(monkeypatch, run)

    assert called("--demo", "3") == 0
    assert not folders[0].exists()


def test_an_error_by_design_in_the_run_is_one_line(
    fleet_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A state file that is held by another router ends the start without a traceback (spec 1.4)."""

    def run(settings: Settings, fleet: Fleet) -> int:
        raise JournalError("/state is held by another router")

    replace_app(monkeypatch, run)

    assert called("--replicas", fleet_file) == 1
    assert capsys.readouterr().err == "pypto-serving-router: /state is held by another router\n"
