"""What a host answers, login messages and lies included: an observation, or an error that means *unknown*."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
import structlog

from fuzz.documents import SCRAPS, documents
from fuzz.target import Target, choices
from pypto_serving_router.config.load import parse_fleet
from pypto_serving_router.core.slot import Gone, Launched, Occupied, SlotState, Unknown
from pypto_serving_router.errors import TransportError
from pypto_serving_router.fleet.journal import Record
from pypto_serving_router.launch.launcher import Launcher
from pypto_serving_router.launch.transport import Completed

if TYPE_CHECKING:
    from collections.abc import Sequence

_SILENT = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
_MARKER = "f" * 32
_FLEET = parse_fleet(b'{"hosts": [{"name": "n", "devices": [0], "model": "/m", "log_dir": "/nowhere"}]}', source="")
_HANDLE = {"pid": 17, "started_at": "17", "boot_id": "b"}
_SAMPLES: list[Any] = [
    {"state": "running", **_HANDLE},
    {"state": "refused", "detail": "the fence is up"},
    {"state": "gone", "exit_status": 1, "detail": "exited with status 1; its log ends:\nout of memory"},
    {"state": "left", "detail": "it left process 9"},
    {"state": "unknown", "detail": "who knows"},
    {"state": "gone", "detail": "x" * 30_000},
    {"state": "failed", "detail": "x" * 30_000},
    {"state": "failed", "detail": "No space left on device"},
    {"state": "log", "data": "bGluZSAxCg=="},
]


class _Host:
    """A transport that always brings the same bytes."""

    def __init__(self, completed: Completed) -> None:
        self._completed = completed

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float) -> Completed:  # noqa: ARG002, ASYNC109 - the protocol's
        """Answer whatever is asked."""
        return self._completed


def check(data: bytes) -> None:
    """Let a host answer everything with `data`, behind the marker of the question or not."""
    choose = choices(data)
    before = choose.choice([b"", b"Welcome!\n", b"\xff\xfe\n\0\n", b"f" * 32])
    marker = choose.choice([_MARKER.encode() + b" "] * 4 + [b"", b"0" * 32 + b" "])
    completed = Completed(choose.choice([0, 0, 1, 127, 255]), before + b"\n" + marker + data + b"\n", before)
    with patch("pypto_serving_router.launch.launcher.LocalTransport", lambda: _Host(completed)):
        launcher = Launcher(_FLEET.slots, log=_SILENT)
    with patch("secrets.token_hex", lambda _: _MARKER):
        asyncio.run(_ask(launcher))


async def _ask(launcher: Launcher) -> None:
    (slot,) = _FLEET.slots
    for observed in (
        await launcher.start(slot.id, 3),
        await launcher.inspect(slot.id, 3, None),
        await launcher.stop(slot.id, 3, None, grace=1.0),
    ):
        assert isinstance(observed, Launched | Gone | Unknown | Occupied)
        assert observed.generation == 3
        detail = "" if isinstance(observed, Launched) else observed.detail
        assert len(detail) < 20_000, "a host fills the router's memory, state file and API"
        handle = observed.handle if isinstance(observed, Launched) else None
        written = Record(
            slot="n-d0",
            host="n",
            address="a",
            port=1,
            devices=(0,),
            state=SlotState.READY,
            generation=3,
            handle=handle,
            last_error=detail,
        )
        msgspec.json.encode(written)
    try:
        await launcher.log(slot.id, lines=10)
    except TransportError as error:
        assert str(error)


TARGET = Target(
    "slotctl", documents(_SAMPLES, ["state", "pid", "started_at", "detail", "exit_status", "data"]), SCRAPS, check
)
