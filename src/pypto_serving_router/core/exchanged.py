"""What is known of a request once it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pypto_serving_router.core.lease import Lease


class Exchanged:
    """A request that has ended, as the metrics and the access log are told of it.

    Times are monotonic: `started`, `placed` on a replica, `sent` to it, `first_byte` of the answer (0.0 for what did
    not happen), `ended`. `status` is what the client was given, 0 if it left before; `received` and `relayed` count
    the bytes of the two bodies. `outcome` is one of telemetry.metrics.OUTCOMES.
    """

    __slots__ = (
        "ended", "first_byte", "lease", "outcome", "placed", "received", "relayed", "sent", "started", "status",
    )  # fmt: skip

    lease: Lease | None
    status: int
    outcome: str
    received: int
    relayed: int
    started: float
    placed: float
    sent: float
    first_byte: float
    ended: float
