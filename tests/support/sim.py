"""A running simulated replica."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from tests.support.client import request
from tests.support.processes import Process, installed
from tests.support.waiting import wait_until

from pypto_serving_router.sim.completion import answer_pieces, parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INSTANT = ("--sim-prefill-rate", "0", "--sim-decode-rate", "0")
"""No waiting that the test didn't ask for."""

_LISTENING = re.compile(r"^pypto-serving-sim listening on (http://\S+:(\d+)) \(simulation\)\n")


def flags(options: Mapping[str, object]) -> list[str]:
    """Return the `--sim-*` arguments of some options; True is a bare flag, None and False are left out."""
    arguments: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        arguments.append(f"--sim-{name.replace('_', '-')}")
        if value is not True:
            arguments.append(str(value))
    return arguments


def answer_to(body: Mapping[str, Any]) -> str:
    """Return the text that any simulated replica answers to a request."""
    wanted = parse(msgspec.json.encode(body), chat="messages" in body)
    return "".join(answer_pieces(wanted.rendered(), wanted.tokens))


class Sim(Process):
    """A simulated replica that a test started itself."""

    def __init__(self, arguments: list[str], *, env: Mapping[str, str], folder: Path, name: str) -> None:
        super().__init__([installed("pypto-serving-sim"), *arguments], env=env, folder=folder, name=name)
        self.url = ""
        self.port = 0

    def wait_listening(self, timeout: float = 60.0) -> None:
        """Wait for its address."""

        def address() -> re.Match[str] | None:
            if self.status is not None:
                raise AssertionError(f"the simulated replica ended with {self.status}:\n{self.stderr}")
            return _LISTENING.search(self.stdout)

        found = wait_until(address, timeout=timeout, what="the simulated replica's address")
        assert found
        self.url, self.port = found[1], int(found[2])

    def state(self) -> dict[str, Any]:
        """Return its counters."""
        state: dict[str, Any] = request(f"{self.url}/sim/state").json()
        return state

    def wait_state(self, timeout: float = 30.0, **wanted: object) -> dict[str, Any]:
        """Return its counters once they have these values."""

        def seen() -> dict[str, Any] | None:
            state = self.state()
            return state if all(state[name] == value for name, value in wanted.items()) else None

        state = wait_until(seen, timeout=timeout, what=f"{wanted} at {self.url}")
        assert state
        return state

    def fault(self, **changes: object) -> dict[str, Any]:
        """Change some faults; return those in force."""
        answer = request(f"{self.url}/sim/faults", "POST", body=changes)
        assert answer.status == 200, answer.body
        faults: dict[str, Any] = answer.json()
        return faults

    def heal(self) -> None:
        """Take all faults back."""
        assert request(f"{self.url}/sim/faults", "DELETE").status == 200
