"""What every transport does: the same tests with a child process and with a real ssh."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import TYPE_CHECKING

import pytest
import uvloop
from tests.support.slots import all_ended

from pypto_serving_router.errors import TransportError
from pypto_serving_router.launch import local, slotctl
from pypto_serving_router.launch.local import LocalTransport
from pypto_serving_router.launch.ssh import SshTransport
from pypto_serving_router.launch.transport import Completed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pypto_serving_router.launch.transport import Transport


@pytest.fixture
def transport(destination: str | None) -> Transport:
    if destination is None:
        return LocalTransport()
    return SshTransport(destination, connect_timeout=10, alive_interval=5)


def run(transport: Transport, *argv: str, stdin: bytes = b"", timeout: float = 30.0) -> Completed:
    return uvloop.run(transport.run(argv, stdin=stdin, timeout=timeout))


@pytest.fixture(autouse=True)
def _no_child_is_left(transport: Transport) -> Iterator[None]:
    """Whatever the outcome, what was run here for it has ended and was reaped."""

    def children() -> set[int]:
        return {process.pid for process in slotctl.list_processes().values() if process.parent == os.getpid()}

    before = children()
    with all_ended():  # what ssh is taken away from runs on, on its host
        yield
    assert children() <= before


def test_arguments_and_input_arrive_as_they_are(transport: Transport) -> None:
    """Nothing in an argument or the input means anything to a shell on the way (spec 7.3)."""
    awkward = ["", " ", "two words", "it's", 'a "b"', "$HOME", "`id`", "$(id)", "a\nb", "*", "\\", "ü→😀", "!x", "-n"]
    code = "import json, sys; print(json.dumps([sys.argv[1:], sys.stdin.buffer.read().hex()]))"

    completed = run(transport, sys.executable, "-c", code, *awkward, stdin=bytes(range(256)))

    assert json.loads(completed.stdout) == [awkward, bytes(range(256)).hex()]


@pytest.mark.parametrize("status", [0, 1, 126, 254])
def test_the_outcome_is_told(transport: Transport, status: int) -> None:
    """Exit status and both outputs come back apart (spec 7.7)."""
    completed = run(transport, "sh", "-c", f"echo out; echo err >&2; exit {status}")

    assert completed == Completed(status, b"out\n", b"err\n")


def test_large_input_and_output_pass(transport: Transport) -> None:
    """What is larger than any pipe's buffer passes both ways at once, byte for byte (spec 7.3)."""
    data = os.urandom(2_000_000)

    assert run(transport, "cat", stdin=data).stdout == data


def test_input_that_is_not_read_does_no_harm(transport: Transport) -> None:
    """A command that ends without having read its input has ended all the same (spec 7.3)."""
    assert run(transport, "true", stdin=b"x" * 2_000_000) == Completed(0, b"", b"")


def test_a_command_that_takes_too_long_is_an_error(transport: Transport) -> None:
    """The wait is bounded, and what was run for it here is ended (spec 7.3, X13)."""
    started_at = time.monotonic()

    with pytest.raises(TransportError, match=r"was not done after 0\.7 s"):
        run(transport, "sleep", "60", timeout=0.7)

    assert time.monotonic() - started_at < 20


def test_a_command_that_is_ended_by_a_signal_is_an_error(transport: Transport) -> None:
    """It did not run to its end, so nothing is known of what it did (spec 7.7)."""
    with pytest.raises(TransportError):
        run(transport, "sh", "-c", "kill -KILL $$")


def test_a_command_that_prints_without_end_is_an_error(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login file gone wild fills no memory (spec 7.3)."""
    monkeypatch.setattr(local, "OUTPUT_LIMIT", 100_000)

    with pytest.raises(TransportError, match="printed too much"):
        run(transport, "yes")


def test_a_cancelled_command_is_ended(transport: Transport) -> None:
    """Cancelling leaves no child behind (spec 7.11)."""

    async def cancel() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                await transport.run(["sleep", "60"], timeout=30)

    uvloop.run(cancel())
