"""The state file: nothing is lost, whenever the router dies."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pypto_serving_router.core.ids import HostId, SlotId
from pypto_serving_router.core.slot import Cause, ProcessHandle, Slot, SlotState
from pypto_serving_router.errors import JournalError
from pypto_serving_router.fleet import journal as module
from pypto_serving_router.fleet.journal import Journal, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLOT = Slot(
    SlotId("node-d4"),
    HostId("node"),
    "fd00::1",
    8005,
    (4, 5),
    state=SlotState.UNCONFIRMED,
    generation=1_700_000_000_123,
    handle=ProcessHandle(4242, "9917", "b0"),
    wanted=True,
    losses=2,
    cause=Cause.STOP_UNCONFIRMED,
    last_error="still there after SIGKILL",
    since=1_700_000_000.5,
)
OTHER = replace(SLOT, id=SlotId("node-d6"), devices=(6,), state=SlotState.READY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    held = Journal.open(path)
    yield held
    held.close()


def save(journal: Journal, *slots: Slot) -> None:
    asyncio.run(journal.save(slots))


def test_what_is_saved_is_loaded(journal: Journal) -> None:
    """Spec 7.12: allocations come back as they were, unconfirmed ones included."""
    assert journal.load() == ()
    save(journal, SLOT, OTHER)
    assert journal.load() == (SLOT, OTHER)
    save(journal)
    assert journal.load() == ()


def test_a_slot_that_was_never_launched_on_is_not_recorded() -> None:
    """Spec 7.12: the file holds what was promised, not the fleet file once more."""
    assert record(replace(SLOT, generation=0)) is None


def test_what_observation_can_rebuild_is_not_recorded(journal: Journal) -> None:
    """Spec 7.12: health and deadlines belong to one run of the router."""
    save(journal, replace(SLOT, due=17.0, failing_since=12.0))
    assert journal.load() == (SLOT,)


def test_the_file_is_its_owners_alone(journal: Journal, path: Path) -> None:
    """Spec 7.12: whatever the umask, and whatever an older file allowed."""
    path.touch(0o666)
    path.chmod(0o666)
    before = os.umask(0)
    try:
        save(journal, SLOT)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.with_name("state.json.lock").stat().st_mode) == 0o600


def test_one_router_at_a_time(journal: Journal, path: Path) -> None:
    """Spec 7.12: a second router is told so, under any name of the file; when the first has gone, it may."""
    link = path.with_name("link.json")
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(JournalError, match="held by another router"):
            Journal.open(name)
    save(journal, SLOT)
    with pytest.raises(JournalError, match="held by another router"):
        Journal.open(path)
    second = Journal.open(path.with_name("other.json"))
    second.close()


def test_a_lock_that_was_removed_lets_no_second_router_in(journal: Journal, path: Path) -> None:
    """Spec 7.12: what is recorded is locked itself, before and after each save."""
    for slot in (SLOT, OTHER):
        save(journal, slot)
        path.with_name("state.json.lock").unlink()
        with pytest.raises(JournalError, match="held by another router"):
            Journal.open(path)
    save(journal, SLOT)
    assert journal.load() == (SLOT,)


def test_a_router_that_comes_in_the_middle_of_a_save_is_refused(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec 7.12: whose lock is on a file that has just been replaced does not hold the state file."""
    save(journal, SLOT)
    path.with_name("state.json.lock").unlink()
    flock = fcntl.flock

    def slow(file: int, operation: int) -> None:
        if os.path.samestat(os.fstat(file), path.stat()):
            monkeypatch.setattr(fcntl, "flock", flock)
            save(journal, OTHER)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", slow)
    with pytest.raises(JournalError, match="held by another router"):
        Journal.open(path)


