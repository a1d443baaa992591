"""Where log records go: a bounded queue, and a thread that writes it to a file descriptor.

Theory of operation. Nobody who logs ever waits: stderr may be a pipe whose reader has stopped, a terminal that is
held, or a disk that is full. The thread may wait, or fail; then records are lost, and the first record that gets out
again says how many.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_BATCH: Final = 512  # records a system call


class Sink:
    """Writes records, each one line or more that ends in a newline, in order."""

    def __init__(
        self,
        fd: int,
        *,
        on_loss: Callable[[int], bytes],
        interval: float | None = None,
        capacity: int = 32_768,
    ) -> None:
        """Write to `fd`; `on_loss` makes the record that tells how many were lost.

        `interval` is after how many seconds `put_later`'s records are written; None if it is not used.
        `capacity` is how many records may wait.
        """
        self._fd = fd
        self._on_loss = on_loss
        self._interval = interval
        self._capacity = capacity
        self._queue: deque[bytes | threading.Event] = deque()
        self._wake = threading.Event()
        self._overflowed = 0  # written by those who put
        self._failed = 0  # written by the thread
        self._told = 0
        self._torn = False  # the last record was written in part
        threading.Thread(target=self._run, name="log", daemon=True).start()

    @property
    def lost(self) -> int:
        """Records lost in all."""
        return self._overflowed + self._failed

    def put(self, record: bytes) -> None:
        """Have a record written at once."""
        self.put_later(record)
        self._wake.set()

    def put_later(self, record: bytes) -> None:
        """Have a record written with the others of the same interval: waking the thread costs more than the record."""
        if len(self._queue) < self._capacity:
            self._queue.append(record)
        else:
            self._overflowed += 1

    def flush(self, timeout: float) -> bool:
        """Wait until what was put before is written or lost, but no longer than `timeout`; tell whether it is."""
        done = threading.Event()
        self._queue.append(done)
        self._wake.set()
        return done.wait(timeout)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._interval)
            self._wake.clear()
            while self._queue:
                self._write_batch()

    def _write_batch(self) -> None:
        records: list[bytes] = []
        done: list[threading.Event] = []
        while self._queue and len(records) < _BATCH:
            item = self._queue.popleft()
            if isinstance(item, bytes):
                records.append(item)
            else:
                done.append(item)
        if records:
            untold = self.lost - self._told
            if untold and self._write(self._on_loss(untold)) is None:
                self._told += untold
            written = self._write(b"".join(records))
            if written is not None:
                self._failed += sum(end > written for end in accumulate(map(len, records)))
        for event in done:
            event.set()

    def _write(self, data: bytes) -> int | None:
        """Write all of it and return None, or how much could be written."""
        start = b"\n" if self._torn else b""
        rest = memoryview(start + data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:  # whoever shares the descriptor made it so
                    select.select([], [self._fd], [])
        except OSError:
            written = max(len(data) - len(rest), 0)
            if written:
                self._torn = data[written - 1 : written] != b"\n"
            return written
        self._torn = False
        return None
