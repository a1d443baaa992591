"""Fixtures for tests with a real engine; where it is not installed, they say so and are skipped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.support import engine
from tests.support.engine import Engine
from tests.support.tee import Tee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.router import Router


def pytest_configure(config: pytest.Config) -> None:
    """Name the markers that ask for these tests."""
    config.addinivalue_line("markers", "engine: needs a real engine; only run by `pytest -m engine`")
    config.addinivalue_line("markers", "vllm: needs vLLM as well; only run by `pytest -m vllm`")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave these tests out of a run that does not ask for them."""
    asked_for: str = config.getoption("markexpr")
    return None if "engine" in asked_for or "vllm" in asked_for else True


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    if not engine.installed():
        pytest.skip(f"no engine at {engine.PYTHON}: `make test-engine` installs one")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """Two engines that the tests of a module share; no test ends one or relies on an empty cache."""
    folder = tmp_path_factory.mktemp("engines")
    pair = [Engine(env=os.environ, folder=folder, name=name) for name in ("a", "b")]
    for each in pair:
        each.wait_ready()
    yield pair
    for each in pair:
        each.kill()
        assert each.troubles() == []


@pytest.fixture
def start_engine(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Start an engine that this test may end: `Engine`'s options, and `wait=False` not to wait for its model."""
    started: list[Engine] = []

    def start(*, wait: bool = True, **options: object) -> Engine:
        name = f"own{len(started)}"
        one = Engine(env=os.environ, folder=tmp_path, name=name, **options)  # type: ignore[arg-type] # its own business
        started.append(one)
        if wait:
            one.wait_ready()
        return one

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def router(start_router: Callable[..., Router], engines: list[Engine]) -> Router:
    """A router over the module's engines."""
    return start_router([{"name": each.name, "host": "127.0.0.1", "port": each.port} for each in engines])


@pytest.fixture
def tee(engines: list[Engine]) -> Iterator[Tee]:
    """A listener before the first engine."""
    tee = Tee(engines[0].port)
    yield tee
    tee.close()
