"""What is set for the whole process."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest


def run(program: str, *, soft: int, hard: int) -> str:
    """Run a program that has this many descriptors."""
    return subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True, text=True, check=True, timeout=30,
    ).stdout  # fmt: skip


LIMIT = """
import resource
from pypto_serving_router.process import raise_descriptor_limit
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "clients"), [(256, 1024, (1024 - 128) // 2), (1024, 1024, (1024 - 128) // 2), (100, 100, 16)]
)
def test_descriptors(soft: int, hard: int, clients: int) -> None:
    """spec 4.10, P5: as many descriptors as allowed are used, two for each client, some kept for other files."""
    assert run(LIMIT, soft=soft, hard=hard).split() == [str(clients), str(hard), str(hard)]


COLLECTIONS = """
import gc
from pypto_serving_router.process import collect_rarely
kept = [[] for _ in range(200_000)]
collect_rarely()
walks = []
gc.callbacks.append(lambda phase, info: phase == "start" and walks.append(info["generation"]))
streams = [[] for _ in range(200_000)]
young = [walks.count(generation) for generation in (0, 1, 2)]
class Cycle:
    ended = 0
    def __del__(self):
        Cycle.ended += 1
for _ in range(10_000):
    one = Cycle()
    one.me = one
print(young[0] > 0, young[1] > 0, young[2], Cycle.ended > 9_000)
"""


def test_collections_are_rare() -> None:
    """spec 8: opening ten thousand streams makes the collector walk all of them never; young cycles are still found."""
    assert run(COLLECTIONS, soft=256, hard=256).split() == ["True", "True", "0", "True"]


def test_memory_can_be_kept() -> None:
    """spec 8: on glibc, freed blocks are kept for the next body; elsewhere that is no error."""
    program = "from pypto_serving_router.process import keep_memory; print(keep_memory())"

    assert run(program, soft=256, hard=256).strip() in ("True", "False")
