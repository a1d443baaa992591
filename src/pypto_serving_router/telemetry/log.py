"""Log records: one line each on stderr, for people or as JSON.

Whatever a field holds, it cannot forge a record or drive a terminal: control characters and the like are escaped. A
traceback is the only thing of more than one line in the text form; its lines are indented, and no record is.
"""

from __future__ import annotations

import atexit
import json
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import structlog
from structlog.processors import format_exc_info

from pypto_serving_router.telemetry.floodgate import Floodgate
from pypto_serving_router.telemetry.recent import Recent
from pypto_serving_router.telemetry.sink import Sink
from pypto_serving_router.telemetry.text import begin_record, escape, wants_colour, word

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

Format: TypeAlias = Literal["text", "json"]

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_STDERR: Final = 2
_FLUSH: Final = 1.0  # seconds at exit for what is queued
_LATER: Final = 0.25  # seconds that access records may wait
_SHOWN_APART: Final = frozenset(["timestamp", "level", "event", "exception"])
_QUIET: Final = 10.0  # seconds between two records of the same trouble in a library


@dataclass(frozen=True, slots=True)
class Logs:
    """The log of the process, and what else is made of its records."""

    log: FilteringBoundLogger
    sink: Sink
    recent: Recent
    coloured: bool
    """Whether the text form has colours."""


def configure(level: str, fmt: Format, stream: TextIO | None = None) -> Logs:
    """Set up logging to `stream`, or to stderr: what is at least as severe as `level`, as `fmt`.

    What libraries log and what Python warns of is logged too, from `warning` on.
    """
    fd = _STDERR if stream is None else stream.fileno()
    coloured = wants_colour(fd)
    render = _render_json if fmt == "json" else _Text(coloured=coloured)

    def on_loss(lost: int) -> bytes:
        return render({"timestamp": now(), "level": "error", "event": "log records were lost", "lost": lost})

    sink = Sink(fd, on_loss=on_loss, interval=_LATER)
    atexit.register(sink.flush, _FLUSH)
    recent = Recent()
    threshold = _LEVELS[level]

    def finish(_logger: WrappedLogger, name: str, record: EventDict) -> EventDict:
        """Write a record that is severe enough; remember it if it is about the fleet."""
        whole = {"timestamp": now(), "level": name, "event": record.pop("event"), **record}
        if _LEVELS[name] >= logging.INFO:
            recent.note(whole)
        if _LEVELS[name] >= threshold:
            sink.put(render(whole))
        raise structlog.DropEvent

    log: FilteringBoundLogger = structlog.wrap_logger(
        None,
        processors=[format_exc_info, finish],
        wrapper_class=structlog.make_filtering_bound_logger(min(threshold, logging.INFO)),
    ).bind()
    logging.basicConfig(handlers=[_Bridge(log)], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    return Logs(log, sink, recent, coloured)


def now() -> str:
    """Return the time in UTC, as records have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class _Bridge(logging.Handler):
    """Passes on what libraries log: of what they say over and over, one record every `_QUIET` seconds."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log
        self._floodgate = Floodgate(time.monotonic)

    def emit(self, record: logging.LogRecord) -> None:
        """Log a library's record as one of ours, at the nearest level below that has a name."""
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # its arguments do not fit its format
            message = str(record.msg)
        begins = str(record.msg).partition("\n")[0][:80]  # asyncio goes on with objects that differ each time
        suppressed = self._floodgate.once_per((record.name, level, begins), _QUIET)
        if suppressed is not None:
            self._log.log(level, message, logger=record.name, exc_info=record.exc_info, suppressed=suppressed)


def _render_json(record: Mapping[str, Any]) -> bytes:
    # DEL is the one control character that JSON allows in a string.
    return json.dumps(record, default=str, separators=(",", ":")).replace("\x7f", "\\u007f").encode() + b"\n"


class _Text:
    """Renders records for people; `coloured` for a terminal."""

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured

    def __call__(self, record: Mapping[str, Any]) -> bytes:
        event = escape(str(record["event"]))
        begin = begin_record(record["timestamp"], record["level"], event, coloured=self._coloured)
        fields = " ".join(f"{name}={word(value)}" for name, value in record.items() if name not in _SHOWN_APART)
        line = f"{begin}{fields}".rstrip()
        traceback = record.get("exception")
        more = "".join(f"\n    {escape(row)}" for row in traceback.splitlines()) if traceback else ""
        return f"{line}{more}\n".encode()
