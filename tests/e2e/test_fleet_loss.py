"""Replicas that die and are replaced, slots that are given up on, processes that won't end. All that takes patience.

The back-off and the grace of a stop are what they are, so whatever waits for one of them waits at the same time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import chat, request
from tests.support.fleet import sim_host
from tests.support.owned import capacity, launch, phases, retire, slot_processes, unconfirmed
from tests.support.processes import installed
from tests.support.slots import lives
from tests.support.talk import CHAT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.harness import Harness
    from tests.support.router import Router
    from tests.support.sim import Sim

BACKOFF = 10.0


def changes(router: Router, slot: str) -> list[tuple[str, str]]:
    """The states that a slot has entered, with the causes."""
    return [(one["to"], one["cause"]) for one in router.log_events("slot changed", slot=slot)]


def moment(router: Router, slot: str, to: str, number: int = 0) -> float:
    """When a slot entered a state for the n-th time, in seconds of an hour."""
    stamp = router.wait_logs(number + 1, "slot changed", slot=slot, to=to)[number]["timestamp"]
    minutes, seconds = stamp[14:-1].split(":")
    return int(minutes) * 60 + float(seconds)


def between(earlier: float, later: float) -> float:
    return (later - earlier) % 3600


def once(folder: Path, device: int, **fields: Any) -> dict[str, Any]:
    """A host whose first replica is fine, and whose later ones end while they load."""
    script = 'if [ -e "$0" ]; then echo broken card; exit 9; fi; touch "$0"; exec "$@"'
    command = ["sh", "-c", script, str(folder / "launched"), installed("pypto-serving-sim")]
    return sim_host([device], serve_command=command, **fields)


class Traffic:
    """Requests without an end, ten a second; `answers` is what became of them."""

    def __init__(self, router: Router) -> None:
        self.answers: list[int] = []
        self._router = router
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self.answers.append(self._router.request("POST", CHAT, body=chat("Hello")).status)

    def end(self) -> list[int]:
        self._stop.set()
        self._thread.join()
        return self.answers


def kill_each(router: Router, logs: Path, slot: str) -> None:
    """Kill each of the three replicas that a slot gets, as soon as it is ready."""
    killed: set[int] = set()

    def next_one() -> set[int]:
        return set(slot_processes(logs).get(slot, ())) - killed if phases(router).get(slot) == "ready" else set()

    for _ in range(3):
        for pid in wait_until(next_one, timeout=90, what="the next replica"):
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_dead_are_replaced_and_hopeless_slots_given_up(start_sim: Callable[..., Sim], harness: Harness) -> None:
    """X20: A dead replica is out at once and replaced after a back-off; three lost in a row end it (spec 7.9, 6.4)."""
    logs = harness.folder / "logs"
    hosts = [
        sim_host([0, 1, 2], name="mortal"),
        sim_host([3], name="sick"),
        sim_host([4], name="dying"),
        once(harness.folder, 5, name="broken"),
    ]
    timing = ("--replace-after", "1", "--health-interval", "0.5", "--drain-timeout", "60")
    survivor = {"host": "127.0.0.1", "port": start_sim().port, "name": "survivor"}
    fleet = {"replicas": [survivor], "hosts": hosts}
    router = harness.start_router(fleet, *timing, "--initial-replicas", "6")
    router.wait_logs(6, "slot changed", timeout=60, to="ready")
    traffic = Traffic(router)
    reaper = threading.Thread(target=kill_each, args=(router, logs, "dying-d4"), daemon=True)
    reaper.start()
    pids = {slot: next(iter(found)) for slot, found in slot_processes(logs).items()}
    sick = f"http://127.0.0.1:{hosts[1]['port_base'] + 3}"

    request(f"{sick}/sim/faults", "POST", body={"health": "unready"})
    killed_at = time.monotonic()
    for slot in ("mortal-d0", "mortal-d1", "mortal-d2", "broken-d5"):
        os.kill(pids[slot], signal.SIGKILL)
    for slot in ("mortal-d0", "mortal-d1", "mortal-d2", "broken-d5"):
        router.wait_log("replica is not routable", replica=slot)
    assert time.monotonic() - killed_at < 20, "out at once"

    # a wait for a replacement is ended by either decision of an operator
    for slot in ("mortal-d1", "mortal-d2"):
        router.wait_log("slot changed", slot=slot, to="free", timeout=45)
        left = capacity(router)
        assert slot in left["free_slots"], "what is cooling is free to be taken"
        assert {one["slot"]: one["reason"] for one in left["cooling"]}[slot] == "lost its replica"
    assert retire(router, "mortal-d1").status == 200
    assert retire(router, "mortal-d1").status == 404, "there is nothing left to cancel"
    assert launch(router, slot="mortal-d2").status == 202
    router.wait_log("slot changed", slot="mortal-d2", to="launching", cause="operator")

    for slot in ("mortal-d0", "sick-d3"):
        router.wait_log("slot changed", slot=slot, to="launching", cause="replacement", timeout=60)
        assert between(moment(router, slot, "free"), moment(router, slot, "launching", 1)) >= BACKOFF - 0.1
    wait_until(lambda: phases(router).get("mortal-d0") == phases(router).get("sick-d3") == "ready", timeout=45)
    assert not lives(pids["sick-d3"]), "alive and unwell, it was stopped first"
    assert changes(router, "sick-d3")[3:6] == [("draining", "lost"), ("stopping", "idle"), ("free", "stopped")]

    for slot in ("dying-d4", "broken-d5"):
        router.wait_log("slot changed", slot=slot, to="abandoned", timeout=60)
        waits = [between(moment(router, slot, "free", n), moment(router, slot, "launching", n + 1)) for n in (0, 1)]
        assert waits[0] >= BACKOFF - 0.1
        assert waits[1] >= 2 * BACKOFF - 0.1
        assert max(waits) < 2 * BACKOFF + 30
    assert [to for to, _ in changes(router, "broken-d5")].count("ready") == 1
    assert [to for to, _ in changes(router, "dying-d4")].count("ready") == 3
    left = capacity(router)
    assert left["free_slots"] == ["mortal-d1", "dying-d4", "broken-d5"]
    assert {one["slot"]: one["reason"] for one in left["abandoned"]} == dict.fromkeys(
        ("dying-d4", "broken-d5"), "lost 3 replicas in a row"
    )
    assert left["last_errors"]["broken-d5"] == "exited with status 9; its log ends:\nbroken card"
    answers = traffic.end()
    reaper.join()

    assert changes(router, "mortal-d1")[-1] == ("free", "cancelled"), "it was not launched again"
    failed = [status for status in answers if status != 200]
    assert len(answers) > 50
    # Each death may cost the requests that were on the replica, or met its closed door.
    assert set(failed) <= {502}
    assert len(failed) <= 8
    assert launch(router).json()["name"] == "mortal-d1", "what was given up on is taken last"
    assert launch(router).json()["name"] == "dying-d4"
    assert [one["slot"] for one in capacity(router)["abandoned"]] == ["broken-d5"]


@pytest.fixture
def escaped(tmp_path: Path) -> Iterator[Path]:
    """The file that has the pid of a process that no mark leads to; it is ended with the test."""
    path = tmp_path / "escaped.pid"
    yield path
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_processes_that_will_not_end(harness: Harness, tmp_path: Path, escaped: Path) -> None:
    """SIGKILL after the grace of 30 s; an address that still accepts is no confirmed stop (spec 7.6, 7.7)."""
    (tmp_path / "health").write_text("ok")
    server = f'echo $$ > {escaped}; exec {sys.executable} -m http.server "$0" --bind 127.0.0.1'
    script = f"env -i setsid -f sh -c '{server}' \"$1\" > /dev/null 2>&1; exec sleep 600 # for {{model}}"
    daemon = ["sh", "-c", script, "serve", "{port}"]
    hosts = [
        sim_host([0], name="deaf", sim={"ignore_sigterm": True}),
        sim_host([1], name="gone", serve_command=daemon, serve_args=[], workdir=str(tmp_path)),
    ]
    router = harness.start_router({"hosts": hosts}, "--initial-replicas", "2")
    router.wait_ready(2)
    logs = harness.folder / "logs"
    deaf = next(iter(slot_processes(logs)["deaf-d0"]))

    with ThreadPoolExecutor(2) as pool:
        killing = pool.submit(retire, router, "deaf-d0")
        accepted = pool.submit(retire, router, "gone-d1").result(90)
        killed = killing.result(90)
    assert 10 <= between(moment(router, "gone-d1", "stopping"), moment(router, "gone-d1", "unconfirmed")) < 40
    assert 30 <= between(moment(router, "deaf-d0", "stopping"), moment(router, "deaf-d0", "free")) < 60

    assert (accepted.status, accepted.json()["reason"]) == (500, "stop-unconfirmed")
    assert "still accepts connections" in accepted.json()["message"]
    assert unconfirmed(router) == {"gone-d1": "stop-unconfirmed"}
    assert slot_processes(logs) == {}
    assert killed.status == 200
    assert not lives(deaf)

    os.kill(int(escaped.read_text()), signal.SIGKILL)
    assert retire(router, "gone-d1").status == 200
    assert capacity(router)["free_slots"] == ["deaf-d0", "gone-d1"]
