"""The harness itself: what it must notice about a router, shown on a program that stands in for one."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.harness import Harness
from tests.support.processes import SESSION_MARK, marked
from tests.support.wire import Wire

if TYPE_CHECKING:
    from pathlib import Path

# Speaks as much of the contract as the harness needs: the log record with its address, SIGTERM, exit statuses.
STAND_IN = """#!{python}
import json, os, signal, subprocess, sys, time
mode = os.environ["MODE"]
def end(number, frame):
    print(json.dumps({{"event": "stopping", "level": "info", "signal": number}}), file=sys.stderr, flush=True)
    if mode == "stubborn":
        return
    if mode == "trouble":
        print("Traceback (most recent call last):", file=sys.stderr)
    sys.exit(3 if mode == "unconfirmed" else 0)
signal.signal(signal.SIGTERM, end)
if mode in ("leak", "unconfirmed"):
    subprocess.Popen(["sleep", "60"], start_new_session=True)
if mode == "failing":
    sys.exit("no such fleet")
print(json.dumps({{"event": "listening", "level": "info", "url": "http://127.0.0.1:1", "argv": sys.argv[1:]}}),
      file=sys.stderr, flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    """A program that stands in for the router."""
    path = tmp_path / "stand-in"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def own(tmp_path: Path) -> Harness:
    """A harness that the test ends itself."""
    return Harness(tmp_path, patience=0.3)


def test_an_orderly_router_is_fine(own: Harness, stand_in: str) -> None:
    """A router that listens, logs and ends is started by the contract and ended without complaint (spec 10)."""
    router = own.start_router(["http://127.0.0.1:2"], "--extra", executable=stand_in, env={"MODE": "ok"})

    record = router.wait_log("listening", level="info")

    fleet = record["argv"][record["argv"].index("--replicas") + 1]
    with open(fleet) as file:  # noqa: PTH123 - a name out of the argument list
        assert json.load(file) == {"replicas": [{"host": "127.0.0.1", "port": 2}]}
    assert record["argv"][-1] == "--extra"
    assert ("--port", "0") in zip(record["argv"], record["argv"][1:], strict=False)
    assert (router.url, router.port) == ("http://127.0.0.1:1", 1)
    assert own.end() == []
    assert router.status == 0
    assert [event["signal"] for event in router.log_events("stopping")] == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("mode", "complaint"),
    [("leak", "left process"), ("trouble", "Traceback"), ("stubborn", "ignored two SIGTERMs")],
)
def test_faults_of_a_router_are_noticed(own: Harness, stand_in: str, mode: str, complaint: str) -> None:
    """A leaked process, a traceback and an end that never comes each fail the test, and are cleaned up (spec 10)."""
    router = own.start_router(None, executable=stand_in, env={"MODE": mode})
    launched = own.launched()

    wrong = own.end()

    assert len(wrong) == 1
    assert complaint in wrong[0]
    assert router.status is not None
    assert len(launched) == (1 if mode == "leak" else 0)
    assert own.launched() == {}


@pytest.mark.parametrize("excuse", ["unconfirmed", "killed", "said so"])
def test_what_may_be_left_is_cleaned_up_quietly(own: Harness, stand_in: str, excuse: str) -> None:
    """Exit status 3, a SIGKILL and a test's word allow leftovers, which are ended all the same (spec 10)."""
    mode = "unconfirmed" if excuse == "unconfirmed" else "leak"
    router = own.start_router(None, executable=stand_in, env={"MODE": mode})
    assert own.launched()
    router.may_leave_processes = excuse == "said so"
    if excuse == "killed":
        router.kill()

    assert own.end() == []
    assert own.launched() == {}


def test_a_router_that_ends_too_early_says_why(own: Harness, stand_in: str) -> None:
    """Waiting for a router that has ended fails at once, with its words (spec 10)."""
    with pytest.raises(AssertionError, match="no such fleet"):
        own.start_router(None, executable=stand_in, env={"MODE": "failing"})

    assert own.end() == []


def test_developers_settings_do_not_leak_in(own: Harness, stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYPTO_ROUTER_* of the shell that runs the tests has no effect on them (spec 1.3)."""
    monkeypatch.setenv("PYPTO_ROUTER_ADMIN_TOKEN", "mine")
    router = own.start_router(None, executable=stand_in, env={"MODE": "ok"})

    assert router.pid not in marked("PYPTO_ROUTER_ADMIN_TOKEN", "mine")
    assert router.pid in marked("MODE", "ok")
    assert own.end() == []


def test_simulated_replicas_and_what_escaped_them_are_ended(own: Harness) -> None:
    """Nothing that a test starts outlives it, a child in a session of its own neither (spec 10)."""
    sim = own.start_sim(escape=60, ignore_sigterm=True)
    escaped = sim.state()["escaped_pid"]
    mine = os.environ[SESSION_MARK]
    assert {sim.pid, escaped} <= set(marked(SESSION_MARK, mine))

    assert own.end() == []

    assert sim.status == -signal.SIGKILL
    assert not {sim.pid, escaped} & set(marked(SESSION_MARK, mine))


def test_scripts_of_upstreams_are_checked(own: Harness) -> None:
    """An error in an upstream's script fails the test (spec 10)."""

    def script(_wire: Wire, _request: bytes) -> None:
        raise ValueError("wrong script")

    upstream = own.start_upstream(script)
    with Wire.connect(upstream.url) as wire:
        wire.send(b"GET / HTTP/1.1\r\n\r\n")
        wire.read_ending()

    assert "wrong script" in own.end()[0]
