"""Fixtures for every test: real simulated replicas, real routers, byte-exact upstreams; nothing outlives a test."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import settings

from pypto_serving_router.process import is_compiled

pytest.register_assert_rewrite("tests.support")

from tests.support.harness import Harness  # noqa: E402 - rewriting must be registered before
from tests.support.processes import SESSION_MARK, end_marked  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.router import Router
    from tests.support.sim import Sim
    from tests.support.upstream import RawUpstream

pytest_plugins = ["tests.support.no_skip"]

# Whoever starts the tests in the background may have them ignore these, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A shared machine makes any deadline a coin toss; a gate must not find a new example by chance.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("gate", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("gate" if os.environ.get("CI") or os.environ.get("PYPTO_TEST_NO_SKIP") else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the data path at hand has not: what is compiled hides its insides and is not collected."""
    other = "interpreted" if is_compiled() else "compiled"
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(other)])
    items[:] = [item for item in items if not item.get_closest_marker(other)]


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail when a process that descends from this run outlives it, and end it."""
    mark = f"{os.getpid()}-{uuid4().hex}"
    os.environ[SESSION_MARK] = mark
    yield
    left = end_marked(SESSION_MARK, mark)
    if left:
        pytest.fail("\n".join(f"left behind: process {pid}: {what}" for pid, what in left.items()))


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """What this test starts; at its end everything is ended, and what was wrong fails the test."""
    harness = Harness(tmp_path)
    yield harness
    wrong = harness.end()
    if wrong:
        pytest.fail("\n".join(wrong))


@pytest.fixture
def start_sim(harness: Harness) -> Callable[..., Sim]:
    """Start a simulated replica: `Harness.start_sim`."""
    return harness.start_sim


@pytest.fixture
def start_router(harness: Harness) -> Callable[..., Router]:
    """Start the installed router: `Harness.start_router`."""
    return harness.start_router


@pytest.fixture
def start_upstream(harness: Harness) -> Callable[..., RawUpstream]:
    """Start a byte-exact upstream: `Harness.start_upstream`."""
    return harness.start_upstream
