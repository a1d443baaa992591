"""Start, inspect, stop and read the replicas of slots, wherever they are: what `slotctl` answers, as observations.

A question that gets no answer is `Unknown`, never `Gone`. There is one exception: a start first asks for something
harmless, and where even that fails nothing was started, so the start is *refused*.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import sys
from dataclasses import asdict
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
import structlog

from pypto_serving_router.core.ids import HostId
from pypto_serving_router.core.slot import Gone, Launched, Occupied, ProcessHandle, Unknown
from pypto_serving_router.errors import TransportError
from pypto_serving_router.launch import slotctl
from pypto_serving_router.launch.command import slot_command
from pypto_serving_router.launch.local import LocalTransport
from pypto_serving_router.launch.ssh import SshTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from pypto_serving_router.config.model import SlotSpec
    from pypto_serving_router.core.ids import SlotId
    from pypto_serving_router.core.slot import Slot
    from pypto_serving_router.launch.transport import Completed, Transport

Action: TypeAlias = Literal["start", "inspect", "inspect-all", "stop", "log"]

AT_ONCE = 8
"""Commands on one host. By default sshd drops connections when more than 10 are logging in."""

LONGEST_DETAIL = 8192
"""Characters of a detail, twice what `slotctl` gives: it is logged, shown and written to the state file."""


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `slotctl` says; which fields are set depends on the state."""

    state: Literal["running", "refused", "occupied", "gone", "left", "unknown", "failed", "log", "inspected"]
    pid: int = 0
    started_at: str = ""
    boot_id: str = ""
    exit_status: int | None = None
    detail: str = ""
    data: str = ""
    answers: tuple[_Answer, ...] = ()

    def __post_init__(self) -> None:
        """Keep a detail to what anybody would read."""
        msgspec.structs.force_setattr(self, "detail", self.detail[:LONGEST_DETAIL])


class _Place:
    """A slot, the way to its host, and what is said there about it every time."""

    def __init__(self, spec: SlotSpec, transport: Transport, turns: asyncio.Semaphore) -> None:
        command = slot_command(spec)
        self.host = HostId(spec.host.name)
        self.transport = transport
        self.turns = turns
        self.python = "python3" if spec.host.ssh else sys.executable
        self.job = {
            "argv": command.argv,
            "env": command.env,
            "workdir": command.workdir,
            "log": command.log_path,
            "stop_argv": command.stop_argv,
            "wrapped": bool(spec.host.launch_wrapper),
        }


