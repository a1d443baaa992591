"""The fault matrix: its quick cells, and that a cell which leaves something behind is found out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faults.cell import Cell, Outcome, Unavailable, run
from faults.matrix import CELLS
from faults.scene import Counts

if TYPE_CHECKING:
    from faults.scene import Scene

QUICK = [cell for cell in CELLS.values() if cell.quick]


@pytest.mark.slow
@pytest.mark.parametrize("cell", QUICK, ids=[cell.name for cell in QUICK])
def test_nothing_is_lost_or_left(cell: Cell) -> None:
    """Leases, connections, tasks, descriptors and processes are back where they were (spec 4.5, 4.6, 4.10, 7.11)."""
    row = run(cell)

    assert row.wrong == ""
    assert row.outcome.saw


def test_every_cell_has_a_fault_of_its_own() -> None:
    """No two rows of the table are about the same thing."""
    assert len({cell.fault for cell in CELLS.values()}) == len(CELLS)


def test_what_is_left_is_named() -> None:
    """A count that has risen is told with both numbers; one that has fallen is none of ours."""
    before = Counts(leases=0, clients=1, upstreams=0, tasks=5, descriptors=20, threads=9, processes=0)
    after = Counts(leases=1, clients=1, upstreams=0, tasks=4, descriptors=22, threads=9, processes=0)

    assert after.above(before) == ["leases 1 instead of 0", "descriptors 22 instead of 20"]
    assert before.above(before) == []


def test_a_cell_that_fails_is_a_row_that_says_so() -> None:
    """What goes wrong in one cell is in the table, and the others go on."""

    def fails(_: Scene) -> Outcome:
        raise AssertionError("the replica was blamed")

    def cannot(_: Scene) -> Outcome:
        raise Unavailable("no root")

    assert "the replica was blamed" in run(Cell("a", "a fault", fails, quick=True)).markdown()
    assert run(Cell("b", "another", cannot, quick=True)).markdown() == "| another | not done here: no root |  |  |"
