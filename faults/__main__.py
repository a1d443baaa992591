"""`python -m faults [CELL...]`: do to a real router what can go wrong, and print a table of what came of it."""

from __future__ import annotations

import argparse
import sys

from faults.cell import HEAD, run
from faults.matrix import CELLS


def main() -> int:
    """Run the cells, and return 1 if anything was left behind or not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help="which ones [all]")
    parser.add_argument("--list", action="store_true", help="only print their names")
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{cell.name}: {cell.fault}" for cell in CELLS.values()))
        return 0
    if unknown := set(given.cells) - set(CELLS):
        parser.error(f"no cell is called {unknown.pop()}")
    print(HEAD, flush=True)
    bad = 0
    for cell in CELLS.values():
        if not given.cells or cell.name in given.cells:
            row = run(cell)
            print(row.markdown(), flush=True)
            if row.wrong:
                bad += 1
                print(row.wrong, file=sys.stderr, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
