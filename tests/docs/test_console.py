"""What runs the commands of the documentation notices when a page is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.console import Command, File, Shell, matches, read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = """# A page

```json title="a.json"
{"port": 8001}
```

1. In a list:

   ```console
   $ cat a.json
   {"port": 8001}
   $ cat <<'END'
   > first
   > second
   > END
   first
   …
   ```

```console norun
$ rm -rf everything
```

```sh
rm -rf everything
```
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Open a shell in a folder of its own."""
    folder = tmp_path / "reader"
    folder.mkdir()
    shell = Shell(folder)
    yield shell
    shell.close()


def page(*lines: str) -> str:
    """Write a page with one block of commands."""
    return "\n".join(["```console", *lines, "```"])


def test_a_page_is_read_in_order() -> None:
    """Files and commands with their output are found, what is not to be run is not (spec 1.1)."""
    assert list(read(PAGE)) == [
        File("a.json", '{"port": 8001}\n'),
        Command(10, "cat a.json", ['{"port": 8001}']),
        Command(12, "cat <<'END'\nfirst\nsecond\nEND", ["first", "…"]),
    ]


def test_a_page_is_followed(shell: Shell) -> None:
    """Ports are free ones for the commands, and the page's again in what they print (spec 1.1)."""
    assert shell.follow(PAGE) == 2
    assert "8001" not in (shell.folder / "a.json").read_text()


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        (["a"], ["a"], True),
        (["a"], ["b"], False),
        (["a"], [], False),
        ([], ["a"], False),
        (["a…c"], ["abbc"], True),
        (["a…c"], ["abb"], False),
        (["…", "c"], ["a", "b", "c"], True),
        (["…", "c"], ["a", "b"], False),
        (["a", "…"], ["a"], True),
        (["took 1.25 s"], ["took 0.5 s"], True),
        (["took 1.25 s"], ["took a s"], False),
        (["a.c"], ["abc"], False),
    ],
)
def test_output_is_compared(expected: list[str], printed: list[str], same: bool) -> None:
    """Only what a page leaves open may differ (spec 1.1)."""
    assert matches(expected, printed) is same


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["$ false"], "line 2: $ false\nended with 1"),
        (["$ echo one", "two"], "printed\none\nrather than\ntwo"),
        (["$ exit_status() { return 3; }", "$ exit_status"], "ended with 3"),
        (["output without a command"], "begins with a command"),
    ],
)
def test_what_a_page_says_wrongly_is_told(shell: Shell, lines: list[str], words: str) -> None:
    """A command that fails or prints something else fails the page (spec 1.1)."""
    with pytest.raises(AssertionError) as told:
        shell.follow(page(*lines))

    assert words in str(told.value)


def test_a_look_is_repeated_until_it_shows_what_the_page_says(shell: Shell) -> None:
    """Who only looks may have to wait for what a command before has begun (spec 1.1)."""
    assert shell.follow(page("$ (sleep 0.3; echo ready > state) &", "$ grep . state", "ready", "$ wait")) == 3


def test_what_a_page_leaves_running_is_told_and_ended(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that does not put away what it has started fails (spec 1.1)."""
    monkeypatch.setattr("tests.support.console.LEAVE", 0.1)
    with pytest.raises(AssertionError, match="the end of everything"):
        shell.follow(page("$ sleep 100 &"))

    shell.close()
    assert not shell.left()
