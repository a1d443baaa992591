"""Programs on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
from typing import TYPE_CHECKING

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """A program whose terminal is the test; what it writes is kept as it comes."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], folder: Path, lines: int = 24, columns: int = 100
    ) -> None:
        self._leader, follower = os.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._process = subprocess.Popen(
            argv, env={**env, "TERM": "xterm"}, cwd=folder, stdin=follower, stdout=follower, stderr=follower
        )
        os.close(follower)
        self.written = ""

    @property
    def text(self) -> str:
        """What was written, without colours and movements of the cursor."""
        return _CODES.sub("", self.written)

    def shows(self, pattern: str, timeout: float = 20.0) -> str:
        """Wait until something has been written that matches, and return it."""

        def seen() -> re.Match[str] | None:
            self._read()
            return re.search(pattern, self.text)

        found = wait_until(seen, timeout=timeout, what=f"{pattern!r} on the screen")
        assert found
        return found[0]

    def interrupt(self) -> None:
        """Press Ctrl-C, as far as the program is concerned."""
        self._process.send_signal(signal.SIGINT)

    def end(self, timeout: float = 20.0) -> int:
        """Wait for the program's end; return its status."""

        def ended() -> bool:
            self._read()  # or it would wait for us
            return self._process.poll() is not None

        wait_until(ended, timeout=timeout, what="the end of the program")
        self._read()
        return self._process.wait()

    def close(self) -> None:
        """End the program, however far it is."""
        self._process.kill()
        self._process.wait()
        os.close(self._leader)

    def _read(self) -> None:
        """Take what there is to read; an error says that the other side is closed."""
        with contextlib.suppress(OSError):
            while select.select([self._leader], [], [], 0)[0] and (data := os.read(self._leader, 65_536)):
                self.written += data.decode(errors="replace")
