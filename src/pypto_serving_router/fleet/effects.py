"""Carries the fleet's effects out: each ends in an observation, and an error is never taken for an answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from pypto_serving_router.core.slot import (
    Answered,
    AskReplica,
    CheckAddress,
    Effect,
    Gone,
    InspectProcess,
    Launched,
    Observation,
    Occupied,
    Policy,
    ProcessHandle,
    Silent,
    Slot,
    StartProcess,
    StopConfirmed,
    StopProcess,
    StopUnconfirmed,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pypto_serving_router.core.ids import SlotId

SILENCE_INTERVAL: Final = 0.5
"""Seconds between two looks at an address that is to go silent."""


class Launcher(Protocol):
    """What the fleet asks of the hosts. Every call ends within a bounded time."""

    async def start(self, slot: SlotId, generation: int) -> Launched | Gone | Unknown | Occupied:
        """Start a replica, unless the generation is fenced or an earlier process of the slot lives."""

    async def inspect(self, slot: SlotId, generation: int, handle: ProcessHandle | None) -> Launched | Gone | Unknown:
        """Tell whether the generation's process lives."""

    async def inspect_all(self, slots: Sequence[Slot]) -> Mapping[SlotId, Launched | Gone | Unknown]:
        """Tell the same of many slots of one host, which is asked once."""

    async def stop(
        self, slot: SlotId, generation: int, handle: ProcessHandle | None, *, grace: float
    ) -> Gone | Unknown:
        """Fence the generation, end its processes, and see that none is left."""

    async def log(self, slot: SlotId, *, lines: int) -> bytes:
        """Return the end of the slot's startup log."""


class Performer:
    """Carries effects out.

    `silent` tells whether an address is, or None; `ask` gives the status that the replica's health endpoint answers,
    or None where nothing does.
    """

    def __init__(
        self,
        *,
        launcher: Launcher,
        policy: Policy,
        silent: Callable[[Slot], Awaitable[bool | None]],
        ask: Callable[[Slot], Awaitable[int | None]],
        clock: Callable[[], float],
    ) -> None:
        self._launcher = launcher
        self._policy = policy
        self._silent = silent
        self._ask = ask
        self._clock = clock

    async def perform(self, effect: Effect, slot: Slot) -> Observation | None:
        """Carry out an effect on the slot as it was when the effect was called for; None: there is nothing to tell."""
        match effect:
            case StartProcess():
                return await self._start(slot)
            case StopProcess():
                return await self._stop(slot)
            case InspectProcess(delay=delay):
                await asyncio.sleep(delay)
                return await self._launcher.inspect(slot.id, slot.generation, slot.handle)
            case CheckAddress():
                if await self._silent(slot):
                    return Silent(slot.generation)
                return Occupied(slot.generation, f"{slot.where} is not silent")
            case AskReplica():
                return (await self.recognise([slot])).get(slot.id)
            case _:
                assert_never(effect)

    async def recognise(self, slots: Sequence[Slot]) -> dict[SlotId, Answered]:
        """Ask addresses for their health and, at the same time, the one host of them all for the processes.

        A slot at whose address nothing answers is left out.
        """
        processes, statuses = await asyncio.gather(
            self._launcher.inspect_all(slots), asyncio.gather(*map(self._ask_once, slots))
        )
        return {
            slot.id: Answered(slot.generation, processes[slot.id], healthy=status == 200)
            for slot, status in zip(slots, statuses, strict=True)
            if status is not None
        }

    async def _ask_once(self, slot: Slot) -> int | None:
        try:
            return await self._ask(slot)
        except OSError:  # the router is out of descriptors: that is no answer, and the others may have one
            return None

    async def _start(self, slot: Slot) -> Observation:
        silent = await self._silent(slot)
        if silent is False:
            return Occupied(slot.generation, f"something answers at {slot.where}")
        if silent is None:
            detail = f"cannot tell whether {slot.where} is silent: a connection is neither accepted nor refused"
            return Gone(slot.generation, None, detail, refused=True)
        return await self._launcher.start(slot.id, slot.generation)

    async def _stop(self, slot: Slot) -> Observation:
        submitted = slot.wrapped and not slot.has_stop_command and await self._submitted(slot)
        answer = await self._launcher.stop(slot.id, slot.generation, slot.handle, grace=self._policy.stop_grace)
        if isinstance(answer, Unknown):
            return StopUnconfirmed(slot.generation, answer.detail)
        deadline = self._clock() + self._policy.confirm_grace
        while not (silent := await self._silent(slot)):
            if self._clock() >= deadline:
                what = "still accepts connections" if silent is False else "can't be told to be silent"
                return StopUnconfirmed(slot.generation, f"its processes are gone, but {slot.where} {what}")
            await asyncio.sleep(SILENCE_INTERVAL)
        return StopConfirmed(slot.generation, submitted)

    async def _submitted(self, slot: Slot) -> bool:
        """Tell whether the launch wrapper has exited 0: once it is stopped, nobody could tell why it did."""
        process = await self._launcher.inspect(slot.id, slot.generation, slot.handle)
        return isinstance(process, Gone) and process.exit_status == 0


def unknown(effect: Effect, detail: str) -> Observation | None:
    """Return what is known of an effect that failed in a way nobody foresaw."""
    match effect:
        case StartProcess(generation=generation) | InspectProcess(generation=generation):
            return Unknown(generation, detail)
        case StopProcess(generation=generation):
            return StopUnconfirmed(generation, detail)
        case CheckAddress(generation=generation):
            return Occupied(generation, detail)
        case AskReplica():
            return None
        case _:
            assert_never(effect)
