"""A router with its replicas, how it is asked, and the counts that must be back where they were."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import h11
from tests.support.client import chat
from tests.support.sim import answer_to
from tests.support.talk import post
from tests.support.waiting import wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from tests.support.harness import Fleet, Harness
    from tests.support.router import Router
    from tests.support.sim import Sim

SETTLES_WITHIN = 20.0
_POOLED_THREADS = 2 + 4 + min(32, (os.cpu_count() or 1) + 4)
"""The main one and the log's, libuv's pool and the event loop's: they are started when first needed, and stay."""

_QUICK = ("--health-interval", "0.3", "--connect-timeout", "1", "--drain-timeout", "3")


@dataclass(frozen=True, slots=True)
class Counts:
    """What a fault must not leave behind."""

    leases: int
    clients: int
    upstreams: int
    tasks: int
    descriptors: int
    threads: int
    processes: int

    def above(self, other: Counts) -> list[str]:
        """Name the counts that are higher than in `other`."""
        pairs = ((field.name, getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return [f"{name} {mine} instead of {theirs}" for name, mine, theirs in pairs if mine > theirs]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of one request: `complete`, `cut`, or a status; on which replica, after how many seconds."""

    what: str
    replica: str = ""
    seconds: float = 0.0


class Scene:
    """One router at a time; `start` begins the counting."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.sims: list[Sim] = []
        self._pool = ThreadPoolExecutor(64)
        self._start: Counts | None = None
        self._router: Router | None = None

    @property
    def router(self) -> Router:
        """The router that runs."""
        assert self._router
        return self._router

    def start(self, fleet: Fleet, *options: str, ready: int | None = None, **how: Any) -> Router:
        """Start a router, and count what it has once it is at rest."""
        self._router = router = self.harness.start_router(fleet, *_QUICK, *options, **how)
        if ready is None:
            ready = len(fleet) if isinstance(fleet, list) else 0
        if ready:
            router.wait_ready(ready)
            assert self.ask().what == "complete"
        self.count()
        return router

    def adopt(self, router: Router) -> None:
        """Take a router that was started in another way, and count what it has once it is at rest."""
        self._router = router
        self.count()

    def start_sims(self, count: int, *options: str, **faults: Any) -> list[Sim]:
        """Start simulated replicas that keep no idle connection for long, and a router in front of them."""
        self.sims = [self.harness.start_sim(**{"keep_alive": 0.2, "decode_rate": 200, **faults}) for _ in range(count)]
        self.start(list(self.sims), *options)
        return self.sims

    def count(self) -> None:
        """Take what there is now for what there is at rest."""
        wait_until(lambda: self._look().upstreams == 0, what="no kept connections")
        looks = [self._look() for _ in range(5)]
        lowest = Counts(*(min(getattr(look, field.name) for look in looks) for field in fields(Counts)))
        self._start = replace(lowest, threads=max(lowest.threads, _POOLED_THREADS))

    def restart(self, sim: Sim) -> Sim:
        """Start a replica that has ended again, at its address."""
        again = self.harness.start_sim("--port", str(sim.port), keep_alive=0.2, decode_rate=200)
        self.sims[self.sims.index(sim)] = again
        return again

    def close(self) -> None:
        """Wait for whoever still asks."""
        self._pool.shutdown(cancel_futures=True)

    # --- asking ---

    def ask(self, *, tokens: int = 8, timeout: float = 20.0, stream: bool = True, **headers: str) -> Seen:
        """Send one request, and check its answer against it.

        Raises:
            AssertionError: the answer is not to this request, or nothing at all came.
        """
        body = chat(uuid4().hex, max_tokens=tokens, stream=stream)
        began = time.monotonic()
        try:
            with Wire.connect(self.router.port, timeout=timeout) as wire:
                wire.send(post(body, **headers))
                answer = wire.read_answer("POST")
        except (h11.RemoteProtocolError, ConnectionError):
            return Seen("cut", seconds=time.monotonic() - began)
        seconds = time.monotonic() - began
        replica = answer.header("X-Router-Replica") or ""
        if answer.status != 200:
            return Seen(str(answer.status), replica, seconds)
        texts = re.findall(rb'"content":"([^"]*)"', answer.body)
        assert b"".join(texts).decode() == answer_to(body), "the answer is not to this request"
        return Seen("complete", replica, seconds)

    def ask_many(self, count: int, **how: Any) -> list[Future[Seen]]:
        """Send requests at the same time."""
        return [self._pool.submit(self.ask, **how) for _ in range(count)]

    def begin(self, act: Callable[..., Any], *args: Any, **how: Any) -> Future[Any]:
        """Do something beside."""
        return self._pool.submit(act, *args, **how)

    def under_way(self, count: int) -> None:
        """Wait until that many requests are with replicas."""
        wait_until(lambda: self._look().leases >= count, what=f"{count} requests under way")

    def connected(self, count: int) -> None:
        """Wait until the router has accepted that many connections, the one that asks included."""
        wait_until(lambda: self._look().clients >= count, what=f"{count} connections")

    def post(self, path: str = "/replicas", **how: Any) -> int:
        """Return the status of a POST."""
        return self.router.request("POST", path, timeout=60, **how).status

    # --- timing ---

    def until_ready(self, count: int, *, timeout: float = 30.0) -> float:
        """Return how many seconds it took until that many replicas were routable."""
        return self.until(lambda: self.router.health()["replicas_ready"] == count, timeout, f"{count} ready replicas")

    def until_served(self, *, timeout: float = 30.0) -> float:
        """Return how many seconds it took until a request was answered."""
        return self.until(lambda: self.ask().what == "complete", timeout, "an answer")

    def until(self, condition: Callable[[], object], timeout: float, what: str) -> float:
        """Return how many seconds it took."""
        began = time.monotonic()
        wait_until(condition, timeout=timeout, what=what)
        return time.monotonic() - began

    def pause(self, seconds: float) -> None:
        """Let a fault last."""
        threading.Event().wait(seconds)

    # --- counting ---

    def left_over(self) -> list[str]:
        """Return what is more than at the start, once it has had the time to go."""
        if self._start is None or self.router.status is not None:
            return []
        start = self._start
        try:
            wait_until(lambda: not self._look().above(start), timeout=SETTLES_WITHIN, what="rest")
        except AssertionError:
            return self._look().above(start)
        return []

    def _look(self) -> Counts:
        metrics = self.router.request("GET", "/metrics").body.decode()
        process = Path(f"/proc/{self.router.pid}")

        def value(name: str) -> int:
            return sum(
                int(n) for n in re.findall(rf"^pypto_router_{name}(?:{{[^}}]*}})? (\d+)$", metrics, re.MULTILINE)
            )

        return Counts(
            leases=value("replica_outstanding"),
            clients=value("client_connections"),
            upstreams=value("upstream_connections"),
            tasks=value("tasks"),
            descriptors=sum(1 for _ in (process / "fd").iterdir()),
            threads=sum(1 for _ in (process / "task").iterdir()),
            processes=len(self.harness.launched()),
        )


def tell(seen: Iterable[Seen | Future[Seen]]) -> str:
    """Word what several clients saw."""
    whats = [one.what if isinstance(one, Seen) else one.result().what for one in seen]
    return ", ".join(f"{count}x {what}" if len(whats) > 1 else what for what, count in sorted(Counter(whats).items()))
