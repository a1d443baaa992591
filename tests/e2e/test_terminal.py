"""The commands that ask a running router: the installed console script, a real router, simulated replicas."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.support.client import chat
from tests.support.fleet import replica, sim_host
from tests.support.processes import environment, installed
from tests.support.screen import Screen
from tests.support.talk import CHAT, held
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.router import Router
    from tests.support.sim import Sim

TOKEN = "s3cret-token"
PROGRAM = installed("pypto-serving-router")


def variables(router: Router, token: str | None = TOKEN) -> dict[str, str]:
    return environment({"PYPTO_ROUTER_URL": router.url, "PYPTO_ROUTER_ADMIN_TOKEN": token})


def run(router: Router, *args: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the token is not shown, whatever it is."""
    env = variables(router, token)
    done = subprocess.run([PROGRAM, *args], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert TOKEN not in done.stdout + done.stderr
    return done


@pytest.fixture
def on_screen(tmp_path: Path) -> Iterator[Callable[..., Screen]]:
    """Run commands on a terminal."""
    screens: list[Screen] = []

    def start(router: Router, *args: str) -> Screen:
        screens.append(Screen([PROGRAM, *args], env=variables(router), folder=tmp_path))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def guarded(start_router: Callable[..., Router], *slots: int, **sim: object) -> Router:
    """Start a router that wants a token and may launch, and has launched nothing."""
    return start_router(
        {"hosts": [sim_host(slots or (0, 1), sim=sim)]},
        *("--admin-token", TOKEN, "--initial-replicas", "0", "--health-interval", "0.1", "--drain-timeout", "20"),
    )


def test_an_operators_night(start_router: Callable[..., Router], on_screen: Callable[..., Screen]) -> None:
    """From an empty fleet to a conversation that is explained, and back, all from the terminal (spec 6.2 to 6.6, 9)."""
    router = guarded(start_router, load_delay=1)
    empty = run(router, "status")
    assert (empty.returncode, empty.stderr) == (4, "")
    assert "slots: 0 held, at most 2; free: node-d0, node-d1" in empty.stdout

    # A launch shows how long it has been, and what the replica says.
    launching = on_screen(router, "launch", "--slot", "node-d1", "--wait")
    launching.shows(r"node-d1 is starting: (---|\[simulation\]) .*\(\d+ s\)")
    assert launching.end() == 0
    launching.shows(r"node-d1 is ready at http://127.0.0.1:\d+ after \d+ s")
    full = run(router, "launch", "--slot", "node-d1")
    assert (full.returncode, full.stdout) == (1, "")
    assert full.stderr.splitlines()[-1].endswith("node-d1 is not free: ready; `status` shows the free ones")

    # A conversation is explained.
    for _ in range(2):
        router.request("POST", CHAT, body=chat("Hello"), headers={"X-Session-Id": "tale"})
    story = run(router, "explain", "tale")
    assert story.returncode == 0
    assert "pinned to node-d1, last used" in story.stdout
    assert "placed on node-d1: the first that is remembered of this session" in story.stdout
    assert "1 more request stayed there" in story.stdout
    assert run(router, "explain").stdout.count("node-d1") == 1
    unknown = run(router, "explain", "nobody")
    assert unknown.returncode == 1
    assert "nothing is remembered of this session; it was never here" in unknown.stderr

    # A drain tells what is left; who stops looking is told that it goes on.
    with held(router, "tale") as (request,):
        draining = on_screen(router, "retire", "node-d1")
        draining.shows(r"node-d1: draining, 1 request left \(\d s\)")
        draining.interrupt()
        assert draining.end() == 130
        draining.shows("the retirement of node-d1 goes on in the router; `retire node-d1` waits for its end again")
        again = on_screen(router, "retire", "node-d1")
        again.shows("1 request left")
        request.leave()
        assert again.end() == 0
        again.shows("node-d1 is retired: its slot is free")
    assert "then the replica was drained, or went" in run(router, "explain", "tale").stdout


def test_how_a_fleet_is(start_router: Callable[..., Router], start_sim: Callable[..., Sim]) -> None:
    """The exit status says whether the fleet is well, and the table which replica is not (spec 6.1, 9)."""
    sims = [start_sim(), start_sim()]
    fleet = [replica(sim.url, name=f"node{number}") for number, sim in enumerate(sims)]
    router = start_router(fleet, "--health-interval", "0.1", "--admin-token", TOKEN)

    well = run(router, "status")
    assert (well.returncode, well.stderr) == (0, "")
    assert well.stdout.splitlines()[0] == f"{router.url} well: 2 of 2 replicas routable"
    assert "\x1b" not in well.stdout

    sims[1].kill()
    wait_until(lambda: router.health()["replicas_failed"])
    attention = run(router, "status", "--json")
    assert attention.returncode == 3
    document = json.loads(attention.stdout)
    assert [row["phase"] for row in document["fleet"]["replicas"]] == ["ready", "failed"]
    assert document["health"]["replicas_ready"] == 1
    once = run(router, "top")
    assert once.returncode == 3
    assert "replica is not routable  replica=node1" in once.stdout

    # Whoever has no token sees what /health shows; a wrong one is refused.
    locked = run(router, "status", token=None)
    assert locked.returncode == 3
    assert "set PYPTO_ROUTER_ADMIN_TOKEN" in locked.stdout
    wrong = run(router, "status", token="guess")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "does not accept the token" in wrong.stderr
    assert "guess" not in wrong.stderr

    sims[0].kill()
    wait_until(lambda: router.health()["replicas_failed"] == 2)
    assert run(router, "status").returncode == 4


def test_a_fleet_that_is_watched(
    start_router: Callable[..., Router], start_sim: Callable[..., Sim], on_screen: Callable[..., Screen]
) -> None:
    """`top` shows a replica die while one looks on, and leaves the terminal as it was (spec 9)."""
    sim = start_sim()
    router = start_router([replica(sim.url, name="node0")], "--health-interval", "0.1", "--admin-token", TOKEN)
    top = on_screen(router, "top", "--interval", "0.2")
    top.shows(r"well: 1 of 1 replica routable")
    top.shows(r"node0\s+ready")

    sim.kill()

    top.shows(r"down: 0 of 1 replica routable")
    top.shows(r"node0\s+failed")
    assert "\x1b[31mfailed\x1b[0m" in top.written
    top.interrupt()
    assert top.end() == 130
    assert top.written.startswith("\x1b[?1049h")
    assert top.written.endswith("\x1b[?1049l")


def test_a_log_that_is_followed(start_router: Callable[..., Router], on_screen: Callable[..., Screen]) -> None:
    """`logs -f` goes on with what the next replica says, and fails where nothing is to be had (spec 6.5)."""
    router = guarded(start_router)
    assert run(router, "logs", "nope").stderr.endswith("no slot is called nope; `status` shows what there is\n")
    assert run(router, "launch", "--slot", "node-d0", "--wait").returncode == 0
    short = run(router, "logs", "node-d0", "--lines", "1")
    assert (short.returncode, len(short.stdout.splitlines())) == (0, 1)

    following = on_screen(router, "logs", "node-d0", "-f")
    following.shows("--- node-d0 launch")
    first = following.text.count("--- node-d0 launch")
    assert run(router, "retire", "node-d0").returncode == 0
    assert run(router, "launch", "--slot", "node-d0").returncode == 0

    following.shows(r"(?s)--- node-d0 launch.*--- node-d0 launch.*listening on")
    assert (first, following.text.count("--- node-d0 launch")) == (1, 2)
    following.interrupt()
    assert following.end() == 130


def test_a_stop_that_is_not_confirmed(start_router: Callable[..., Router]) -> None:
    """A slot that stays reserved has a status of its own; `--force` frees it on one's word (spec 6.4, 7.7)."""
    host = sim_host((0,), stop_command=["false"])
    router = start_router({"hosts": [host]}, "--admin-token", TOKEN, "--health-interval", "0.1")
    router.may_leave_processes = True
    router.wait_ready(1)

    reserved = run(router, "retire", "node-d0")
    status = run(router, "status")
    forced = run(router, "retire", "node-d0", "--force")

    assert reserved.returncode == 3
    assert "node-d0 stays reserved (stop-unconfirmed)" in reserved.stderr.splitlines()[-1]
    assert "unconfirmed node-d0 for" in status.stdout
    assert "then `retire node-d0` tries the stop again" in status.stdout
    assert (forced.returncode, forced.stdout) == (0, "node-d0 is retired: its slot is free\n")


def test_a_launch_that_fails(start_router: Callable[..., Router]) -> None:
    """`launch --wait` ends with the reason when the replica does (spec 7.5)."""
    router = guarded(start_router, 0, load_delay=0.5, fail_load=3)

    failed = run(router, "launch", "--wait")

    assert (failed.returncode, failed.stdout) == (1, "")
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("pypto-serving-router: node-d0 is gone before it was ready: ")
    assert last.endswith("`logs node-d0` shows what it said")


def test_a_shell_completes(start_router: Callable[..., Router]) -> None:
    """bash loads the completion that the command prints, and it completes (spec 9)."""
    router = guarded(start_router)
    script = f"""
    eval "$(_PYPTO_SERVING_ROUTER_COMPLETE=bash_source {PROGRAM})"
    complete -p pypto-serving-router
    COMP_WORDS=({PROGRAM} st) COMP_CWORD=1
    _pypto_serving_router_completion {PROGRAM}
    echo "completed: ${{COMPREPLY[*]}}"
    """

    done = subprocess.run(
        ["bash", "-c", script], env=variables(router), capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "completed: status"
    assert "-F _pypto_serving_router_completion pypto-serving-router" in done.stdout
