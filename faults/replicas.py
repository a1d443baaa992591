"""What replicas do wrong."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from typing import TYPE_CHECKING

from faults.cell import Outcome, cell
from faults.scene import tell

if TYPE_CHECKING:
    from faults.scene import Scene


def _broken(scene: Scene, how: str, after: int, *, options: tuple[str, ...] = ()) -> Outcome:
    """Let every request break in one way, one of them streamed and one not, and then none."""
    scene.start_sims(2, *options)
    faults = json.dumps({"break_with": how, "break_after": after})
    seen = [scene.ask(stream=stream, X_Sim_Faults=faults) for stream in (True, False, True)]
    assert {one.what for one in seen} <= ({"502", "504"} if after < 0 else {"cut", "502"}), tell(seen)
    back = max(scene.until_ready(2), scene.until_served())
    return Outcome(tell(seen), back)


@cell()
def resets_before_the_head(scene: Scene) -> Outcome:
    """A replica resets before its answer."""
    return _broken(scene, "rst", -1)


@cell()
def resets_in_the_answer(scene: Scene) -> Outcome:
    """A replica resets in its answer."""
    return _broken(scene, "rst", 2)


@cell()
def closes_before_the_head(scene: Scene) -> Outcome:
    """A replica closes before its answer."""
    return _broken(scene, "fin", -1)


@cell(quick=True)
def closes_in_the_answer(scene: Scene) -> Outcome:
    """A replica closes in its answer."""
    return _broken(scene, "fin", 2)


@cell()
def garbage_before_the_head(scene: Scene) -> Outcome:
    """A replica sends garbage instead of an answer."""
    return _broken(scene, "garbage", -1)


@cell()
def garbage_in_the_answer(scene: Scene) -> Outcome:
    """A replica sends garbage in its answer."""
    return _broken(scene, "garbage", 2)


@cell()
def hangs_before_the_head(scene: Scene) -> Outcome:
    """A replica hangs before its answer (request timeout of 1 s)."""
    return _broken(scene, "hang", -1, options=("--request-timeout", "1"))


@cell()
def hangs_in_the_answer(scene: Scene) -> Outcome:
    """A replica hangs in its answer (request timeout of 1 s)."""
    return _broken(scene, "hang", 2, options=("--request-timeout", "1"))


@cell()
def trickles(scene: Scene) -> Outcome:
    """A replica sends its answers byte by byte."""
    scene.start_sims(2)
    seen = scene.ask_many(4, X_Sim_Faults='{"trickle": 0.002}')
    assert tell(seen) == "4x complete"
    return Outcome(tell(seen))


@cell()
def refuses(scene: Scene) -> Outcome:
    """A replica refuses connections (SIGTERM), and returns."""
    sim = scene.start_sims(2)[0]
    sim.stop()
    seen = [scene.ask() for _ in range(6)]
    assert sum(one.what == "502" for one in seen) <= 1, tell(seen)
    scene.restart(sim)
    return Outcome(tell(seen), scene.until_ready(2))


@cell()
def refuses_with_retries(scene: Scene) -> Outcome:
    """The same with `--connect-retries 1`."""
    sim = scene.start_sims(2, "--connect-retries", "1")[0]
    sim.stop()
    seen = [scene.ask() for _ in range(6)]
    assert tell(seen) == "6x complete"
    scene.restart(sim)
    return Outcome(tell(seen), scene.until_ready(2))


@cell(quick=True)
def killed(scene: Scene) -> Outcome:
    """A replica is killed with streams under way, and returns."""
    return _killed(scene, 2, 1)


@cell()
def killed_with_half_the_fleet(scene: Scene) -> Outcome:
    """Two of four replicas are killed at once with streams under way, and return."""
    return _killed(scene, 4, 2)


def _killed(scene: Scene, count: int, dead: int) -> Outcome:
    sims = list(scene.start_sims(count))
    streams = scene.ask_many(2 * count, tokens=200)
    scene.under_way(2 * count)
    for sim in sims[:dead]:
        sim.kill()
    after = [scene.ask() for _ in range(8)]
    assert sum(one.what != "complete" for one in after) <= dead, tell(after)
    assert [one.result().what for one in streams].count("complete") == 2 * (count - dead)
    for sim in sims[:dead]:
        scene.restart(sim)
    return Outcome(f"{tell(streams)}; then {tell(after)}", scene.until_ready(count))


@cell()
def all_killed(scene: Scene) -> Outcome:
    """Every replica is killed, and returns."""
    sims = list(scene.start_sims(2))
    for sim in sims:
        sim.kill()
    seen = [scene.ask() for _ in range(6)]
    assert {one.what for one in seen} <= {"502", "503"}, tell(seen)
    for sim in sims:
        scene.restart(sim)
    return Outcome(tell(seen), max(scene.until_ready(2), scene.until_served()))


@cell()
def unready(scene: Scene) -> Outcome:
    """A replica's /health answers 503, and then 200 again."""
    return _unhealthy(scene, "unready")


@cell()
def unresponsive(scene: Scene) -> Outcome:
    """A replica's /health hangs, and then answers again."""
    return _unhealthy(scene, "hang")


def _unhealthy(scene: Scene, how: str) -> Outcome:
    sim = scene.start_sims(2)[0]
    sim.fault(health=how)
    scene.until_ready(1)
    seen = [scene.ask() for _ in range(6)]
    assert tell(seen) == "6x complete"
    assert len({one.replica for one in seen}) == 1
    sim.heal()
    return Outcome(tell(seen), scene.until_ready(2))


@cell()
def frozen(scene: Scene) -> Outcome:
    """A replica is frozen for 2 s (SIGSTOP, SIGCONT) with streams under way."""
    sim = scene.start_sims(2)[0]
    streams = scene.ask_many(4, tokens=100)
    scene.under_way(4)
    sim.signal(signal.SIGSTOP)
    scene.pause(2.0)
    sim.signal(signal.SIGCONT)
    assert tell(streams) == "4x complete"
    return Outcome(tell(streams), scene.until_ready(2))


@cell()
def full_backlog(scene: Scene) -> Outcome:
    """A replica no longer accepts and its backlog is full (connect timeout of 1 s); then it accepts again."""
    sim = scene.start_sims(2, "--request-timeout", "3")[0]
    sim.signal(signal.SIGSTOP)
    with contextlib.ExitStack() as held:
        _fill_backlog(held, sim.port)
        seen = [scene.ask() for _ in range(6)]
        assert sum(one.what == "502" for one in seen) <= 1, tell(seen)
        assert sum(one.what == "complete" for one in seen) >= 5, tell(seen)
    sim.signal(signal.SIGCONT)
    return Outcome(tell(seen), scene.until_ready(2))


def _fill_backlog(held: contextlib.ExitStack, port: int) -> None:
    for _ in range(8192):
        filler = held.enter_context(socket.socket())
        filler.settimeout(0.3)
        try:
            filler.connect(("127.0.0.1", port))
        except TimeoutError:
            return
    raise AssertionError("the backlog does not fill")
