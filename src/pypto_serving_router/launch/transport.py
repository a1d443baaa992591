"""What it takes to run a command on a host: one operation, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_WORDS: Final = 2000  # characters; they are logged, shown and written to the state file


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ran to its end: its exit status and everything it printed."""

    exit: int
    stdout: bytes
    stderr: bytes

    @property
    def words(self) -> str:
        """The last things said on stderr, in one line of bounded length."""
        lines = [line.strip() for line in self.stderr.decode(errors="replace").splitlines()]
        return "; ".join([line for line in lines if line][-3:])[-_LONGEST_WORDS:]


class Transport(Protocol):
    """A way to a host."""

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float) -> Completed:  # noqa: ASYNC109 - the command is ended, too
        """Run a program with exactly these arguments and this input.

        Raises:
            TransportError: It did not demonstrably run to its end within `timeout` seconds; it may still be running.
        """
