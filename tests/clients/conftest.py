"""Fixtures for tests with clients people use; those that are not installed for development run with `-m clients`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker that asks for these tests."""
    config.addinivalue_line("markers", "clients: needs clients that `make test-clients` installs; run by `-m clients`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests that need more out of a run that does not ask for them."""
    if "clients" in config.getoption("markexpr"):
        return
    asked_for = [item for item in items if item.get_closest_marker("clients")]
    config.hook.pytest_deselected(items=asked_for)
    items[:] = [item for item in items if item not in asked_for]


@pytest.fixture(scope="session")
def environment() -> Path:
    """The environment that has the clients: `bin/`, with Node of its own, and `node_modules/`."""
    folder = Path(os.environ.get("PYPTO_CLIENTS_ENVIRONMENT") or ROOT / ".venv-clients")
    if not folder.is_dir():
        pytest.skip(f"no clients at {folder}: `make test-clients` installs them")
    return folder
