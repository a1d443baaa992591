"""The router's log as an operator meets it: on a terminal, in a file, and in a flood."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.support.client import chat, request
from tests.support.fleet import replica
from tests.support.ports import free_port
from tests.support.processes import environment, installed
from tests.support.screen import Screen
from tests.support.talk import CHAT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.router import Router
    from tests.support.sim import Sim

# Time, level and event have their columns, and a field begins where the first one of any other record does.
ALIGNED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info   |warning|error  ) (?=\S)(.{32}) \w+=.*")


@pytest.mark.parametrize("colours", [True, False])
def test_on_a_terminal(colours: bool, start_sim: Callable[..., Sim], tmp_path: Path) -> None:
    """On a terminal records are aligned, and coloured unless that is not wanted, access records, too (spec 9)."""
    sim = start_sim()
    port = free_port()
    fleet = tmp_path / "fleet.json"
    fleet.write_text(json.dumps({"replicas": [replica(sim.url, name="node0"), replica(sim.url[:-1] + "0", name="n1")]}))
    screen = Screen(
        [
            *(installed("pypto-serving-router"), "--replicas", str(fleet), "--host", "127.0.0.1", "--port", str(port)),
            *("--health-interval", "0.2", "--access-log"),
        ],
        env=environment({"NO_COLOR": None if colours else "1"}),
        folder=tmp_path,
        columns=400,
    )
    try:
        screen.shows("listening +url=")
        assert request(f"http://127.0.0.1:{port}{CHAT}", "POST", body=chat("Hello")).status == 200
        screen.shows("exchange ended .* replica=node0")
        screen.shows("replica is not routable .* replica=n1")
        screen.interrupt()
        assert screen.end() == 0
    finally:
        screen.close()

    lines = screen.text.split("\r\n")[:-1]
    assert [line for line in lines if not ALIGNED.fullmatch(line)] == []
    assert {len(match[2]) for line in lines if (match := ALIGNED.fullmatch(line))} == {32}
    assert ("\x1b[" in screen.written) is colours
    if colours:
        assert all(line.startswith("\x1b[2m2") for line in screen.written.split("\r\n")[:-1])
        assert "\x1b[33mwarning\x1b[0m replica is not routable" in screen.written


def test_each_event_once(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """A replica that goes and comes back is four changes of health, and a record each (spec 9)."""
    sim = start_sim()
    router = start_router([replica(sim.url, name="node0")], "--health-interval", "0.1")

    for _ in range(2):
        sim.fault(health="unready")
        wait_until(lambda: router.health()["replicas_failed"])
        sim.heal()
        router.wait_ready(1)

    router.wait_logs(2, "replica is routable", replica="node0")
    told = Counter(record["event"] for record in router.log_events() if record.get("replica") == "node0")
    assert told == {"replica is not routable": 2, "replica is routable": 2}


def test_a_flood_of_failed_requests(start_router: Callable[..., Router], start_sim: Callable[..., Sim]) -> None:
    """Requests that fail by the hundred are a record or two, which say how many there were (spec 9)."""
    sim = start_sim(break_with="fin")
    router = start_router([replica(sim.url, name="node0")], "--health-interval", "0.05")

    failed = 0
    while failed < 8:
        router.wait_ready(1)  # each failure takes it out of rotation for a probe or two
        failed += router.request("POST", CHAT, body=chat("Hello")).status == 502

    assert len(router.wait_logs(1, "exchange failed")) == 1
