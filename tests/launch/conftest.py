"""What the tests of launching share: a slot on this machine, an sshd, and some hosts of a laboratory."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.support import netlab
from tests.support import sshd as sshds
from tests.support.slots import SlotHost, all_ended

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def slot_host(tmp_path: Path) -> Iterator[SlotHost]:
    """A slot on this machine; whatever its launches leave is killed."""
    with all_ended():
        yield SlotHost(tmp_path)


@pytest.fixture
def innocent() -> Iterator[int]:
    """A process that has nothing to do with us, and leads a group as ours do."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshds.Sshd]:
    """A real sshd on a loopback port."""
    if not sshds.AVAILABLE:
        pytest.skip("needs an OpenSSH server")
    with sshds.run_sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[netlab.Lab]:
    """Two hosts in namespaces of their own."""
    if not netlab.AVAILABLE:
        pytest.skip("needs root, network namespaces and an OpenSSH server")
    laboratory = netlab.Lab(tmp_path, "node01", "node02")
    yield laboratory
    laboratory.close()
