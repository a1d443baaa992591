"""Launching replicas: what is taken, what is told, and what becomes of a launch that fails."""

from __future__ import annotations

import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.client import chat, request
from tests.support.fleet import sim_host
from tests.support.owned import capacity, launch, phases, retire, slot_processes, unconfirmed
from tests.support.talk import CHAT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.harness import Harness
    from tests.support.sim import Sim


def shell_host(script: str, devices: tuple[int, ...] = (0,), **fields: Any) -> dict[str, Any]:
    """A host whose serving command is a shell script."""
    return sim_host(devices, serve_command=["sh", "-c", script, "serve", "{model}"], serve_args=[], **fields)


def test_a_launch_starts_and_becomes_ready(harness: Harness) -> None:
    """POST answers 202 with a starting replica, not routable until its probe succeeds (spec 6.3, 7.2, 5.3, 5.5)."""
    host = sim_host([0, 1], sim={"load_delay": 1.0}, env={"PYPTO_PROG_BUILD_DIR": "/scratch/build_d{device}"})
    router = harness.start_router({"hosts": [host]}, "--initial-replicas", "0", env={"PYPTO_ROUTER_DRAIN_TIMEOUT": "3"})
    assert router.health()["status"] == "unavailable"

    answer = launch(router)
    row = answer.json()
    refused = router.request("POST", CHAT, body=chat("Hello"))
    ready = router.wait_ready(1)
    served = router.request("POST", CHAT, body=chat("Hello"))

    url = f"http://127.0.0.1:{host['port_base']}"
    assert answer.status == 202
    assert row == {
        "name": "node-d0",
        "slot": "node-d0",
        "url": url,
        "phase": "starting",
        "ready": False,
        "owned": True,
        "draining": False,
        "outstanding": 0,
        "routed": 0,
        "sessions": 0,
        "first_byte": {"answers": 0, "seconds": 0.0},
        "last_error": None,
        "since": row["since"],
    }
    assert refused.status == 503
    assert served.status == 200
    assert ready["replicas"][0]["phase"] == "ready"
    assert capacity(router)["free_slots"] == ["node-d1"]
    state = request(f"{url}/sim/state").json()
    assert (state["build_dir"], state["devices"], state["model"]) == ("/scratch/build_d0", "0", "qwen")
    (pid,) = slot_processes(harness.folder / "logs")["node-d0"]
    assert state["pid"] == pid
    moves = [(one["from"], one["to"]) for one in router.wait_logs(3, "slot changed")]
    assert moves == [("free", "launching"), ("launching", "starting"), ("starting", "ready")]


def test_a_launched_replica_serves_as_soon_as_it_can(harness: Harness) -> None:
    """While it loads it is asked every second, however rarely replicas are asked otherwise (spec 5.3)."""
    host = sim_host(sim={"load_delay": 0.5})
    router = harness.start_router({"hosts": [host]}, "--initial-replicas", "1", "--health-interval", "300")

    router.wait_ready(1, timeout=30)

    router.wait_log("replica is routable", replica="node-d0")
    assert router.log_events("replica is not routable") == []


def test_slots_are_chosen_in_order_or_by_name(harness: Harness) -> None:
    """The next free slot in order, or by slot or host; 404, 409 and a capacity tell what can't be (spec 6.3, 7.1)."""
    hosts = [sim_host([3, 1], name="a"), sim_host([0, 2], name="b")]
    router = harness.start_router({"hosts": hosts}, "--initial-replicas", "1", "--max-replicas", "3")
    wait_until(lambda: phases(router) == {"a-d3": "ready"}, what="the initial replica")

    assert launch(router, slot="a-d3").json()["error"]["code"] == "slot_busy"
    assert launch(router, host="b").json()["name"] == "b-d0"
    assert launch(router, slot="c-d0").status == 404
    assert launch(router, host="c").status == 404
    assert launch(router, slot="b-d2", host="b").status == 400
    assert router.request("POST", "/replicas", body=b"{oops").status == 400
    assert launch(router).json()["name"] == "a-d1"
    full = launch(router)
    assert (full.status, full.json()["error"]["code"]) == (409, "pool_full")
    left = full.json()["capacity"]
    assert (left["ceiling"], left["owned"], left["free_slots"]) == (3, 3, ["b-d2"])
    assert retire(router, "a-d3").status == 200
    assert launch(router, slot="b-d2").status == 202
    assert sorted(phases(router)) == ["a-d1", "b-d0", "b-d2"]


