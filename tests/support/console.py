"""Runs the commands of a documentation page, in order, in one shell, and compares what they print.

How a page is read:

- A `console` block is run, unless its fence says `console norun`.
  A line that begins with `$ ` is a command, lines after it that begin with `> ` go on with it, the rest is its output.
  A command without output may print anything; every command must end with status 0.
- A block `json title="NAME"` is written to the file NAME.
- Ports 8000 to 8019 stand for twenty free ones.
- In the output, `…` stands for anything, a line that is only `…` for any lines, and a time like `0.25 s` for any time.
- A command that only looks (a `curl` that sends nothing, a `grep`) is repeated until it prints what the page says:
  whoever reads the page would look again, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from tests.support.ports import free_ports
from tests.support.processes import TEST_MARK, end_marked, environment, marked
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE: Final = 30.0
"""Seconds for one command, and for what is looked at to become what the page says."""

LEAVE: Final = 10.0
"""Seconds for what a page has told to end."""

PORTS: Final = 20

_FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_TITLE: Final = re.compile(r'title="([^"]+)"')
_FIRST_PORT: Final = 8000
_PAGE_PORT: Final = re.compile(r"(?<![\w.-])80([01]\d)(?!\w)")
_LOOKS: Final = re.compile(r"(curl|grep)\b(?!.* (-X|-d|--data\S*) )")
_TIME: Final = re.compile(r"\d+(\.\d+)? s\b")


@dataclass(slots=True)
class Command:
    """A command of a page, and what the page says it prints: nothing if it does not say."""

    line: int
    text: str
    output: list[str] = field(default_factory=list)

    @property
    def looks(self) -> bool:
        """Whether it only looks, so that it may be repeated."""
        return _LOOKS.match(self.text) is not None


@dataclass(frozen=True, slots=True)
class File:
    """A file that a page shows."""

    name: str
    text: str


def read(page: str) -> Iterator[Command | File]:
    """Yield the commands and files of a page, in order."""
    for fence in _FENCE.finditer(page):
        indent = len(fence["indent"])
        lines = [line[indent:] for line in fence["text"].splitlines()]
        first = page.count("\n", 0, fence.start("text")) + 1
        if fence["info"].strip() == "console":
            yield from _commands(lines, first)
        elif (title := _TITLE.search(fence["info"])) is not None:
            yield File(title[1], "\n".join(lines) + "\n")


def _commands(lines: list[str], first: int) -> Iterator[Command]:
    command: Command | None = None
    for number, line in enumerate(lines, first):
        if line.startswith("$ "):
            if command is not None:
                yield command
            command = Command(number, line[2:])
        elif command is None:
            raise AssertionError(f"line {number}: a console block begins with a command, not with {line!r}")
        elif line.startswith("> ") and not command.output:
            command.text += f"\n{line[2:]}"
        else:
            command.output.append(line)
    if command is not None:
        yield command


def matches(expected: list[str], printed: list[str]) -> bool:
    """Whether the output is what a page says."""
    if not expected:
        return not printed
    if expected[0] == "…":
        return any(matches(expected[1:], printed[skipped:]) for skipped in range(len(printed) + 1))
    return (
        bool(printed) and _pattern(expected[0]).fullmatch(printed[0]) is not None and matches(expected[1:], printed[1:])
    )


def _pattern(line: str) -> re.Pattern[str]:
    pieces = [_TIME.sub("0 s", piece) for piece in line.split("…")]
    return re.compile(".*".join(re.escape(piece).replace(r"0\ s", r"\d+(\.\d+)?\ s") for piece in pieces))


class Shell:
    """A shell in a folder of its own that outlives no test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = f"{uuid4().hex}/docs"
        self._base = free_ports(PORTS)
        self._output = folder.with_name(f"{folder.name}.out")
        variables = environment({TEST_MARK: self._mark, "HOME": str(folder), "LC_ALL": "C.UTF-8"})
        with self._output.open("wb") as output:
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=folder,
                env={**variables, "PATH": f"{Path(sys.executable).parent}:{variables['PATH']}"},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def follow(self, page: str) -> int:
        """Do what a page says; return how many commands that were.

        Raises:
            AssertionError: a command failed or printed something else, or the page leaves processes behind.
        """
        done = 0
        for step in read(page):
            if isinstance(step, File):
                (self.folder / step.name).write_text(self._with_free_ports(step.text))
            else:
                self._follow(step)
                done += 1
        wait_until(lambda: not self.left(), timeout=LEAVE, what="the end of everything that the page started")
        return done

    def left(self) -> dict[int, str]:
        """Return the living processes that commands have started."""
        return {pid: what for pid, what in marked(TEST_MARK, self._mark).items() if pid != self._bash.pid}

    def close(self) -> None:
        """End the shell and whatever it started."""
        assert self._bash.stdin
        self._bash.stdin.close()
        self._bash.kill()
        self._bash.wait()
        end_marked(TEST_MARK, self._mark)

    def _follow(self, command: Command) -> None:
        seen: tuple[int, list[str]] = (0, [])

        def as_written() -> bool:
            nonlocal seen
            seen = self._run(self._with_free_ports(command.text))
            status, printed = seen
            return status == 0 and (not command.output or matches(command.output, printed))

        if as_written():
            return
        if command.looks:
            try:
                wait_until(as_written, timeout=PATIENCE)
            except AssertionError:
                pass
            else:
                return
        status, printed = seen
        expected = "\n".join(command.output) or "anything"
        raise AssertionError(
            f"line {command.line}: $ {command.text}\nended with {status} and printed\n"
            + "\n".join(printed)
            + f"\nrather than\n{expected}"
        )

    def _run(self, text: str) -> tuple[int, list[str]]:
        """Run one command; return its status and the lines it printed."""
        assert self._bash.stdin
        marker = f"---{uuid4().hex}"
        begin = self._output.stat().st_size
        # A group, so that what it says about itself is read whole; no input, or it would read the next command.
        self._bash.stdin.write(f"{{ {text}\n}} < /dev/null; printf '\\n%s %d\\n' {marker} $?\n".encode())
        self._bash.stdin.flush()

        def ended() -> re.Match[str] | None:
            with self._output.open("rb") as output:
                output.seek(begin)
                return re.search(rf"\n{marker} (\d+)\n", output.read().decode(errors="replace"))

        found = wait_until(ended, timeout=PATIENCE, what=f"the end of {text!r}")
        assert found
        return int(found[1]), self._with_page_ports(found.string[: found.start()]).splitlines()

    def _with_free_ports(self, text: str) -> str:
        return _PAGE_PORT.sub(lambda port: str(self._base + int(port[1])), text)

    def _with_page_ports(self, text: str) -> str:
        free = "|".join(str(port) for port in range(self._base, self._base + PORTS))
        return re.sub(rf"\b({free})\b", lambda port: str(_FIRST_PORT + int(port[1]) - self._base), text)
