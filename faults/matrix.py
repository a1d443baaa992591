"""Every cell of the matrix, in the order in which it is shown."""

from __future__ import annotations

from faults import clients, hosts, machine, replicas, router
from faults.cell import ENTERED, Cell

_ORDER = [module.__name__ for module in (replicas, clients, machine, router, hosts)]

CELLS: dict[str, Cell] = {
    cell.name: cell for cell in sorted(ENTERED, key=lambda cell: _ORDER.index(cell.act.__module__))
}
