"""Fixtures of the data path's tests: a rig whose books are checked when the test is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    """Make a rig: `Rig`'s options."""
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rig = Rig(**options)
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        rig.check()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """Give a rig with one replica and the usual limits."""
    return make_rig()
