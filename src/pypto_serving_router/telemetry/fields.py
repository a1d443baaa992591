"""What each field of a log record means: the only list, from which the reference page is made."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pypto_serving_router.telemetry.metrics import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMON: Final[Mapping[str, str]] = MappingProxyType(
    {
        "timestamp": "When, in UTC (ISO 8601, milliseconds).",
        "level": "`debug`, `info`, `warning`, `error` or `critical`.",
        "event": "What happened: a fixed phrase. What varies is in the other fields.",
    }
)
"""The fields of every record, in order."""

FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # which
        "replica": "The name of a replica.",
        "slot": "The name of a slot.",
        "host": "The name of a host.",
        "generation": "Which launch on the slot, so that two replicas of one slot are told apart.",
        "url": "Where a replica is reached.",
        "client": "The address of a client.",
        "request_id": "The `X-Request-Id` of a request, as the replica saw it.",
        "session": "The first 12 digits of the BLAKE2b-48 digest of a session id (`printf %s ID | b2sum -l 48`).",
        # a slot, a replica
        "from": "The state or phase before.",
        "to": "The state or phase after.",
        "cause": "Why a slot changed its state.",
        "pid": "The process launched, on its host.",
        "error": "What went wrong.",
        # a command on a host
        "action": "What was asked of a host: `start`, `inspect`, `inspect-all` (after a restart), `stop` or `log`.",
        "argv0": "The program run.",
        "exit": "Its exit status.",
        "ms": "How long it took, in milliseconds.",
        # an exchange
        "method": "The method of a request.",
        "path": "The path of a request, without its query.",
        "status": "The status code the client was given; 0 if it left before any.",
        "placement": "Why the request went to its replica: `affinity`, `new`, `moved-slack` or `moved-unroutable`.",
        "outcome": "How the exchange ended; see the outcomes below.",
        "received": "Bytes of the request's body.",
        "relayed": "Bytes of the answer's body.",
        "ttfb_ms": "From the head of the request to the head of its answer, in milliseconds.",
        "total_ms": "From the head of the request to the end of its answer, in milliseconds.",
        # the router
        "seconds": "How long, in seconds.",
        "suppressed": "How many records like this one were held back since the last.",
        "lost": "How many records stderr did not take.",
        "replicas": "How many replicas.",
        "signal": "The signal received.",
        "remedy": "What would help.",
        "confirmed": "Whether every stop was confirmed.",
        "left_running": "The slots whose replicas still run, or may.",
        "requests": "How many requests are waited for, or were cut off.",
        "seconds_left": "For how long they are waited for, at most.",
        "logger": "Which library says so, if it is not the router itself.",
        "exception": "The traceback, where something happened that should not have.",
    }
)
"""What a record may have beside COMMON."""


def reference() -> str:
    """Return the reference page of the log's fields, in Markdown."""
    lines = [
        "# Log fields",
        "",
        "<!-- Generated from src/pypto_serving_router/telemetry/fields.py. -->",
        "",
        "Records go to stderr, one line each: for people (`--log-format text`), or as one JSON object (`json`).",
        "In the text form control characters are escaped and a traceback follows in indented lines.",
        "Bodies, prompts and tokens are never logged, and session ids only as a digest.",
        "If stderr does not take records, they are lost and counted; requests are never held up.",
        "",
        "| Field | Meaning |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in {**COMMON, **FIELDS}.items()]
    lines += ["", "## Outcomes of an exchange", "", "| Outcome | Meaning |", "|---|---|"]
    lines += [f"| `{outcome}` | {meaning} |" for outcome, meaning in OUTCOMES.items()]
    return "\n".join(lines) + "\n"
