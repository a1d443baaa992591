"""One record for each exchange, if asked for.

It does not pass through the log's processors: it is written for every request, and costs as little as a template.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from pypto_serving_router.telemetry.text import begin_record, word

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypto_serving_router.telemetry.log import Format
    from pypto_serving_router.telemetry.sink import Sink


EVENT: Final = "exchange ended"
_MILLISECONDS: Final = tuple(f".{ms:03d}Z" for ms in range(1000))


class Record(msgspec.Struct, gc=False):
    """The fields, in order; what they mean is in telemetry/fields.py."""

    timestamp: str
    level: str
    event: str
    method: str
    path: str
    status: int
    replica: str
    placement: str
    outcome: str
    session: str | None
    client: str
    received: int
    relayed: int
    ttfb_ms: float | None
    total_ms: float
    request_id: str


_encode = msgspec.json.Encoder().encode


def short_hash(session: str) -> str:
    """Return what stands for a session id in a record: it can be found by the id, and not the other way round."""
    return blake2b(session.encode(), digest_size=6).hexdigest()


class AccessLog:
    """Writes the records of exchanges to the same sink as all others, a batch at a time."""

    def __init__(self, sink: Sink, fmt: Format, wall: Callable[[], float], *, coloured: bool = False) -> None:
        """`wall` tells the seconds since the epoch; `coloured` is for text on a terminal."""
        self._put = sink.put_later
        self._json = fmt == "json"
        self._wall = wall
        self._second = -1
        self._prefix = ""
        self._before, _, self._after = begin_record("\0", "info", EVENT, coloured=coloured).partition("\0")

    def write(  # noqa: PLR0917 - keyword arguments would cost a tenth of it
        self,
        method: bytes,
        target: bytes,
        status: int,
        replica: str,
        placement: str,
        outcome: str,
        session: str | None,
        client: bytes,
        received: int,
        relayed: int,
        ttfb_s: float,
        total_s: float,
        request_id: bytes,
        /,
    ) -> None:
        """Write one record: of the target, only the path. A negative `ttfb_s` says that no answer began."""
        now = self._wall()
        second = int(now)
        if second != self._second:
            self._second = second
            self._prefix = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        timestamp = self._prefix + _MILLISECONDS[int((now - second) * 1000)]
        path = target.partition(b"?")[0].decode("ascii", "backslashreplace")
        sent_id = request_id.decode("ascii", "backslashreplace")
        hashed = None if session is None else short_hash(session)
        if self._json:
            # In whole microseconds, cut off: `round` takes three times as long.
            ttfb_ms = int(ttfb_s * 1e6) / 1e3 if ttfb_s >= 0.0 else None
            total_ms = int(total_s * 1e6) / 1e3
            record = Record(
                timestamp, "info", EVENT, method.decode(), path, status, replica, placement, outcome, hashed,
                client.decode(), received, relayed, ttfb_ms, total_ms, sent_id,
            )  # fmt: skip
            self._put(_encode(record) + b"\n")
        else:
            line = (
                f"{self._before}{timestamp}{self._after}method={method.decode()} path={path} status={status} "
                f"replica={replica or '-'} placement={placement or '-'} outcome={outcome} session={hashed or '-'} "
                f"client={client.decode()} received={received} relayed={relayed} "
                f"ttfb_ms={f'{ttfb_s * 1e3:.1f}' if ttfb_s >= 0.0 else '-'} total_ms={total_s * 1e3:.1f} "
                f"request_id={word(sent_id)}\n"
            )
            self._put(line.encode())
