"""Commands as children of the router; what is common to all transports is in tests/contract/test_transport.py."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from tests.support.slots import all_ended

from pypto_serving_router.errors import TransportError
from pypto_serving_router.launch import local
from pypto_serving_router.launch.local import LocalTransport

if TYPE_CHECKING:
    from pypto_serving_router.launch.transport import Completed


def run(*argv: str, timeout: float = 30.0) -> Completed:
    return asyncio.run(LocalTransport().run(argv, timeout=timeout))


def test_a_command_has_a_session_of_its_own() -> None:
    """Ctrl-C at the router's terminal reaches the router, not the commands it is running (spec 7.11)."""
    session = run("cut", "-d ", "-f6", "/proc/self/stat").stdout

    assert int(session) != os.getsid(0)


def test_the_routers_settings_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token in the environment is for the router alone (spec 1.3, 2.3)."""
    monkeypatch.setenv("PYPTO_ROUTER_ADMIN_TOKEN", "hunter2")
    monkeypatch.setenv("OTHER", "kept")

    variables = run("env").stdout

    assert b"hunter2" not in variables
    assert b"OTHER=kept" in variables


@pytest.mark.parametrize(("program", "reason"), [("/no/such", "No such file"), ("/etc/passwd", "Permission denied")])
def test_a_command_that_cannot_be_run_is_an_error(program: str, reason: str) -> None:
    """The system's reason is told (spec 6.3)."""
    with pytest.raises(TransportError, match=f"cannot run {program}: {reason}"):
        run(program)


def test_a_signal_is_told() -> None:
    """A command that was killed is an error that says by what (spec 7.7)."""
    with pytest.raises(TransportError, match="sh was ended by signal 9"):
        run("sh", "-c", "kill -KILL $$")


def test_output_that_is_held_open_does_not_hold_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grandchild that escapes with the output cannot make the wait longer than its bound (X13, spec 7.3)."""
    monkeypatch.setattr(local, "_REAP", 0.1)
    started_at = time.monotonic()

    with all_ended(), pytest.raises(TransportError, match="was not done after"):
        run("sh", "-c", "setsid sleep 60 & exit 0", timeout=0.3)

    assert time.monotonic() - started_at < 20


def test_a_command_that_stops_itself_is_ended() -> None:
    """Not even a stopped process outlives its time (spec 7.3)."""
    with pytest.raises(TransportError, match="was not done after"):
        run("sh", "-c", f"kill -{signal.SIGSTOP.value} $$", timeout=0.3)