@pytest.mark.parametrize("saved", [True, False], ids=["after a save", "before the first"])
def test_nobody_writes_over_the_file_of_another(journal: Journal, path: Path, *, saved: bool) -> None:
    """Spec 7.12: with both locks removed a second router starts from nothing, and the first leaves its file alone."""
    if saved:
        save(journal, SLOT)
        path.unlink()
    path.with_name("state.json.lock").unlink()
    second = Journal.open(path)
    assert second.load() == ()
    save(second, OTHER)
    with pytest.raises(JournalError, match="is held by another router"):
        save(journal, SLOT)
    assert second.load() == (OTHER,)
    second.close()
    save(journal, SLOT)
    assert journal.load() == (SLOT,)


def test_a_state_file_that_was_removed_is_written_anew(journal: Journal, path: Path) -> None:
    """Spec 7.12: as one is that was replaced by a copy, which nobody holds."""
    for remove in (path.unlink, lambda: path.with_name("copy").rename(path)):
        save(journal, SLOT)
        path.with_name("copy").write_bytes(path.read_bytes())
        remove()
        save(journal, OTHER)
        assert journal.load() == (OTHER,)


def test_a_symbolic_link_stays_one(path: Path) -> None:
    """Spec 7.12: it is the file that is replaced."""
    path.symlink_to(path.with_name("real.json"))
    held = Journal.open(path)
    save(held, SLOT)
    held.close()
    assert path.is_symlink()
    assert path.with_name("real.json").exists()


def test_no_launched_process_holds_the_file(journal: Journal, path: Path) -> None:
    """Spec 7.12: a replica that outlives the router does not inherit the lock."""
    with subprocess.Popen(["sleep", "60"], close_fds=False) as replica:
        journal.close()
        try:
            Journal.open(path).close()
        finally:
            replica.kill()
    journal._lock = os.open(path.with_name("state.json.lock"), os.O_RDWR)  # for the fixture to close


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "can't be understood"),
        (b"{", "can't be understood"),
        (b"[]", "can't be understood"),
        (b'{"slots":[]}', "can't be understood"),
        (b'{"version":1}', "can't be understood"),
        (b'{"version":1,"slots":[{"slot":"node-d0"}]}', "can't be understood"),
        (b'{"version":1,"slots":[],"more":1}', "can't be understood"),
        (b'{"version":2,"slots":{"new":"shape"}}', "is of version 2; this router reads version 1"),
        (b'{"version":"1","slots":[]}', "can't be understood"),
        (b"\xff\xfe", "can't be understood"),
        (b'{"version":1,"slots":' + b"[" * 50_000, "can't be understood"),
        (b'{"version":1,"slots":[{"\\u001b[2J":1}]}', r"`\\x1b\[2J`"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused(journal: Journal, path: Path, content: bytes, why: str) -> None:
    """Spec 7.13: to forget who holds the cards is the worse outcome."""
    path.write_bytes(content)
    with pytest.raises(JournalError, match=why):
        journal.load()
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "field",
    [{"since": 1e18}, {"since": -1.0}, {"generation": 0}, {"port": 0}, {"port": 65536}, {"losses": -1}],
    ids=str,
)
def test_a_number_that_was_never_written_is_refused(journal: Journal, path: Path, field: dict[str, float]) -> None:
    """Spec 7.13: what could not be shown, or not be written down again, is no record."""
    slot = {"slot": "n-d0", "host": "n", "address": "a", "port": 1, "devices": [0], "state": "ready", "generation": 1}
    path.write_text(json.dumps({"version": 1, "slots": [slot | field]}))
    with pytest.raises(JournalError, match="can't be understood"):
        journal.load()


def test_a_state_that_nobody_knows_is_refused(journal: Journal, path: Path) -> None:
    """Spec 7.13: a record with a state of another version is not taken for free."""
    save(journal, SLOT)
    path.write_bytes(path.read_bytes().replace(b'"unconfirmed"', b'"resting"'))
    with pytest.raises(JournalError, match="can't be understood"):
        journal.load()


