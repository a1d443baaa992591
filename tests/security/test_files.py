"""Files that the router and its hosts' program write: who may read them, and who may stand in their way."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from tests.support.fleet import sim_host
from tests.support.slots import SlotHost, all_ended

from pypto_serving_router.errors import JournalError
from pypto_serving_router.fleet.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.harness import Harness


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Let new files be as open as whoever makes them asks for."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_what_is_kept_is_the_owners_alone(harness: Harness) -> None:
    """State, locks and records are private, and so is the folder of logs, whatever the umask (spec 7.12)."""
    state = harness.folder / "state"
    router = harness.start_router(
        {"hosts": [sim_host([0], log_dir=str(harness.folder / "new" / "logs"))]},
        *("--initial-replicas", "1", "--state-file", str(state)),
    )
    router.wait_ready(1)
    logs = harness.folder / "new" / "logs"

    private = [state, state.with_name("state.lock"), logs / "node-d0.json", logs / "node-d0.lock"]
    assert [oct(mode(path)) for path in private] == ["0o600"] * 4
    assert oct(mode(logs)) == "0o700"
    assert mode(logs / "node-d0.log") & 0o022 == 0, "others may write into the log"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """A link laid where the state file is prepared is replaced, not followed (spec 7.12)."""
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    (tmp_path / "state.tmp").symlink_to(treasure)
    journal = Journal.open(tmp_path / "state")
    try:
        journal.write(b"{}")
    finally:
        journal.close()

    assert treasure.read_text() == "gold"
    assert (tmp_path / "state").read_bytes() == b"{}"
    assert not (tmp_path / "state").is_symlink()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's folder")
def test_a_folder_of_somebody_elses_is_not_trusted(tmp_path: Path) -> None:
    """In a folder like /tmp, where anybody can come first, a stranger's folder is not believed (spec 7.3)."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    slot = SlotHost(shared)
    slot.logs.mkdir()
    os.chown(slot.logs, 12345, 12345)
    with all_ended():
        answer = slot.ask("start", argv=["touch", str(tmp_path / "canary")])

    assert answer["state"] == "refused"
    assert "another user" in answer["detail"]
    assert not (tmp_path / "canary").exists()


def test_a_state_file_says_nothing_that_is_believed_without_looking(tmp_path: Path) -> None:
    """A file that this router has not written stops the start; it is never repaired by guessing (spec 7.13)."""
    state = tmp_path / "state"
    for content in (b'{"version":1,"slots":[{"slot":"../x"}]}', b"\x80\x04.", b'{"version":1,"slots":' + b"[" * 5000):
        state.write_bytes(content)
        journal = Journal.open(state)
        try:
            with pytest.raises(JournalError):
                journal.load()
        finally:
            journal.close()
        assert state.read_bytes() == content
