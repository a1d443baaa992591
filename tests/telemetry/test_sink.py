"""The queue and the thread behind the log."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pypto_serving_router.telemetry.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE = 10.0


def lost(count: int) -> bytes:
    return b"lost %d\n" % count


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        with suppress(OSError):
            os.close(end)


def read_all(reader: int, until: bytes) -> bytes:
    data = b""
    while not data.endswith(until):
        data += os.read(reader, 65536)
    return data


def test_order(tmp_path: Path) -> None:
    """Records come out whole and in order, however they were put (spec 9)."""
    with (tmp_path / "log").open("wb") as file:
        sink = Sink(file.fileno(), on_loss=lost)
        for n in range(2000):
            (sink.put if n % 3 else sink.put_later)(b"%d\n" % n)

        assert sink.flush(DEADLINE)
    assert (tmp_path / "log").read_bytes() == b"".join(b"%d\n" % n for n in range(2000))
    assert sink.lost == 0


def test_later_is_soon(pipe: tuple[int, int]) -> None:
    """A record that waits for others is written within the interval, with no flush (spec 9)."""
    sink = Sink(pipe[1], on_loss=lost, interval=0.05)

    sink.put_later(b"one\n")

    assert os.read(pipe[0], 100) == b"one\n"


def test_stalled_reader(pipe: tuple[int, int]) -> None:
    """Nobody who logs waits for a reader that has stopped; what is lost is counted and said (spec 9)."""
    reader, writer = pipe
    record = b"x" * 999 + b"\n"
    sink = Sink(writer, on_loss=lost, capacity=100)

    started = time.monotonic()
    for _ in range(1000):
        sink.put(record)
    elapsed = time.monotonic() - started

    assert elapsed < 2.0
    assert not sink.flush(0.05)
    assert sink.lost > 0
    drained: list[bytes] = []
    thread = threading.Thread(target=lambda: drained.append(read_all(reader, b"end\n")))
    thread.start()
    deadline = time.monotonic() + DEADLINE
    while not sink.flush(0.1):
        assert time.monotonic() < deadline
    sink.put(b"end\n")
    thread.join(DEADLINE)
    lines = drained[0].splitlines()
    said = [int(line.split()[1]) for line in lines if line.startswith(b"lost")]
    assert sum(said) == sink.lost
    assert lines.count(record.rstrip()) == 1000 - sink.lost


def test_closed_reader(pipe: tuple[int, int]) -> None:
    """A reader that went away costs the records, not the router (spec 9)."""
    reader, writer = pipe
    os.close(reader)
    sink = Sink(writer, on_loss=lost)

    sink.put(b"one\n")
    sink.put(b"two\n")

    assert sink.flush(DEADLINE)
    assert sink.lost == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk() -> None:
    """A full disk costs the records that came meanwhile, and the loss is still to be told (spec 9)."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        sink = Sink(full.fileno(), on_loss=lost)
        sink.put(b"one\n")

        assert sink.flush(DEADLINE)
        assert sink.lost == 1


def test_recovery(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure amid a record the next one begins on a line of its own, after the count of the lost (spec 9)."""
    reader, writer = pipe
    real_write = os.write
    failures = [5]

    def write(fd: int, data: bytes) -> int:
        if fd != writer or not failures:
            return real_write(fd, data)
        if failures[0]:
            size, failures[0] = failures[0], 0
            return real_write(fd, bytes(data)[:size])
        failures.clear()
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "write", write)
    sink = Sink(writer, on_loss=lost)
    sink.put(b"one two three\n")
    assert sink.flush(DEADLINE)
    sink.put(b"four\n")

    assert sink.flush(DEADLINE)
    assert os.read(reader, 1000) == b"one t\nlost 1\nfour\n"


def test_nonblocking_descriptor(pipe: tuple[int, int]) -> None:
    """A descriptor that whoever shares it made non-blocking loses nothing (spec 9)."""
    reader, writer = pipe
    os.set_blocking(writer, False)
    sink = Sink(writer, on_loss=lost)
    record = b"x" * 999 + b"\n"
    for _ in range(300):
        sink.put(record)
    sink.put(b"end\n")

    data = read_all(reader, b"end\n")

    assert data == record * 300 + b"end\n"
    assert sink.lost == 0