def test_initial_replicas_are_launched_at_once(harness: Harness) -> None:
    """They load at the same time, in order; one that fails is logged and the others go on (spec 7.2, 7.1)."""
    hosts = [
        sim_host([0, 1], name="good", sim={"load_delay": 1.0}),
        sim_host([2], name="bad", serve_command=["no-such-program"]),
        sim_host([3], name="late", sim={"load_delay": 1.0}),
    ]
    router = harness.start_router({"hosts": hosts}, "--initial-replicas", "4")

    router.wait_ready(3)

    router.wait_logs(3, "slot changed", to="ready")
    changes = [(one["to"], one["slot"]) for one in router.log_events("slot changed")]
    assert changes[:4] == [("launching", slot) for slot in ("good-d0", "good-d1", "bad-d2", "late-d3")]
    first_ready = next(index for index, (to, _) in enumerate(changes) if to == "ready")
    assert [to for to, _ in changes[:first_ready]].count("starting") == 3
    told = router.wait_logs(1, "initial replica not launched")
    assert len(told) == 1
    assert "no-such-program" in told[0]["error"]
    left = capacity(router)
    assert left["free_slots"] == ["bad-d2"]
    assert "no-such-program" in left["last_errors"]["bad-d2"]


def test_a_launch_error_is_a_502(harness: Harness) -> None:
    """A command that can't be run is told with its slot and reason, tries no other slot, and frees it (spec 6.3)."""
    hosts = [sim_host([0], name="bad", serve_command=["/no/such/program"]), sim_host([1], name="good")]
    router = harness.start_router({"hosts": hosts}, "--initial-replicas", "0")

    answer = launch(router)

    assert (answer.status, answer.json()["error"]["code"], answer.json()["slot"]) == (502, "launch_failed", "bad-d0")
    assert "cannot run /no/such/program: No such file or directory" in answer.json()["message"]
    left = capacity(router)
    assert (left["free_slots"], left["owned"], phases(router)) == (["bad-d0", "good-d1"], 0, {})
    assert "No such file" in left["last_errors"]["bad-d0"]


def test_a_replica_that_exits_while_it_loads_is_told_at_once(harness: Harness) -> None:
    """It ends the launch with its status and last words, which outlive it as its log does (spec 7.5, 6.2, 6.5)."""
    script = "echo one; echo 'wants 8 devices, got 1' >&2; exit 3"
    router = harness.start_router({"hosts": [shell_host(script)]}, "--initial-replicas", "0", "--launch-timeout", "600")

    answer = launch(router)
    assert answer.status in (202, 502), "it may be gone before it is seen to run"
    left = wait_until(lambda: (now := capacity(router))["free_slots"] and now, timeout=45, what="the end of the launch")

    assert left["last_errors"]["node-d0"] == "exited with status 3; its log ends:\none\nwants 8 devices, got 1"
    assert left["unconfirmed"] == left["abandoned"] == []
    assert slot_processes(harness.folder / "logs") == {}
    log = router.request("GET", "/replicas/node%2Dd0/log?lines=2")
    assert (log.status, log.body) == (200, b"one\nwants 8 devices, got 1\n")
    assert log.header("Content-Type") == "text/plain; charset=utf-8"
    whole = router.request("GET", "/replicas/node-d0/log").body
    assert whole.startswith(b"--- node-d0 launch ")
    router.wait_log("slot changed", to="free")
    assert len(router.log_events("slot changed", cause="exited")) == 1, "a first launch is not retried"


def test_logs_of_what_is_not_there(start_sim: Callable[..., Sim], harness: Harness) -> None:
    """A declared slot without a launch has an empty log; a static replica's is not the router's (spec 6.5)."""
    sim = start_sim()
    static = {"host": "127.0.0.1", "port": sim.port, "name": "static"}
    router = harness.start_router({"replicas": [static], "hosts": [sim_host()]}, "--initial-replicas", "0")

    empty = router.request("GET", "/replicas/node-d0/log")
    unknown = router.request("GET", "/replicas/node-d7/log")
    foreign = router.request("GET", "/replicas/static/log")

    assert (empty.status, empty.body) == (200, b"")
    assert (unknown.status, foreign.status) == (404, 409)


