"""How late the event loop is: the one number that says whether the router itself slows its streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from pypto_serving_router.telemetry.floodgate import Floodgate

INTERVAL: Final = 0.2  # seconds; five wake-ups a second cost nothing and miss no stall worth knowing
WORTH_SAYING: Final = 0.25  # seconds; a person sees a stream halt from about here
_QUIET: Final = 60.0  # seconds between two records of it


async def watch(
    record: Callable[[float], None],
    log: FilteringBoundLogger,
    *,
    now: Callable[[], float],
    floodgate: Floodgate,
    interval: float = INTERVAL,
) -> NoReturn:
    """Tell `record` again and again by how many seconds the loop was late, and log it when that is long."""
    while True:
        due = now() + interval
        await asyncio.sleep(interval)
        late = max(now() - due, 0.0)
        record(late)
        if late >= WORTH_SAYING:
            suppressed = floodgate.once_per("loop delay", _QUIET)
            if suppressed is not None:
                log.warning("the event loop was held up", seconds=round(late, 3), suppressed=suppressed)
