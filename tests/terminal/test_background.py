"""Questions that are answered meanwhile."""

from __future__ import annotations

import threading

import pytest

from pypto_serving_router.errors import RouterRefused
from pypto_serving_router.terminal.background import Background


def test_an_answer_is_waited_for() -> None:
    """Until there is an answer there is none, and then there is (spec 6.4)."""
    go = threading.Event()

    def question() -> None:
        assert go.wait(10)

    asked = Background(question)

    assert not asked.answered(0.01)
    go.set()
    assert asked.answered(10)
    assert asked.answered(0)


def test_an_error_is_the_callers() -> None:
    """An error of the router's is raised where the answer is waited for (spec 6.4)."""

    def question() -> None:
        raise RouterRefused(404, "unknown_replica", "no")

    asked = Background(question)

    with pytest.raises(RouterRefused, match="no"):
        asked.answered(10)
