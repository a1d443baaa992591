"""The distributions, built once."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.markdown import ROOT
from tests.support.processes import environment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build sdist and wheel, not compiled; return the folder that they are in."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder],
        cwd=ROOT,
        env=environment({"PYPTO_COMPILE": "0"}),
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    """Return the wheel."""
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def sdist(built: Path) -> Path:
    """Return the source distribution."""
    (sdist,) = built.glob("*.tar.gz")
    return sdist
