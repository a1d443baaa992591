"""What the kernel knows about this process."""

import os
import time
from pathlib import Path

import pytest

from pypto_serving_router.telemetry import process_stats


def test_plausible() -> None:
    """The figures are this process' own (spec 9)."""
    before = process_stats.read()
    with Path(os.devnull).open("rb"):
        while os.times().user + os.times().system <= before.cpu_seconds:
            pass
        after = process_stats.read()

    assert after.open_fds == before.open_fds + 1
    assert after.cpu_seconds > before.cpu_seconds
    assert 1 << 20 < after.resident_bytes < 1 << 40
    assert after.max_fds >= after.open_fds
    assert time.time() - 7200 < after.started_at <= time.time() + 1


def test_old_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel does not tell the number of descriptors, they are counted (spec 9)."""
    counted = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1
    real = Path.stat

    class Stat:
        st_size = 0

    monkeypatch.setattr(
        Path, "stat", lambda self, **more: Stat() if str(self) == "/proc/self/fd" else real(self, **more)
    )

    assert process_stats.read().open_fds - counted in (0, 1)
