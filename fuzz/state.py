"""State files: every record is taken up and written down again, or the start is refused in one line."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from tests.support.fake_hosts import MemoryJournal, Rig
from tests.support.fake_hosts import slots as declared_slots
from tests.support.virtual_time import run

from fuzz.documents import SCRAPS, documents
from fuzz.target import Target
from pypto_serving_router.admin.views import capacity_left
from pypto_serving_router.core.slot import Cause, Slot, SlotState
from pypto_serving_router.errors import JournalError
from pypto_serving_router.fleet.journal import Record, decode, record

_RECORD: dict[str, Any] = {
    "slot": "node-d0",
    "host": "node",
    "address": "node.example",
    "port": 8001,
    "devices": [0],
    "state": "ready",
    "generation": 17,
    "handle": {"pid": 17, "started_at": "17", "boot_id": "boot"},
    "wanted": True,
    "heard": True,
    "since": 1_700_000_000.0,
}
_SAMPLES = [
    {"version": 1, "slots": []},
    *({"version": 1, "slots": [{**_RECORD, "state": state.value}]} for state in SlotState),
    *({"version": 1, "slots": [{**_RECORD, "state": "unconfirmed", "cause": cause.value}]} for cause in Cause),
    {
        "version": 1,
        "slots": [
            _RECORD,
            {**_RECORD, "slot": "node-d1", "port": 8002, "devices": [1], "losses": 2, "last_error": "lost"},
            {**_RECORD, "slot": "gone-d0", "host": "gone", "leaving": True},
        ],
    },
]


class _Journal(MemoryJournal):
    """A state file with these records in it."""

    def __init__(self, recorded: tuple[Slot, ...]) -> None:
        super().__init__()
        self.saved = {slot.id: slot for slot in recorded}


def check(data: bytes) -> None:
    """Start a router with a state file, and let it go on for an hour of its time."""
    try:
        recorded = decode(data)
    except JournalError as error:
        assert not re.search(r"[\x00-\x1f]", str(error)), f"a refusal that is no line of text: {error!r}"
        return
    run(_take_up(recorded))


async def _take_up(recorded: tuple[Slot, ...]) -> None:
    rig = Rig(declared_slots(2), journal=_Journal(recorded))
    async with rig.running() as fleet:
        await fleet.recover()
        held = {slot.id for slot in fleet.slots if slot.taken}
        for slot in recorded:
            if slot.taken and slot.id in {one.id for one in fleet.slots}:
                assert slot.id in held, f"{slot} was recorded, and is forgotten"
        _can_be_told(rig)
        await fleet.start_initial(2)
        await asyncio.sleep(3600)
        _can_be_told(rig)
    assert rig.hosts.most <= 1, "two processes on one slot"
    assert not [entry for entry in rig.log.records if "exc_info" in entry], rig.log.records


def _can_be_told(rig: Rig) -> None:
    """What is known must fit into the API's answer and into the next state file, and come back the same."""
    msgspec.json.encode(capacity_left(rig.controller.capacity(), str))
    for slot in rig.controller.slots:
        written = record(slot)
        assert written is not None or not slot.taken, f"{slot} is held, and would not be written down"
        if written is not None:
            assert msgspec.json.decode(msgspec.json.encode(written), type=Record) == written


TARGET = Target("state", documents(_SAMPLES, Record.__struct_fields__), SCRAPS, check)
