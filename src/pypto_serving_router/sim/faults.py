"""What a simulated replica can be told to do wrong.

The fields below are the only list: the `--sim-*` options, `POST /sim/faults` and the `X-Sim-Faults` request header
are all made from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

BEFORE_HEAD = -1

Health = Literal["ok", "unready", "hang"]
Break = Literal["fin", "rst", "exit", "kill", "hang", "garbage"]
Count = Annotated[int, Meta(ge=1)]
Measure = Annotated[float, Meta(ge=0)]
Place = Annotated[int, Meta(ge=BEFORE_HEAD)]
ErrorStatus = Annotated[int, Meta(ge=400, le=599)]
Remaining = Annotated[int, Meta(ge=0)]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The faults in force; the defaults are a replica without any."""

    health: Annotated[
        Health, Meta(description="What /health does: answer 200 (ok) or 503 (unready), or never answer (hang).")
    ] = "ok"
    break_with: Annotated[
        Break | None,
        Meta(
            description="How an answer breaks: close (fin), reset (rst), end the process with status 70 (exit) or "
            "by SIGKILL (kill), fall silent (hang), or send bytes that are no HTTP and close (garbage)."
        ),
    ] = None
    break_after: Annotated[
        Place, Meta(description="Events sent before it breaks; -1: before the head of the answer.")
    ] = BEFORE_HEAD
    status: Annotated[ErrorStatus | None, Meta(description="Refuse every generation with this status.")] = None
    retry_after: Annotated[Remaining | None, Meta(description="Seconds in a Retry-After field beside that status.")] = (
        None
    )
    answer_bytes: Annotated[Count | None, Meta(description="Stretch the text of each answer to this many bytes.")] = (
        None
    )
    trickle: Annotated[Measure, Meta(description="Seconds between the single bytes of an answer; 0: no trickle.")] = 0.0
    limit: Annotated[
        Remaining | None, Meta(description="Generations that the faults above, but for health, still strike.")
    ] = None
    keep_alive: Annotated[Measure, Meta(description="Seconds until an idle connection is closed, unannounced.")] = 5.0
    ignore_sigterm: Annotated[bool, Meta(description="SIGTERM and SIGINT do nothing.")] = False


def parse(changes: Mapping[str, object], base: Faults) -> Faults:
    """Return `base` with some fields changed.

    Raises:
        ValueError: a field is unknown or its value is out of range.
    """
    return msgspec.convert(msgspec.structs.asdict(base) | dict(changes), Faults)
