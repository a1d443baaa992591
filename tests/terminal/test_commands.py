"""The commands as the command line has them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pypto_serving_router import cli
from pypto_serving_router.terminal.commands import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.upstream import RawUpstream

FLEET = (
    b'{"replicas": [{"owned": true, "slot": "node-d0"}, {"owned": false, "slot": null},'
    b' {"owned": true, "slot": "x-d1"}],'
    b' "capacity": {"cooling": [{"slot": "node-d4"}], "unconfirmed": [{"slot": "node-d2"}],'
    b' "abandoned": [{"slot": "node-d3"}]}}'
)
FLEET_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(FLEET), FLEET)


def called(*args: str) -> int | str | None:
    """Call the command in this process; give its exit status."""
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    return caught.value.code


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask nobody unless the test says whom."""
    monkeypatch.setenv("PYPTO_ROUTER_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("PYPTO_ROUTER_ADMIN_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["status", "--url", "router:8000"], "--url: found 'router:8000'; allowed is http://HOST:PORT, or https"),
        (["status", "--url", "http://u:p@h"], "--url: found 'http://u:p@h'; no user name or password belongs here"),
        (["status", "--token", "x"], "No such option"),
        (["status", "--admin-token", "x"], "No such option"),
        (["retire"], "Missing argument 'NAME'"),
        (["logs", "x", "--lines", "0"], "--lines: 0 is not in the range 1<=x<=10000."),
        (["top", "--interval", "x"], "--interval: 'x' is not a valid float range."),
        (["explain", "--last", "101"], "--last: 101 is not in the range 1<=x<=100."),
        (["launch", "--slot", "a", "--host", "b"], "--slot: says on which host, too; --host is not allowed beside it"),
        (["stop"], "No such command 'stop'."),
        (["--port", "1", "status"], "--port: is for a router that is to be started; `status` asks one that runs"),
        (["--admin-token", "x", "status"], "--admin-token: is for a router that is to be started"),
    ],
    ids=" ".join,
)
def test_wrong_usage(args: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage of a command is one line and status 2, as it is of the router (spec 1.4, 1.5)."""
    assert called(*args) == 2

    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"pypto-serving-router: {line}")
    assert err.count("\n") == 1


def test_a_wrong_url_in_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A value from the environment is traced to where it came from (spec 1.3)."""
    monkeypatch.setenv("PYPTO_ROUTER_URL", "nowhere")

    assert called("status") == 2

    assert capsys.readouterr().err.startswith("pypto-serving-router: --url (from PYPTO_ROUTER_URL): found 'nowhere'")


def test_options_of_the_router_are_not_options_of_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that a router is started with mean nothing to the commands that ask one (spec 1.3)."""
    for name in ("STATUS_JSON", "STATUS_URL", "STATUS_HELP", "LOGS_LINES", "HOST"):
        monkeypatch.setenv(f"PYPTO_ROUTER_{name}", "1")

    assert called("status") == 1
    assert called("logs", "x") == 1


def test_a_bad_token_is_not_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A token that no header can carry is refused and not shown (spec 1.3)."""
    monkeypatch.setenv("PYPTO_ROUTER_ADMIN_TOKEN", "two words")

    assert called("status") == 2

    assert "two words" not in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    """A router that can't be asked is one line and status 1, for every command (spec 1.5)."""
    for command in COMMANDS:
        args = ["x"] if command.name in ("retire", "logs") else []
        assert called(str(command.name), *args) == 1
        assert capsys.readouterr().err.splitlines()[-1] == (
            "pypto-serving-router: http://127.0.0.1:1: can't be asked: Connection refused;"
            " --url or PYPTO_ROUTER_URL says where the router is"
        )


def test_the_router_does_not_wait_for_the_commands() -> None:
    """Whoever starts a router, or asks for help, loads nothing of what commands need (spec 1.2)."""
    heavy = "{'http.client', 'structlog', 'asyncio', 'pypto_serving_router.terminal.client'}"
    program = f"import sys, pypto_serving_router.cli; print({heavy} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "set()\n"


def test_a_command_loads_nothing_of_the_run() -> None:
    """A command starts fast, too: neither the event loop nor the log is loaded for it (spec 9)."""
    program = (
        "import sys; sys.argv = ['router', 'status']\n"
        "from pypto_serving_router import cli\n"
        "try: cli.main()\n"
        "except SystemExit: print({'structlog', 'asyncio', 'uvloop', 'httptools'} & set(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "set()\n"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_help(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command says what it does, where the router is asked, and where the token comes from (spec 9)."""
    assert called(str(getattr(command, "name", "")), "--help") == 0

    said = " ".join(capsys.readouterr().out.split())
    assert "[env var: PYPTO_ROUTER_URL; default: http://127.0.0.1:8000]" in said
    assert "taken from PYPTO_ROUTER_ADMIN_TOKEN in the environment" in said


def completed(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Ask for completions as bash does; the last word is the one that is begun."""
    monkeypatch.setenv("_PYPTO_SERVING_ROUTER_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"pypto-serving-router {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" "))))
    assert called() == 0
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines() if line]


def test_completion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], start_upstream: Callable[..., RawUpstream]
) -> None:
    """A shell completes commands, options, and the names of what can be retired; without a router, none (spec 9)."""
    router = start_upstream(FLEET_ANSWER)

    assert completed("re", monkeypatch, capsys) == ["retire"]
    assert completed("status --", monkeypatch, capsys) == ["--json", "--url", "--help"]
    assert completed("--rep", monkeypatch, capsys) == ["--replicas", "--replace-after"]
    assert completed("retire ", monkeypatch, capsys) == []
    monkeypatch.setenv("PYPTO_ROUTER_URL", router.url)
    assert completed("retire ", monkeypatch, capsys) == ["node-d0", "x-d1", "node-d4", "node-d2", "node-d3"]
    assert completed("logs no", monkeypatch, capsys) == ["node-d0", "node-d4", "node-d2", "node-d3"]
