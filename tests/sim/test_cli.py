"""The simulated replica's command line and process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec
import pytest
from tests.support.client import request
from tests.support.ports import free_port
from tests.support.processes import installed
from tests.support.waiting import wait_until
from tests.support.wire import Wire

from pypto_serving_router.sim.faults import Faults
from pypto_serving_router.sim.settings import Settings

if TYPE_CHECKING:
    from tests.support.harness import Harness
    from tests.support.sim import Sim

STREAM = b'{"prompt": "abc", "stream": true, "max_tokens": 4}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: sim\r\nContent-Length: %d\r\n\r\n%b" % (len(STREAM), STREAM)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed("pypto-serving-sim"), *arguments], capture_output=True, text=True, timeout=20, check=False
    )


def test_takes_pypto_servings_command_line(harness: Harness) -> None:
    """The serving command is taken with flags of the engine that mean nothing here (spec 10)."""
    sim = harness.start_sim(
        *("--devices", "0,1,2,3,4,5,6,7", "--show-startup-logs", "--dp", "8", "--ep", "8", "--tp=1"),
        *("--block-size", "128", "--max-num-seqs", "16", "--max-model-len", "1024"),
        *("--speculative-config", '{"method":"mtp"}'),
    )

    assert sim.stdout == f"pypto-serving-sim listening on http://127.0.0.1:{sim.port} (simulation)\n"
    assert sim.state()["devices"] == "0,1,2,3,4,5,6,7"
    assert "loading /models/Qwen3-14B onto devices 0,1,2,3,4,5,6,7" in sim.stderr
    assert all(line.startswith("[simulation] ") for line in sim.stderr.splitlines())


def test_options_in_the_log(harness: Harness) -> None:
    """The build directory is noted in the log, and without --show-startup-logs nothing else (spec 10)."""
    sim = harness.start_sim(env={"PYPTO_PROG_BUILD_DIR": "/scratch/b"})

    assert sim.stderr.splitlines() == [
        "[simulation] PYPTO_PROG_BUILD_DIR is /scratch/b; nothing is built in a simulation"
    ]


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_it_works_without_standard_streams(closed: str) -> None:
    """Started with stdin, stdout or stderr closed it serves and ends as ever (spec 10)."""
    port = free_port()
    command = [installed("pypto-serving-sim"), "--model", "m", "--host", "127.0.0.1", "--port", str(port)]

    with subprocess.Popen(["sh", "-c", f'exec "$0" "$@" {closed}', *command]) as sim:
        wait_until(lambda: is_open(port), what="a replica that listens")
        assert request(f"http://127.0.0.1:{port}/health").status == 200
        sim.terminate()

    assert sim.returncode == 0


def is_open(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--model"),
        (("--model", "m", "--port", "65536"), "--port"),
        (("--model", "m", "--port", "x"), "--port"),
        (("--model", "m", "--sim-load-delay", "-1"), "--sim-load-delay"),
        (("--model", "m", "--sim-break-with", "axe"), "--sim-break-with"),
        (("--model", "m", "--sim-brake-with", "fin"), "--sim-brake-with"),
    ],
)
def test_wrong_usage_is_refused(arguments: tuple[str, ...], told: str) -> None:
    """A missing model, a wrong value and a misspelt option of the simulation are refused with status 2 (spec 10)."""
    ended = run(*arguments)

    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_help_calls_it_a_simulation() -> None:
    """The help says what it is and shows the options (spec 10)."""
    ended = run("--help")

    assert ended.returncode == 0
    assert "SIMULATION" in ended.stdout
    assert "--sim-break-with" in ended.stdout


def test_is_a_module_too() -> None:
    """`python -m pypto_serving_router.sim` is the same program (spec 10)."""
    ended = subprocess.run(
        [sys.executable, "-m", "pypto_serving_router.sim", "--help"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )

    assert ended.stdout.startswith("Usage: pypto-serving-sim")


def test_the_reference_lists_every_option() -> None:
    """The reference page has each option with its default and meaning, and no other (spec 10)."""
    page = (Path(__file__).parents[2] / "docs/reference/simulated-replica.md").read_text()
    rows = re.findall(r"^\| `--(\S+)` \| (.+?) \| (.+) \|$", page, re.MULTILINE)
    described = [(name, default.strip("`"), meaning) for name, default, meaning in rows]

    assert described == [*documented(Settings), *documented(Faults, "sim-")]


def documented(struct: type[msgspec.Struct], prefix: str = "") -> list[tuple[str, str, str]]:
    """Return what the reference has to say of a struct's fields."""
    words = {None: "none", True: "on", False: "off"}
    rows = []
    for field in msgspec.structs.fields(struct):
        meta = next(extra for extra in get_args(field.type) if isinstance(extra, msgspec.Meta) and extra.description)
        number = isinstance(field.default, int | float) and not isinstance(field.default, bool)
        default = f"{field.default:g}" if number else words.get(field.default, field.default)
        name = prefix + field.name.replace("_", "-")
        rows.append((name, "required" if field.required else str(default), str(meta.description)))
    return rows