def test_a_slot_recorded_twice_is_refused(journal: Journal, path: Path) -> None:
    """Spec 7.13: which of the two holds the cards can't be told."""
    save(journal, SLOT)
    document = json.loads(path.read_bytes())
    document["slots"] *= 2
    path.write_text(json.dumps(document))
    with pytest.raises(JournalError, match="twice"):
        journal.load()


@settings(max_examples=200, deadline=None, database=None)
@given(st.data())
def test_damage_never_goes_unnoticed_as_a_crash_or_a_free_slot(data: st.DataObject) -> None:
    """Spec 7.13: a damaged file is either refused or still says of each slot which one it is."""
    content = bytearray(msgspec.json.encode(module._Document(1, (record(SLOT), record(OTHER)))))  # type: ignore[arg-type]
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] = data.draw(st.integers(0, 255))
    try:
        slots = module.decode(bytes(content))
    except JournalError:
        return
    assert len(slots) == 2


def test_a_file_that_cannot_be_read_is_refused(journal: Journal, path: Path) -> None:
    """Spec 7.13: a folder in its place, say."""
    path.mkdir()
    with pytest.raises(JournalError, match="can't be read: Is a directory"):
        journal.load()
    with pytest.raises(JournalError, match="can't be written"):
        save(journal, SLOT)


def test_a_folder_that_is_not_there_is_refused(path: Path) -> None:
    """Spec 7.12: it is found out at the start, not at the first launch."""
    with pytest.raises(JournalError, match="can't be locked: No such file"):
        Journal.open(path / "state.json")


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_a_failed_save_leaves_what_was_there(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Spec 7.12: a full disk is an error, and the old file is still whole; the next save succeeds."""
    save(journal, SLOT)
    original: Callable[..., Any] = getattr(os, call)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(JournalError, match="No space left on device"):
            save(journal, OTHER)
    assert getattr(os, call) is original
    assert journal.load() == (SLOT,)
    save(journal, OTHER)
    assert journal.load() == (OTHER,)


def test_a_write_may_be_cut_in_pieces(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec 7.12: a short write is gone on with."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, bytes(content[:7])))
    save(journal, SLOT)
    assert journal.load() == (SLOT,)


def test_a_save_is_forced_to_disk_before_it_counts(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec 7.12: the content first, then the name, then the folder that has the name."""
    done = []

    def noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            done.append(f"{name} folder" if folder else name)
            return original(*args, **kwargs)

        return call

    for name in ("write", "fsync", "rename"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    save(journal, SLOT)
    assert done == ["write", "fsync", "rename", "fsync folder"]


DYING = """
import os, sys
from pathlib import Path
from pypto_serving_router.fleet.journal import Journal

def dies_at(step):
    count = 0
    def dying(original):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count > step:
                os._exit(0)
            return original(*args, **kwargs)
        return call
    for name in ("open", "write", "fsync", "close", "rename", "unlink"):
        setattr(os, name, dying(getattr(os, name)))

path, new = Path(sys.argv[1]), sys.argv[2].encode()
journal = Journal.open(path)
for step in range(30):
    child = os.fork()
    if not child:
        dies_at(step)
        journal.write(new)
        os._exit(1)
    done = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(step, done, path.read_text(), flush=True)
    if done == 1:
        break
    journal.write(b"old")
"""


def test_a_crash_between_any_two_system_calls_leaves_a_whole_file(path: Path) -> None:
    """Spec 7.12: the old one until the rename, the new one from then on; and what is left aside is no hindrance."""
    path.write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(path), "new" * 1000], capture_output=True, text=True, timeout=60, check=True
    )
    steps = [line.split() for line in done.stdout.splitlines()]
    contents = [content for _, _, content in steps]
    assert set(contents) == {"old", "new" * 1000}
    assert contents == sorted(contents, reverse=True)  # once it is new, it stays so
    assert [status for _, status, _ in steps] == ["0"] * (len(steps) - 1) + ["1"]
    assert len(steps) >= 9
