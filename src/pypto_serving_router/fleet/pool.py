"""The slots there are: which are held, which are free, and which is the next to launch on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pypto_serving_router.core.slot import Cause, Slot, SlotState
from pypto_serving_router.errors import PoolFull, SlotBusy, UnknownSlot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pypto_serving_router.core.ids import HostId, SlotId


@dataclass(frozen=True, slots=True)
class Reserved:
    """A slot that the router does not launch on by itself, or not yet, and why; `since` in seconds since the epoch."""

    slot: SlotId
    reason: str
    since: float
    detail: str | None
    due: float | None = None
    """When it will be launched on again, on the fleet's clock."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the fleet has, and what is left. `owned` counts the slots whose devices are held, or may be."""

    ceiling: int
    owned: int
    free_slots: tuple[SlotId, ...]
    cooling: tuple[Reserved, ...]
    unconfirmed: tuple[Reserved, ...]
    abandoned: tuple[Reserved, ...]
    last_errors: Mapping[SlotId, str]


class SlotPool:
    """The declared slots, in the order in which they are to be taken, and the recorded ones that no longer are.

    A slot that was launched on before the fleet file was changed stays where it was launched until it is free.
    """

    def __init__(self, declared: Iterable[Slot], ceiling: int) -> None:
        self.declared = {slot.id: slot for slot in declared}
        self.slots = dict(self.declared)
        self.undeclared: dict[SlotId, Slot] = {}
        self.ceiling = ceiling

    @property
    def owned(self) -> int:
        """How many slots are held, or may be."""
        return sum(slot.taken for slot in self.slots.values())

    @property
    def full(self) -> bool:
        """Whether no more slots may be held."""
        return self.owned >= self.ceiling

    def as_of(self, earlier: Mapping[SlotId, Slot]) -> SlotPool:
        """Return the pool with some slots as they were."""
        if not earlier:
            return self
        pool = SlotPool(self.declared.values(), self.ceiling)
        pool.slots = {**self.slots, **earlier}
        pool.undeclared = self.undeclared
        return pool

    def put(self, slot: Slot) -> Slot:
        """Keep a slot as it is now, and return it; what comes next on a free one is launched where it is declared."""
        declared = self.declared[slot.id]
        if not slot.taken and slot.place != declared.place:
            slot = replace(slot, address=declared.address, port=declared.port, devices=declared.devices)
        self.slots[slot.id] = slot
        return slot

    def restore(self, recorded: Slot) -> Slot | None:
        """Take up a slot from the state file, and return it; None if it is not declared any more."""
        declared = self.declared.get(recorded.id)
        if declared is None:
            self.undeclared[recorded.id] = recorded
            return None
        return self.put(
            replace(
                recorded,
                host=declared.host,
                wrapped=declared.wrapped,
                has_stop_command=declared.has_stop_command,
            )
        )

    def free(self) -> list[Slot]:
        """Return the slots that may be launched on, in order: none whose devices a slot of an older cut still holds."""
        held = {device for slot in self.recorded() if slot.taken for device in _devices(slot)}
        return [slot for slot in self.slots.values() if not slot.taken and held.isdisjoint(_devices(slot))]

    def pick(self, slot: SlotId | None = None, host: HostId | None = None) -> Slot:
        """Return the next free slot, of those asked for; one that is cooling or abandoned comes last.

        Raises:
            UnknownSlot: there is no such slot or host.
            SlotBusy: that slot is taken.
            PoolFull: nothing is free there, or the ceiling is reached.
        """
        slots = self.slots.values()
        named = {one.id: one for one in slots if slot in (None, one.id) and host in (None, one.host)}
        if not named and (slot or host):
            raise UnknownSlot(f"there is no slot {slot}" if slot else f"there is no host {host}")
        free = [one for one in self.free() if one.id in named]
        if slot is not None and not free:
            raise SlotBusy(f"{slot} is not free: {named[slot].state}")
        if self.full:
            raise PoolFull(f"{self.owned} slots are held, and no more than {self.ceiling} may be")
        if not free:
            raise PoolFull("no slot is free" if host is None else f"no slot of {host} is free")
        return min(free, key=_reluctance)

    def pick_some(self, count: int) -> list[Slot]:
        """Return as many slots as `pick` would give one after the other if each was taken, but no more than `count`.

        A fleet of a thousand is not searched a thousand times.
        """
        picked: list[Slot] = []
        held: set[tuple[str, str, int]] = set()
        for slot in sorted(self.free(), key=_reluctance):
            if held.isdisjoint(devices := set(_devices(slot))):
                picked.append(slot)
                held |= devices
        return picked[: max(min(count, self.ceiling - self.owned), 0)]

    def capacity(self) -> Capacity:
        """Count what is held and what is left."""
        slots = self.slots.values()
        unconfirmed = [slot for slot in self.shown() if slot.state is SlotState.UNCONFIRMED]
        return Capacity(
            ceiling=self.ceiling,
            owned=self.owned,
            free_slots=tuple(slot.id for slot in self.free()),
            cooling=tuple(_reserved(slot, _tell_losses(slot)) for slot in slots if slot.cooling),
            unconfirmed=tuple(_reserved(slot, str(slot.cause)) for slot in unconfirmed),
            abandoned=tuple(_reserved(slot, _tell_losses(slot)) for slot in slots if slot.state is SlotState.ABANDONED),
            last_errors={slot.id: slot.last_error for slot in slots if slot.last_error},
        )

    def shown(self) -> Iterator[Slot]:
        """Yield the slots as operators see them: one that is held and not declared any more is unconfirmed."""
        yield from self.slots.values()
        for slot in self.undeclared.values():
            if slot.taken:
                yield replace(slot, state=SlotState.UNCONFIRMED, cause=Cause.UNDECLARED, last_error=tell_place(slot))

    def recorded(self) -> Iterator[Slot]:
        """Yield every slot that the state file is about."""
        yield from self.slots.values()
        yield from self.undeclared.values()


def _reluctance(slot: Slot) -> tuple[bool, bool]:
    return slot.state is SlotState.ABANDONED, slot.cooling


def _devices(slot: Slot) -> Iterator[tuple[str, str, int]]:
    """Name each device in the two ways that two entries of the fleet file could mean the same one by."""
    for device in slot.devices:
        yield "host", slot.host, device
        yield "address", slot.address, device


def tell_place(slot: Slot) -> str:
    """Say where a slot's replica was launched."""
    devices = ",".join(map(str, slot.devices))
    return f"its replica was launched at {slot.where} on devices {devices}"


def _tell_losses(slot: Slot) -> str:
    return "lost its replica" if slot.losses == 1 else f"lost {slot.losses} replicas in a row"


def _reserved(slot: Slot, reason: str) -> Reserved:
    return Reserved(slot.id, reason, slot.since, slot.last_error, slot.due)
