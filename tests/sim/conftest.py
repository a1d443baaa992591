"""A simulated replica shared by the tests of a module, sound again for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.harness import Harness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.sim import Sim


@pytest.fixture(scope="module")
def shared_sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """One simulated replica without waits, for tests that don't end it."""
    harness = Harness(tmp_path_factory.mktemp("shared"))
    yield harness.start_sim()
    assert harness.end() == []


@pytest.fixture
def sim(shared_sim: Sim) -> Sim:
    """The shared replica, without faults."""
    shared_sim.heal()
    return shared_sim
