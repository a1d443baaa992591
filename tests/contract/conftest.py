"""What the contract tests share: an sshd that `ssh` finds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.support import sshd as sshds

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshds.Sshd]:
    """A real sshd on a loopback port."""
    if not sshds.AVAILABLE:
        pytest.skip("needs an OpenSSH server")
    with sshds.run_sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.ssh)])
def destination(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The two ways to a host: None is the router's machine, else it is an ssh destination."""
    if request.param == "local":
        return None
    running: sshds.Sshd = request.getfixturevalue("sshd")
    monkeypatch.setenv("PATH", f"{running.bin}{os.pathsep}{os.environ['PATH']}")
    return "node01"
