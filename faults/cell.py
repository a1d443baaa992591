"""A cell of the matrix: one fault, what it does to a scene, and what came of it."""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.harness import Harness

from faults.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Outcome:
    """What clients saw, and how many seconds after the fault's end all was as before; None: nothing had to mend."""

    saw: str
    back: float | None = None


class Unavailable(Exception):
    """This machine cannot do it, and why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault. `act` asserts what must hold whatever happens."""

    name: str
    fault: str
    act: Callable[[Scene], Outcome]
    quick: bool


ENTERED: list[Cell] = []


def cell(*, quick: bool = False) -> Callable[[Callable[[Scene], Outcome]], Callable[[Scene], Outcome]]:
    """Enter a function into the matrix; its docstring names the fault. `quick` ones take a few seconds."""

    def enter(act: Callable[[Scene], Outcome]) -> Callable[[Scene], Outcome]:
        assert act.__doc__
        ENTERED.append(Cell(act.__name__, act.__doc__.strip().rstrip("."), act, quick))
        return act

    return enter


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table; `wrong` is empty where all was well."""

    cell: Cell
    outcome: Outcome
    wrong: str
    done: bool = True

    def markdown(self) -> str:
        """Write the row."""
        back = "" if self.outcome.back is None else f"{self.outcome.back:.1f} s"
        left = self.wrong.splitlines()[0] if self.wrong else "nothing" if self.done else ""
        return f"| {self.cell.fault} | {self.outcome.saw} | {back} | {left} |"


HEAD = "| Fault | Clients saw | Back after | Left behind |\n|---|---|---:|---|"


def run(cell: Cell) -> Row:
    """Do it on a stage of its own."""
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        harness = Harness(Path(folder), patience=15)
        scene = Scene(harness)
        wrong: list[str] = []
        outcome, done = Outcome(""), True
        try:
            outcome = cell.act(scene)
            wrong += scene.left_over()
        except Unavailable as reason:
            outcome, done = Outcome(f"not done here: {reason}"), False
        except Exception:  # noqa: BLE001 - whatever went wrong is told in the table
            wrong.append(f"FAILED: {traceback.format_exc(limit=-3).splitlines()[-1]}\n{traceback.format_exc()}")
        finally:
            scene.close()
            wrong += harness.end()
    return Row(cell, outcome, "; ".join(wrong), done)
