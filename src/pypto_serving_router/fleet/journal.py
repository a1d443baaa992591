"""The state file: which slots are promised to what, durably, for the next run of the router.

It holds allocations, which nothing could rebuild by looking around: states, generations, process handles. Health,
requests and pins are not in it. Deadlines are not either: they are points in a monotonic time that ends with the
machine's uptime.

A save writes a file aside, forces it to disk, renames it over the old one and forces the folder to disk: whenever the
router or the machine dies, the old file or the new one is there, whole.

Two locks keep a second router out, and no launched process inherits them. One is on a file of its own, `FILE.lock`,
which is there before there is anything to record. The other is on the state file itself, the new one locked before it
has the name: whoever removes the first lock finds the second, and whoever removes both has removed the record, too, and
with it what a second router could stop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.core.slot import Cause, ProcessHandle, Slot, SlotState
from pypto_serving_router.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

VERSION: Final = 1

_LATEST: Final = 253_402_300_799  # the last second of the year 9999, and of what can be shown as a date


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One slot as it is written down."""

    slot: str
    host: str
    address: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    devices: tuple[int, ...]
    state: SlotState
    generation: Annotated[int, msgspec.Meta(ge=1)]
    handle: ProcessHandle | None = None
    wanted: bool = False
    leaving: bool = False
    heard: bool = False
    losses: Annotated[int, msgspec.Meta(ge=0)] = 0
    cause: Cause | None = None
    last_error: str | None = None
    since: Annotated[float, msgspec.Meta(ge=0, le=_LATEST)] = 0.0


class _Version(msgspec.Struct, frozen=True):
    version: int


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    slots: tuple[Record, ...]


def record(slot: Slot) -> Record | None:
    """Return what is to be written down of a slot: nothing, if no launch was ever promised on it."""
    if not slot.generation:
        return None
    return Record(
        slot=slot.id,
        host=slot.host,
        address=slot.address,
        port=slot.port,
        devices=slot.devices,
        state=slot.state,
        generation=slot.generation,
        handle=slot.handle,
        wanted=slot.wanted,
        leaving=slot.leaving,
        heard=slot.heard,
        losses=slot.losses,
        cause=slot.cause,
        last_error=slot.last_error,
        since=slot.since,
    )


class Journal:
    """One state file, held by this router alone until it is closed."""

    def __init__(self, path: Path, lock: int, held: int | None) -> None:
        self._path = path
        self._lock = lock
        self._held = held  # the state file as it was written last, if there is one

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Take hold of the state file, which need not exist yet.

        Raises:
            JournalError: another router holds it, or its folder can't be written to.
        """
        path = path.resolve()
        try:
            lock = _lock(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT)
            try:
                held = _lock(path, os.O_RDWR) if path.exists() else None
            except OSError:
                os.close(lock)
                raise
        except OSError as problem:
            raise _trouble(path, "locked", problem) from problem
        return cls(path, lock, held)

    def close(self) -> None:
        """Let go of the state file."""
        os.close(self._lock)
        if self._held is not None:
            os.close(self._held)

    def load(self) -> tuple[Slot, ...]:
        """Return the recorded slots; none if the file does not exist.

        Raises:
            JournalError: the file can't be read, or is not one that this version wrote.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as problem:
            raise JournalError(f"the state file {self._path} can't be read: {problem.strerror}") from problem
        try:
            return decode(content)
        except JournalError as problem:
            raise JournalError(f"the state file {self._path} {problem}") from problem

    async def save(self, slots: Iterable[Slot]) -> None:
        """Replace what is recorded, atomically and durably; a thread waits for the disk.

        Raises:
            JournalError: the disk did not take it; what was recorded before still is.
        """
        records = tuple(entry for entry in map(record, slots) if entry is not None)
        content = msgspec.json.encode(_Document(VERSION, records))
        await asyncio.to_thread(self.write, content)

    def write(self, content: bytes) -> None:
        """Replace the file's content; blocks until the disk has it.

        Raises:
            JournalError: the disk did not take it, or the file is another router's by now; what was recorded before
                still is.
        """
        aside = self._path.with_name(f"{self._path.name}.tmp")
        try:
            aside.unlink(missing_ok=True)
            file = _lock(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                _write_all(file, content)
                os.fsync(file)
                self._check_still_ours()
                aside.rename(self._path)
            except OSError:
                os.close(file)
                raise
            if self._held is not None:
                os.close(self._held)
            self._held = file
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as problem:
            raise _trouble(self._path, "written", problem) from problem

    def _check_still_ours(self) -> None:
        """Raise `BlockingIOError` if another router has made a file of its own in the place of ours."""
        with suppress(FileNotFoundError):
            if self._held is None or not os.path.samestat(self._path.stat(), os.fstat(self._held)):
                os.close(_lock(self._path, os.O_RDWR))


def decode(content: bytes) -> tuple[Slot, ...]:
    """Return the slots that a state file records.

    Raises:
        JournalError: this version of the router has not written that.
    """
    try:
        version = msgspec.json.decode(content, type=_Version).version
        if version != VERSION:
            raise JournalError(f"is of version {version}; this router reads version {VERSION}")
        slots = tuple(_slot(entry) for entry in msgspec.json.decode(content, type=_Document).slots)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise JournalError(f"can't be understood: {ascii(str(problem))[1:-1]}") from problem
    if len({slot.id for slot in slots}) < len(slots):
        raise JournalError("records a slot twice")
    return slots


def _lock(path: Path, flags: int) -> int:
    """Open a file and lock it, for as long as it is open.

    Raises:
        BlockingIOError: another process has the lock, or has just put another file in its place.
        OSError: it can't be opened or locked.
    """
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(path.stat(), os.fstat(file)):
            raise BlockingIOError
    except OSError:
        os.close(file)
        raise
    return file


def _trouble(path: Path, done: str, problem: OSError) -> JournalError:
    held = isinstance(problem, BlockingIOError)
    why = "is held by another router" if held else f"can't be {done}: {problem.strerror}"
    return JournalError(f"the state file {path} {why}")


def _write_all(file: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]


def _slot(entry: Record) -> Slot:
    return Slot(
        id=SlotId(entry.slot),
        host=HostId(entry.host),
        address=entry.address,
        port=entry.port,
        devices=entry.devices,
        state=entry.state,
        generation=entry.generation,
        handle=entry.handle,
        wanted=entry.wanted,
        leaving=entry.leaving,
        heard=entry.heard,
        losses=entry.losses,
        cause=entry.cause,
        last_error=entry.last_error,
        since=entry.since,
    )
