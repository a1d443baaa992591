"""What clients do wrong."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from tests.support.client import chat
from tests.support.ports import swallowing_port
from tests.support.talk import post
from tests.support.waiting import wait_until
from tests.support.wire import Wire

from faults.cell import Outcome, cell

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.scene import Scene


@cell()
def never_reads(scene: Scene) -> Outcome:
    """A client asks for 50 MB and never reads."""
    (sim,) = scene.start_sims(1)
    before = _resident(scene)
    with Wire.connect(scene.router.port, receive_buffer=4096) as wire:
        wire.send(post(chat("x", max_tokens=50), X_Sim_Faults=f'{{"answer_bytes": {50 << 20}}}'))
        scene.under_way(1)
        scene.pause(2.0)
        grown = _resident(scene) - before
        assert grown < 16 << 20, f"{grown} bytes are held for one client"
    sim.wait_state(running=0, waiting=0)
    assert scene.ask().what == "complete"
    return Outcome(f"its own backpressure; the router held {grown / 2**20:.1f} MiB", 0.0)


@cell()
def never_writes(scene: Scene) -> Outcome:
    """A client connects and never writes."""
    scene.start_sims(1)
    with Wire.connect(scene.router.port, timeout=30) as wire:
        began = time.monotonic()
        ending = wire.read_ending()
        waited = time.monotonic() - began
    assert 10 < waited < 20
    return Outcome(f"the end ({ending}) after {waited:.0f} s")


@cell()
def writes_a_byte_a_second(scene: Scene) -> Outcome:
    """A client writes its head a byte a second."""
    scene.start_sims(1)
    head = post(chat("x"))
    with Wire.connect(scene.router.port, timeout=30) as wire:
        began = time.monotonic()
        for index in range(len(head)):
            wire.send(head[index : index + 1])
            if not wire.is_silent(1.0):
                break
        status = wire.read_answer("POST").status
    assert status == 408
    return Outcome(f"408 after {time.monotonic() - began:.0f} s")


@cell()
def writes_a_body_slowly(scene: Scene) -> Outcome:
    """A client stops in the middle of a body."""
    scene.start_sims(1)
    data = post(chat("x"))
    with Wire.connect(scene.router.port, timeout=40) as wire:
        began = time.monotonic()
        wire.send(data[:-5])
        status = wire.read_answer("POST").status
    assert status == 408
    return Outcome(f"408 after {time.monotonic() - began:.0f} s")


def _leaves(scene: Scene, until: Callable[[Wire], object]) -> Outcome:
    """Let clients leave, by FIN and by reset, once something has happened; the replica must hear of it."""
    (sim,) = scene.sims or scene.start_sims(1)
    heard = 0.0
    for hard in (False, True):
        wire = Wire.connect(scene.router.port)
        until(wire)
        if hard:
            wire.reset()
        else:
            wire.close()
        began = time.monotonic()
        sim.wait_state(running=0, waiting=0)
        heard = time.monotonic() - began
    assert scene.ask().what == "complete"
    return Outcome(f"it has left; its replica is idle after {heard:.2f} s", 0.0)


@cell()
def leaves_in_its_head(scene: Scene) -> Outcome:
    """A client leaves in its head."""
    return _leaves(scene, lambda wire: wire.send(post(chat("x"))[:30]))


@cell()
def leaves_in_its_body(scene: Scene) -> Outcome:
    """A client leaves in its body."""
    return _leaves(scene, lambda wire: wire.send(post(chat("x"))[:-3]))


@cell()
def leaves_in_a_body_that_is_streamed_through(scene: Scene) -> Outcome:
    """A client leaves in a body that is streamed through."""
    scene.start_sims(1)
    data = post(chat("x" * 1000), X_Session_Id="a")

    def until(wire: Wire) -> None:
        wire.send(data[:-500])
        scene.under_way(1)

    return _leaves(scene, until)


@cell()
def leaves_before_the_answer(scene: Scene) -> Outcome:
    """A client leaves before its answer."""
    scene.start_sims(1)

    def until(wire: Wire) -> None:
        wire.send(post(chat("x"), X_Sim_Faults='{"break_with": "hang", "break_after": -1}'))
        scene.under_way(1)

    return _leaves(scene, until)


@cell(quick=True)
def leaves_in_a_stream(scene: Scene) -> Outcome:
    """A client leaves in a stream."""
    scene.start_sims(1)

    def until(wire: Wire) -> None:
        wire.send(post(chat("x", max_tokens=4000, stream=True)))
        wire.read_until(b"data: ")

    return _leaves(scene, until)


@cell()
def leaves_in_a_silent_stream(scene: Scene) -> Outcome:
    """A client leaves in a stream that has fallen silent."""
    scene.start_sims(1)

    def until(wire: Wire) -> None:
        wire.send(post(chat("x", stream=True), X_Sim_Faults='{"break_with": "hang", "break_after": 1}'))
        wire.read_until(b"data: ")

    return _leaves(scene, until)


@cell()
def leaves_while_its_replica_is_connected_to(scene: Scene) -> Outcome:
    """A client leaves while its replica is connected to."""
    with swallowing_port() as port:
        scene.start([f"http://127.0.0.1:{port}"], "--health-interval", "60", "--connect-timeout", "30", ready=0)
        with Wire.connect(scene.router.port) as wire:
            wire.send(post(chat("x")))
            scene.under_way(1)
        began = time.monotonic()
        wait_until(lambda: not scene.router.health()["replicas"][0]["outstanding"], what="the end of the lease")
        return Outcome(f"it has left; the lease ended after {time.monotonic() - began:.2f} s")


@cell()
def leaves_between_requests(scene: Scene) -> Outcome:
    """Two hundred clients leave after their answers, half of them by reset."""
    scene.start_sims(1)
    for index in range(200):
        wire = Wire.connect(scene.router.port)
        wire.send(post(chat("x", max_tokens=1)))
        assert wire.read_answer("POST").status == 200
        if index % 2:
            wire.sock.setsockopt(1, 13, struct.pack("ii", 1, 0))
        wire.close()
    return Outcome("200x complete")


@cell()
def floods(scene: Scene) -> Outcome:
    """Five hundred clients connect at once, send rubbish and stay."""
    scene.start_sims(1)
    rubbish = [
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\n\n",
        b"A" * 70_000,
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9",
    ]
    wires = [Wire.connect(scene.router.port) for _ in range(500)]
    for index, wire in enumerate(wires):
        wire.send(rubbish[index % len(rubbish)])
    seen = scene.ask()
    assert seen.what == "complete"
    for wire in wires:
        wire.close()
    return Outcome(f"another client's request complete in {seen.seconds:.2f} s")


def _resident(scene: Scene) -> int:
    metrics = scene.router.request("GET", "/metrics").body.decode()
    return int(
        next(line for line in metrics.splitlines() if line.startswith("process_resident_memory_bytes ")).split()[1]
    )
