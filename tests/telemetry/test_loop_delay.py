"""How late the event loop is."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from pypto_serving_router.telemetry.floodgate import Floodgate
from pypto_serving_router.telemetry.loop_delay import WORTH_SAYING, watch


class Log:
    def __init__(self) -> None:
        self.warnings: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.warnings.append({"event": event, **fields})


def test_held_up() -> None:
    """A loop that was held up is measured, and said once (spec 9)."""
    delays: list[float] = []
    log = Log()
    measured = asyncio.Event()

    def record(delay: float) -> None:
        delays.append(delay)
        measured.set()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        gate = Floodgate(loop.time)
        task = loop.create_task(watch(record, log, now=loop.time, floodgate=gate, interval=0.01))  # type: ignore[arg-type] # a stand-in
        for _ in range(2):
            measured.clear()
            await measured.wait()
            time.sleep(WORTH_SAYING + 0.1)  # noqa: ASYNC251 - holding up the loop is the point
            measured.clear()
            await measured.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())

    assert sum(delay >= WORTH_SAYING for delay in delays) >= 2
    assert all(delay >= 0 for delay in delays)
    assert len(log.warnings) == 1
    assert log.warnings[0]["seconds"] >= WORTH_SAYING
