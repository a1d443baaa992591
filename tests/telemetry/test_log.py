"""Records as people and programs read them."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pypto_serving_router.telemetry.floodgate import Floodgate
from pypto_serving_router.telemetry.log import Format, Logs, configure

if TYPE_CHECKING:
    from pathlib import Path

RECORD = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug|info|warning|error|critical)\b")
Written = Callable[[], str]
Configure = Callable[..., tuple[Logs, Written]]


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Configure]:
    """Configure logging to a file; return the logs and a function that reads what was written."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    files: list[IO[str]] = []

    def start(level: str = "info", fmt: Format = "text") -> tuple[Logs, Written]:
        path = tmp_path / f"log{len(files)}"
        file = path.open("w")
        files.append(file)
        logs = configure(level, fmt, file)

        def written() -> str:
            assert logs.sink.flush(10)
            return path.read_text()

        return logs, written

    yield start
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = before
    for file in files:
        file.close()


def test_text(logged: Configure) -> None:
    """The text form reads as time, level, event and fields (spec 9)."""
    logs, written = logged()
    logs.log.info("replica is ready", replica="node0", ms=12.5, slot=None, devices=[0, 1], note="two words")

    line = written()

    assert RECORD.match(line)
    head, event, *fields = re.split(r"  +", line.rstrip(), maxsplit=2)
    assert head.endswith("Z info")
    assert event == "replica is ready"
    assert fields == ['replica=node0 ms=12.5 slot=- devices=[0, 1] note="two words"']


def test_json(logged: Configure) -> None:
    """The JSON form is one object a line: timestamp, level, event, then the fields (spec 9)."""
    logs, written = logged(fmt="json")
    logs.log.warning("a stop is not confirmed", slot="node0-d0", error="line\nline")

    (line,) = written().splitlines()

    record = json.loads(line)
    assert list(record) == ["timestamp", "level", "event", "slot", "error"]
    assert datetime.fromisoformat(record["timestamp"]).tzinfo is not None
    assert record["level"] == "warning"
    assert record["error"] == "line\nline"


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_level(logged: Configure, fmt: Format) -> None:
    """`--log-level` is the least severe that is written (spec 1.2)."""
    logs, written = logged("warning", fmt)
    logs.log.info("too quiet")
    logs.log.warning("loud enough")

    assert "too quiet" not in written()
    assert "loud enough" in written()


def test_recent_whatever_the_level(logged: Configure) -> None:
    """What happened to a replica is remembered for the dashboard even where it is not logged (spec 9)."""
    logs, written = logged("error")
    logs.log.info("replica is ready", replica="node0")
    logs.log.info("about nothing in particular")
    logs.log.debug("a detail", replica="node0")

    assert written() == ""
    assert [record["event"] for record in logs.recent.latest(9)] == ["replica is ready"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(event=st.text(), value=st.text())
@example(event="\x7f", value="\x7f\x9b\u2028\u202e\ud800")
@pytest.mark.parametrize("fmt", ["text", "json"])
def test_no_forgery(logged: Configure, fmt: Format, event: str, value: str) -> None:
    """Whatever is in an event or a field, it makes one line, and nothing in it drives a terminal (spec 9)."""
    logs, written = logged(fmt=fmt)
    before = written()
    logs.log.error(event, error=value)

    line = written().removeprefix(before)

    assert line.endswith("\n")
    assert line[:-1].isprintable()
    if fmt == "json":
        assert json.loads(line)["error"] == value


def test_traceback(logged: Configure) -> None:
    """A traceback is indented, and its message cannot pass for a record (spec 9)."""
    logs, written = logged()
    try:
        dict[str, str]()["oops\n2026-01-01T00:00:00.000Z info    forged"]
    except KeyError:
        logs.log.exception("the last resort")
    error = ValueError("oops\n2026-01-01T00:00:00.000Z info    forged")
    logs.log.error("a task failed", exc_info=error)

    lines = written().splitlines()

    assert [line for line in lines if RECORD.match(line)] == [lines[0], lines[-3]]
    assert "Traceback" in lines[1]
    assert lines[-2:] == ["    ValueError: oops", "    2026-01-01T00:00:00.000Z info    forged"]
    assert all(line.startswith("    ") for line in lines[1:-3])


def test_a_library_that_goes_on_and_on(logged: Configure) -> None:
    """What a library says over and over is one record, and the next says how many were held back (spec 9)."""
    logs, written = logged(fmt="json")
    now = 100.0
    (bridge,) = logging.getLogger().handlers
    bridge._floodgate = Floodgate(lambda: now)  # type: ignore[attr-defined] # its clock is the test's
    for said in [f"Exception in callback\nhandle: <Handle {turn}>" for turn in range(50)]:
        logging.getLogger("asyncio").error(said)
    logging.getLogger("asyncio").warning("Exception in callback")
    now += 11
    logging.getLogger("asyncio").error("Exception in callback\nhandle: another")

    records = [json.loads(line) for line in written().splitlines()]

    told = [(record["level"], record["suppressed"]) for record in records]
    assert told == [("error", 0), ("warning", 0), ("error", 49)]
    assert logs.recent.latest(9) == []


def test_libraries(logged: Configure) -> None:
    """What asyncio logs and Python warns of comes out as records, too (spec 9)."""
    _, written = logged(fmt="json")
    logging.getLogger("asyncio").error("task %s failed", "one")
    logging.getLogger("odd").log(35, "%d of %d", "a")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("mind the gap", stacklevel=1)

    records = [json.loads(line) for line in written().splitlines()]

    assert (records[0]["event"], records[0]["logger"]) == ("task one failed", "asyncio")
    assert (records[1]["event"], records[1]["level"]) == ("%d of %d", "warning")
    assert "mind the gap" in records[2]["event"]


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour(environment: dict[str, str], coloured: bool) -> None:
    """A terminal gets colours, unless it or its user does not want any (spec 9)."""
    program = "from pypto_serving_router.telemetry.log import configure; configure('info', 'text').log.info('hello')"
    leader, follower = pty.openpty()
    env: dict[str, Any] = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    try:
        subprocess.run(
            [sys.executable, "-c", program], stderr=follower, env=env | {"TERM": "xterm"} | environment, check=True
        )
        shown = os.read(leader, 1000)
    finally:
        os.close(leader)
        os.close(follower)

    assert b"hello" in shown
    assert (b"\x1b[" in shown) is coloured


def test_flushed_at_exit() -> None:
    """What was logged last before the end is written (spec 9)."""
    program = (
        "from pypto_serving_router.telemetry.log import configure\n"
        "logs = configure('info', 'json')\n"
        "[logs.sink.put_later(b'%d\\n' % n) for n in range(1000)]\n"
    )

    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=True)

    assert done.stderr.splitlines()[-1] == b"999"


def test_broken_stderr_at_exit() -> None:
    """A stderr nobody reads changes neither the exit status nor how long the exit takes (spec 1.4)."""
    reader, writer = os.pipe()
    os.close(reader)
    program = "from pypto_serving_router.telemetry.log import configure; configure('info', 'text').log.info('hello')"
    try:
        done = subprocess.run([sys.executable, "-c", program], stderr=writer, check=False, timeout=60)
    finally:
        os.close(writer)

    assert done.returncode == 0
