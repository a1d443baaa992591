"""A console that remembers what was written, a clock that is told, and a router that says what the test says."""

from __future__ import annotations

import io
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from pypto_serving_router.terminal.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypto_serving_router.errors import RouterError

WALL = 1_700_000_000.0  # 2023-11-14T22:13:20Z


class Stream(io.StringIO):
    """Text that may pass for a terminal's."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def fileno(self) -> int:
        return 0

    @property
    def lines(self) -> list[str]:
        return self.getvalue().splitlines()


class Desk:
    """A console with its streams and its time; `at` is called in each sleep with the seconds that have passed."""

    def __init__(self) -> None:
        self.out, self.err = Stream(), Stream()
        self.time = 0.0
        self.at: Callable[[float], None] = lambda _: None
        self.console = Console(
            out=self.out,
            err=self.err,
            now=lambda: self.time,
            wall=lambda: WALL + self.time,
            sleep=self.sleep,
            program="router",
        )

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        assert self.time < 10_000, "the command does not end"
        self.at(self.time)


def row(name: str = "node-d0", **changes: Any) -> dict[str, Any]:
    """Return what the router says of a replica."""
    return {
        "name": name,
        "url": f"http://{name}:8001",
        "ready": True,
        "outstanding": 0,
        "phase": "ready",
        "draining": False,
        "owned": True,
        "routed": 0,
        "sessions": 0,
        "slot": name,
        "since": "2023-11-14T22:13:00.000Z",
        "last_error": None,
    } | changes


class FakeRouter:
    """Stands for the client; what it answers is changed by the test."""

    url = "http://router:8000"

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)
        self.counters = {"sessions": 14, "routed": 512, "affinity_hits": 498, "rejected": 0}
        self.capacity: dict[str, Any] = {
            "ceiling": 2, "owned": 1, "free_slots": ["node-d1"], "cooling": [], "unconfirmed": [], "abandoned": [],
            "last_errors": {},
        }  # fmt: skip
        self.events: list[dict[str, Any]] = []
        self.text = b""
        self.told: dict[str, Any] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.has_token = True
        self.errors: dict[str, RouterError] = {}
        """By question."""

    def health(self) -> dict[str, Any]:
        self._note("health")
        phases = [row["phase"] for row in self.rows]
        shown = ("name", "url", "ready", "outstanding", "phase")
        return {
            "status": "ok" if "ready" in phases else "unavailable",
            "replicas_ready": phases.count("ready"),
            "replicas_total": len(phases),
            "replicas_failed": phases.count("failed"),
            **self.counters,
            "replicas": [{name: row[name] for name in shown} for row in self.rows],
        }

    def fleet(self, events: int = 0) -> dict[str, Any]:
        self._note("fleet", events)
        more = {"events": self.events[-events:]} if events else {}
        return deepcopy({"replicas": self.rows, "capacity": self.capacity, **more})

    def decisions(self, session: str | None, last: int) -> dict[str, Any]:
        self._note("decisions", session, last)
        return self.told

    def launch(self, where: dict[str, str]) -> dict[str, Any]:
        self._note("launch", where)
        self.rows.append(row(where.get("slot", "node-d1"), phase="starting", ready=False))
        return self.rows[-1]

    def retire(self, name: str, *, force: bool) -> None:
        self._note("retire", name, force)

    def log(self, name: str, lines: int) -> bytes:
        self._note("log", name, lines)
        return b"".join(self.text.splitlines(keepends=True)[-lines:])

    def _note(self, *question: Any) -> None:
        self.asked.append(question)
        if question[0] in self.errors:
            raise self.errors[question[0]]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def terminal(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk whose streams are terminals, without colours."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    desk.out.terminal = desk.err.terminal = True
    return desk
