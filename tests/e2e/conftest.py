"""What the end-to-end tests share: one router with two replicas for all that leaves them as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.support import netlab
from tests.support import sshd as sshds
from tests.support.harness import Harness
from tests.support.talk import Talker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.router import Router
    from tests.support.sim import Sim


class Stage(NamedTuple):
    """A router in front of two replicas, and a client. Other tests have left pins and counters behind."""

    router: Router
    sims: tuple[Sim, Sim]
    talker: Talker

    def sim(self, name: str) -> Sim:
        """Return the replica that the router calls so."""
        return next(sim for sim in self.sims if sim.url.endswith(f"//{name}"))


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One router for all the tests of a process that change nothing about it, its replicas or their health."""
    harness = Harness(tmp_path_factory.mktemp("stage"))
    sims = (harness.start_sim(), harness.start_sim())
    router = harness.start_router(sims)
    talker = Talker(router.url)
    yield Stage(router, sims, talker)
    talker.close()
    wrong = harness.end()
    if wrong:
        pytest.fail("\n".join(wrong))


@pytest.fixture
def talk() -> Iterator[Callable[[Router], Talker]]:
    """Make clients, closed at the end."""
    talkers: list[Talker] = []

    def make(router: Router) -> Talker:
        talkers.append(Talker(router.url))
        return talkers[-1]

    yield make
    for talker in talkers:
        talker.close()


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshds.Sshd]:
    """A real sshd on a loopback port."""
    if not sshds.AVAILABLE:
        pytest.skip("needs an OpenSSH server")
    with sshds.run_sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[netlab.Lab]:
    """Two hosts in namespaces of their own, and a place for the router between them."""
    if not netlab.AVAILABLE:
        pytest.skip("needs root, network namespaces and an OpenSSH server")
    laboratory = netlab.Lab(tmp_path, "node01", "node02")
    yield laboratory
    laboratory.close()