class Launcher:
    """Acts on slots, each on its own host.

    `connect_timeout` and `alive_interval` are the ssh client's, as in `SshTransport`. `patience` is what a host has for
    an answer beside what it was told to wait for; with all three, every outcome comes within a bounded time.
    `observe(host, action, seconds, outcome)` is called for each command, with the outcome `ok` or `error`.
    """

    def __init__(
        self,
        slots: Iterable[SlotSpec],
        *,
        connect_timeout: float = 10.0,
        alive_interval: float = 5.0,
        patience: float = 30.0,
        observe: Callable[[HostId, Action, float, str], None] = lambda *_: None,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        self._patience = connect_timeout + patience
        self._observe = observe
        self._log: FilteringBoundLogger = log or structlog.get_logger()
        self._program = resources.files("pypto_serving_router.launch").joinpath("slotctl.py").read_text("utf-8")
        ways: dict[str, tuple[Transport, asyncio.Semaphore]] = {}
        self._places: dict[SlotId, _Place] = {}
        for slot in slots:
            if slot.host.name not in ways:
                transport: Transport = LocalTransport()
                if slot.host.ssh is not None:
                    transport = SshTransport(
                        slot.host.ssh,
                        identity_file=slot.host.identity_file,
                        connect_timeout=connect_timeout,
                        alive_interval=alive_interval,
                    )
                ways[slot.host.name] = transport, asyncio.Semaphore(AT_ONCE)
            self._places[slot.id] = _Place(slot, *ways[slot.host.name])

    async def start(self, slot: SlotId, generation: int) -> Launched | Gone | Unknown | Occupied:
        """Start the slot's replica as `generation`, unless that was stopped, or an earlier one lives: `Occupied`."""
        try:
            await self._ask(slot, "inspect", generation)
        except TransportError as problem:
            return Gone(generation, None, str(problem), refused=True)
        try:
            answer = await self._ask(slot, "start", generation)
        except TransportError as problem:
            return Unknown(generation, str(problem))
        if answer.state == "occupied":
            return Occupied(generation, answer.detail)
        return _observed(answer, generation)

    async def inspect(self, slot: SlotId, generation: int, handle: ProcessHandle | None) -> Launched | Gone | Unknown:
        """Tell whether a replica runs.

        `Gone` means that the launched process has ended: processes that it left behind are named in the detail and
        need a stop. Below a `launch_wrapper`, `Gone` with exit status 0 says nothing of the replica, unless processes
        of it are on the host: then it is `Launched`.
        """
        try:
            return _observed(await self._ask(slot, "inspect", generation, handle), generation)
        except TransportError as problem:
            return Unknown(generation, str(problem))

    async def inspect_all(self, slots: Sequence[Slot]) -> dict[SlotId, Launched | Gone | Unknown]:
        """Tell the same of the replicas of many slots of one host, with one command."""
        place = self._places[slots[0].id]
        launches = [self._job(slot.id, slot.generation, slot.handle) for slot in slots]
        job = {"launches": launches}
        answers: tuple[_Answer, ...] = ()
        problem = f"an answer that is not about {len(slots)} replicas"
        try:
            answers = (await self._run(place, "inspect-all", job, about=place.host, replicas=len(slots))).answers
        except TransportError as error:
            problem = str(error)
        if len(answers) != len(slots):
            return {slot.id: Unknown(slot.generation, problem) for slot in slots}
        return {slot.id: _observed(answer, slot.generation) for slot, answer in zip(slots, answers, strict=True)}

    async def stop(
        self, slot: SlotId, generation: int, handle: ProcessHandle | None, *, grace: float
    ) -> Gone | Unknown:
        """Forbid `generation` to start later, end it within `grace` seconds or by force, and see that it is gone."""
        try:
            answer = await self._ask(
                slot, "stop", generation, handle, wait=grace + slotctl.KILL_PATIENCE, more={"grace": grace}
            )
        except TransportError as problem:
            return Unknown(generation, str(problem))
        if answer.state == "gone":
            return Gone(generation, answer.exit_status, answer.detail)
        return Unknown(generation, answer.detail)

    async def log(self, slot: SlotId, *, lines: int) -> bytes:
        """Fetch the end of a slot's log, at least one line and at most 1 MiB of it; empty if there is none.

        Raises:
            TransportError: The host could not be asked, or could not read it.
        """
        answer = await self._ask(slot, "log", 0, more={"lines": lines})
        try:
            return base64.b64decode(answer.data)
        except ValueError as problem:
            raise TransportError(f"a log that cannot be read: {problem}") from problem

    async def _ask(
        self,
        slot: SlotId,
        action: Action,
        generation: int,
        handle: ProcessHandle | None = None,
        *,
        wait: float = 0.0,
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> _Answer:
        """Ask a slot's host about one launch; raises as `_run` does."""
        job = {**self._job(slot, generation, handle), **more}
        return await self._run(self._places[slot], action, job, about=slot, wait=wait, slot=slot, generation=generation)

    def _job(self, slot: SlotId, generation: int, handle: ProcessHandle | None) -> dict[str, object]:
        return {**self._places[slot].job, "generation": generation, "handle": handle and asdict(handle)}

    async def _run(
        self,
        place: _Place,
        action: Action,
        job: Mapping[str, object],
        *,
        about: str,
        wait: float = 0.0,
        **fields: object,
    ) -> _Answer:
        """Run `slotctl` on a host; `fields` say in the log what it was `about`.

        Raises:
            TransportError: There was no answer, or it was that the host could not do it.
        """
        marker = secrets.token_hex(16)
        job = {**job, "action": action, "marker": marker}
        # The call is the last line: a connection that breaks on the way leaves a program that does nothing.
        program = f"{self._program}\nmain({json.dumps(job)!r})\n"
        # Isolated from the host's settings of python, and in UTF-8 whatever its locale. The rest is for who reads `ps`.
        argv = [place.python, "-I", "-S", "-X", "utf8", "-", "slotctl", action, about]
        completed: Completed | None = None
        answer: _Answer | None = None
        async with place.turns:
            started_at = asyncio.get_running_loop().time()
            try:
                completed = await place.transport.run(argv, stdin=program.encode(), timeout=self._patience + wait)
                answer = _read_answer(completed, marker)
                return answer
            finally:
                seconds = asyncio.get_running_loop().time() - started_at
                self._observe(place.host, action, seconds, "ok" if answer else "error")
                self._log.debug(
                    "command run on host",
                    host=place.host,
                    argv0=place.python,
                    action=action,
                    **fields,
                    exit=completed and completed.exit,
                    ms=round(seconds * 1000),
                )


def _read_answer(completed: Completed, marker: str) -> _Answer:
    """Find the answer among whatever else was printed, by login files, say."""
    prefix = marker.encode() + b" "
    for line in completed.stdout.splitlines():
        if line.startswith(prefix):
            try:
                answer = msgspec.json.decode(line[len(prefix) :], type=_Answer)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
                raise TransportError(f"an answer that cannot be read: {str(problem)[:LONGEST_DETAIL]}") from problem
            if answer.state == "failed":
                raise TransportError(answer.detail or "the host could not do it, and does not say why")
            return answer
    raise TransportError(f"no answer, exit status {completed.exit}: {completed.words or 'without a word'}")


def _observed(answer: _Answer, generation: int) -> Launched | Gone | Unknown:
    """Turn the answer about a process into an observation."""
    match answer.state:
        case "running":
            return Launched(generation, ProcessHandle(answer.pid, answer.started_at, answer.boot_id))
        case "refused":
            return Gone(generation, None, answer.detail, refused=True)
        case "gone" | "left":
            return Gone(generation, answer.exit_status, answer.detail)
        case _:
            return Unknown(generation, answer.detail)