def test_a_launch_that_takes_too_long_is_stopped(harness: Harness) -> None:
    """Not ready within `--launch-timeout`, it is stopped, and its slot is freed (spec 7.5)."""
    host = sim_host([0], sim={"load_delay": 600})
    router = harness.start_router({"hosts": [host]}, "--launch-timeout", "1.5", "--initial-replicas", "1")
    logs = harness.folder / "logs"
    wait_until(lambda: "node-d0" in slot_processes(logs), what="the process")
    assert capacity(router)["free_slots"] == []

    left = wait_until(lambda: (now := capacity(router))["free_slots"] and now, timeout=45, what="the slot's freedom")

    assert slot_processes(logs) == {}
    assert "not ready within 1.5 s" in left["last_errors"]["node-d0"]
    causes = [one["cause"] for one in router.wait_logs(1, "slot changed", to="stopping")]
    assert causes == ["launch-timeout"]


def test_an_address_in_use_reserves_the_slot(harness: Harness) -> None:
    """Where a stranger answers, nothing is started; the slot is reserved and the next is taken (spec 7.4, 6.4)."""
    host = sim_host([0, 1, 2])
    first, second = host["port_base"], host["port_base"] + 1
    with socket.create_server(("127.0.0.1", first)) as silent, socket.create_server(("127.0.0.1", second)):
        router = harness.start_router({"hosts": [host]}, "--initial-replicas", "0")

        taken = launch(router)
        assert (taken.status, taken.json()["name"]) == (202, "node-d2"), "it accepts, and that is enough"
        assert unconfirmed(router) == {"node-d0": "address-in-use", "node-d1": "address-in-use"}
        by_name = launch(router, slot="node-d1")
        assert (by_name.status, by_name.json()["error"]["code"]) == (409, "slot_busy")
        assert launch(router).status == 409

        still = retire(router, "node-d0")
        assert (still.status, still.json()["reason"]) == (500, "address-in-use")
        assert retire(router, "node-d1", force=True).status == 200
        silent.close()
        assert retire(router, "node-d0").status == 200

    assert unconfirmed(router) == {}
    assert capacity(router)["free_slots"] == ["node-d0", "node-d1"]
    assert launch(router).json()["name"] == "node-d0"
    assert set(slot_processes(harness.folder / "logs")) == {"node-d0", "node-d2"}


def test_the_token_guards_the_fleet(harness: Harness) -> None:
    """With `--admin-token` nothing under /replicas is done without it, and the token is nowhere (spec 6.6, 1.3)."""
    router = harness.start_router(
        {"hosts": [sim_host(env={"SHOWN": "yes"})]},
        *("--initial-replicas", "0"),
        env={"PYPTO_ROUTER_ADMIN_TOKEN": "s3cret-token"},
    )
    bearer = {"Authorization": "Bearer s3cret-token"}

    without = router.request("POST", "/replicas")
    wrong = router.request("DELETE", "/replicas/node-d0", headers={"Authorization": "Bearer s3cret-tokem"})
    foreign = router.request("POST", "/replicas", headers={**bearer, "Origin": "https://evil.example"})
    right = router.request("POST", "/replicas", headers=bearer)

    assert [answer.status for answer in (without, wrong, foreign, right)] == [401, 401, 403, 202]
    assert without.header("WWW-Authenticate")
    assert router.health()["replicas_total"] == 1, "health is anybody's"
    (pid,) = slot_processes(harness.folder / "logs")["node-d0"]
    environment = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8")
    assert "\0SHOWN=yes\0" in environment
    for where in (environment, Path(f"/proc/{router.pid}/cmdline").read_text(encoding="utf-8"), router.stderr):
        assert "s3cret" not in where
    assert "PYPTO_ROUTER" not in environment


def test_another_engine_can_be_launched(harness: Harness, tmp_path: Path) -> None:
    """A serving command with {model} in it is the whole command, run in its own folder (spec 2.3-2.5)."""
    workdir = tmp_path / "work dir"
    (workdir / "v1").mkdir(parents=True)
    (workdir / "health").write_text("ok")
    (workdir / "v1" / "models").write_text("it's {model}")
    script = f'exec {shlex.quote(sys.executable)} -m http.server "$1" --bind 127.0.0.1 # serves {{model}}'
    host = sim_host([5], serve_command=["sh", "-c", script, "serve", "{port}"], serve_args=[], workdir=str(workdir))
    router = harness.start_router({"hosts": [host]}, "--initial-replicas", "1")

    router.wait_ready(1)

    answer = router.request("GET", "/v1/models")
    assert (answer.status, answer.body) == (200, b"it's {model}")
    assert phases(router) == {"node-d5": "ready"}