def test_stands_apart() -> None:
    """The simulation imports no other part of the package (spec 10)."""
    program = (
        "import sys, pypto_serving_router.sim.cli\n"
        "names = {n.split('.')[1] for n in sys.modules if n.startswith('pypto_serving_router.')}\n"
        "print(sorted(names))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)

    assert printed.stdout == "['sim']\n"


def test_binds_only_after_the_load(harness: Harness) -> None:
    """While it loads its port refuses connections (spec 10)."""
    port = free_port()
    began = time.monotonic()
    sim = harness.start_sim("--port", str(port), wait=False, load_delay=0.5)

    with pytest.raises(ConnectionRefusedError):
        Wire.connect(port)
    sim.wait_listening()

    assert time.monotonic() - began >= 0.5
    assert sim.port == port


def test_an_address_in_use_ends_it(harness: Harness) -> None:
    """A port that is taken ends it with status 1 and the reason (spec 10)."""
    taken = harness.start_sim()

    second = harness.start_sim("--port", str(taken.port), wait=False)

    assert second.wait() == 1
    assert f"cannot listen on 127.0.0.1:{taken.port}" in second.stderr


def test_a_load_can_fail(harness: Harness) -> None:
    """It can exit while loading, with a status and a reason in its log (spec 10)."""
    sim = harness.start_sim(wait=False, fail_load=3)

    assert sim.wait() == 3
    assert "the load failed" in sim.stderr
    assert sim.stdout == ""


def test_it_can_die_after_the_load(harness: Harness) -> None:
    """It can exit some time after it began to serve (spec 10)."""
    sim = harness.start_sim(exit_after=0.1)

    assert sim.wait() == 1
    assert "the worker died" in sim.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(harness: Harness, number: signal.Signals) -> None:
    """SIGTERM and SIGINT end it in order, idle connections closed (spec 10)."""
    sim = harness.start_sim()
    with Wire.connect(sim.url) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nHost: sim\r\n\r\n")
        wire.read_answer()

        sim.signal(number)

        assert wire.read_ending() == "fin"
    assert sim.wait() == 0


def test_open_answers_may_end(harness: Harness) -> None:
    """After SIGTERM an answer under way is finished within the grace, and new connections are refused (spec 10)."""
    sim = harness.start_sim("--sim-decode-rate", "10", "--sim-stop-grace", "10")
    with Wire.connect(sim.url) as wire:
        wire.send(POST)
        wire.read_until(b"data: ")

        sim.signal(signal.SIGTERM)

        assert wire.read_to_end().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert sim.wait() == 0


def test_the_grace_ends(harness: Harness) -> None:
    """An answer that never ends doesn't hold the end up for longer than the grace, or a second signal (spec 10)."""
    patient = harness.start_sim("--sim-stop-grace", "0.1", break_with="hang")
    hasty = harness.start_sim("--sim-stop-grace", "600", break_with="hang")
    with Wire.connect(patient.url) as first, Wire.connect(hasty.url) as second, Wire.connect(hasty.url) as idle:
        for wire, sim in ((first, patient), (second, hasty)):
            wire.send(POST)
            sim.wait_state(running=1)
            sim.signal(signal.SIGTERM)
        assert patient.wait() == 0
        assert idle.read_ending() == "fin", "idle connections are closed at once"
        assert hasty.status is None
        hasty.signal(signal.SIGTERM)

        assert hasty.wait() == 128 + signal.SIGTERM


def test_sigterm_can_be_ignored(harness: Harness) -> None:
    """It can be told to ignore SIGTERM, from the start or later (spec 10)."""

    def refused(sim: Sim) -> bool:
        return "SIGTERM is ignored" in sim.stderr

    stubborn, convert = harness.start_sim("--sim-ignore-sigterm"), harness.start_sim()
    convert.fault(ignore_sigterm=True)
    for sim in (stubborn, convert):
        sim.signal(signal.SIGTERM)
        wait_until(partial(refused, sim), what="the refusal")
        assert request(f"{sim.url}/health").status == 200
        assert sim.status is None


def test_a_child_can_escape(harness: Harness) -> None:
    """It can leave a child in a session of its own that outlives it (spec 10)."""
    sim = harness.start_sim(escape=60)
    escaped = sim.state()["escaped_pid"]

    sim.stop()

    assert os.getsid(escaped) == escaped


def test_starts_quickly(harness: Harness) -> None:
    """Without a load delay it listens within a fraction of a second of CPU time (spec 10)."""
    sim = harness.start_sim()

    user, system = Path(f"/proc/{sim.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    assert (int(user) + int(system)) / os.sysconf("SC_CLK_TCK") < 0.8
