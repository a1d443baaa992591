"""The goals our router is held to, and the verdict on each."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from bench.catalogue import OURS
from bench.summary import Results, Row, in_pairs, least, number, rows


class Verdict(StrEnum):
    """How a goal came out."""

    WIN = "WIN"
    PASS = "PASS"
    MISS = "MISS"
    UNKNOWN = "not judged"


@dataclass(frozen=True, slots=True)
class Bound:
    """`factor` times the best figure of some proxies; of none: the factor itself."""

    factor: float
    of: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.factor:g} x {' or '.join(self.of)}" if self.of else f"{self.factor:g}"


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of ours and its bounds: every `must` for a PASS, and `win` besides for a WIN."""

    title: str
    measure: str
    figure: str
    must: tuple[Bound, ...]
    win: Bound | None = None
    at_least: bool = False
    saturated: bool = False
    """Means something only if the proxies' cores were full."""
    quiet: bool = False
    """Means something only if nothing else ran."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a goal."""

    goal: Goal
    verdict: Verdict
    value: float | None
    note: str
    doubtful: bool = False
    """The verdict is on part of the bounds, because a proxy was not measured, or on figures that may not hold."""


_FULL_PCT = 85
_QUIET_PCT = 20
_TWO = ("nginx", "haproxy")
_NGINX = ("nginx",)
_VLLM = ("vllm-router",)
_SMALL = (Bound(1.25, _TWO), Bound(0.5, _VLLM), Bound(0.25, ("smg",)))
_EVENT = (Bound(1.1, _TWO), Bound(0.9, _VLLM))
_LATE = (Bound(1.5, _NGINX),)

GOALS = (
    Goal("2 KiB, session in the header: µs CPU", "req", "cpu_us", _SMALL, Bound(1.0, _TWO)),
    Goal("2 KiB, session in the body: µs CPU", "reqbody", "cpu_us", _SMALL, Bound(1.0, _TWO)),
    Goal("200 KiB, session in the header: µs CPU", "big", "cpu_us", (Bound(0.7, _NGINX),), Bound(0.5, _NGINX)),
    Goal("200 KiB, session in the body: µs CPU", "bigbody", "cpu_us", (Bound(2.0, _NGINX),), Bound(1.0, _NGINX)),
    Goal("event, all at once: µs CPU", "ssebatch", "cpu_us", _EVENT, Bound(0.95, _TWO)),
    Goal("event, spread out: µs CPU", "sse", "cpu_us", _EVENT, Bound(0.95, _TWO)),
    Goal("added latency p50, ms", "lat", "added_lat_p50", _LATE, Bound(1.0, _NGINX), quiet=True),
    Goal("added latency p99, ms", "lat", "added_lat_p99", _LATE, Bound(1.0, _NGINX), quiet=True),
    Goal("added time to first byte p50, ms", "ttft", "added_ttfb_p50", _LATE, Bound(1.0, _NGINX), quiet=True),
    Goal("added time to first byte p99, ms", "ttft", "added_ttfb_p99", _LATE, Bound(1.0, _NGINX), quiet=True),
    Goal("memory of an idle stream, KiB", "idle", "rss_kib_stream", (Bound(8),), Bound(5)),
    Goal("memory of an idle stream, many, KiB", "idle10k", "rss_kib_stream", (Bound(8),), Bound(5)),
    Goal(
        "saturated requests/s", "sat", "rps", (Bound(0.8, _NGINX),), Bound(1.0, _NGINX), at_least=True, saturated=True
    ),
    Goal("slow reader, MiB a stream", "slow", "grown_mib_stream", (Bound(1),)),
    Goal("client leaves midway, worst ms", "leave", "midway_max", (Bound(50),)),
    Goal("client leaves a quiet stream, worst ms", "leave", "quiet_max", (Bound(50),)),
    Goal("client leaves before the head, worst ms", "leave", "before_head_max", (Bound(50),)),
)


def judge(goal: Goal, table: Mapping[str, Row], ratios: Mapping[str, float] | None = None) -> Outcome:
    """Return the verdict on one goal from its measure's rows.

    `ratios` are of our figure to each proxy's, where they are better known than from the rows.
    """
    mine = table.get(OURS)
    value = number(mine, goal.figure)
    if mine is None or goal.figure not in mine:
        return Outcome(goal, Verdict.UNKNOWN, None, "not measured")
    if value is None:
        return Outcome(goal, Verdict.MISS, None, str(mine[goal.figure]))
    if bad := number(mine, "bad"):
        return Outcome(goal, Verdict.MISS, value, f"{bad:.0f} bad answers void it")
    checks = [_check(goal, bound, value, table, ratios) for bound in goal.must]
    doubt = _doubt(goal, table)
    note = "; ".join(filter(None, [*(check.note for check in checks), doubt]))
    known = [check.holds for check in checks if check.holds is not None]
    doubtful = len(known) < len(checks) or any(check.partial for check in checks) or bool(doubt)
    if not known:
        return Outcome(goal, Verdict.UNKNOWN, value, note)
    if not all(known):
        return Outcome(goal, Verdict.MISS, value, note, doubtful)
    won = goal.win is not None and _check(goal, goal.win, value, table, ratios).holds
    return Outcome(goal, Verdict.WIN if won else Verdict.PASS, value, note, doubtful)


def _doubt(goal: Goal, table: Mapping[str, Row]) -> str:
    """Say what about the circumstances of a comparison makes it doubtful."""
    names = [OURS, *(name for bound in goal.must for name in bound.of)]
    busy = [(name, share) for name in names if (share := number(table.get(name), "busy_pct")) is not None]
    slack = [f"{name} {share:.0f} %" for name, share in busy if share < _FULL_PCT]
    if goal.saturated and slack:
        return f"core not full: {', '.join(slack)}"
    others = max((number(table.get(name), "others_pct") or 0.0 for name in names), default=0.0)
    if goal.quiet and others > _QUIET_PCT:
        return f"something else took {others:.0f} % of a core"
    return ""


class _Check(NamedTuple):
    """One bound looked at."""

    holds: bool | None
    """None: there is nothing to compare with."""
    note: str
    partial: bool = False


def _check(
    goal: Goal, bound: Bound, value: float, table: Mapping[str, Row], ratios: Mapping[str, float] | None
) -> _Check:
    """Compare a figure with a bound, as far as the proxies it names were measured."""

    def holds(ratio: float) -> bool:
        return ratio >= bound.factor if goal.at_least else ratio <= bound.factor

    if not bound.of:
        return _Check(holds(value), "")
    values = {name: v for name in bound.of if (v := number(table.get(name), goal.figure)) is not None}
    missing = [name for name in bound.of if name not in values]
    absent = f"{' and '.join(missing)} not measured" if missing else ""
    if not values:
        return _Check(None, absent)
    lost = [name for name, figure in values.items() if figure <= 0]
    if lost:  # an added latency lost in the noise
        return _Check(None, f"{lost[0]}: {values[lost[0]]:.3f}, no more than noise")
    found = {name: value / figure if ratios is None else ratios[name] for name, figure in values.items()}
    name = (min if goal.at_least else max)(found, key=lambda n: found[n])
    note = f"{found[name]:.2f} x {name}"
    return _Check(holds(found[name]), f"{note} ({absent})" if absent else note, bool(missing))


def judge_all(results: Results) -> list[Outcome]:
    """Return the verdicts on all goals whose measure was run."""
    tables = {name: rows(name, rounds) for name, rounds in results.items()}
    if not any(OURS in table for table in tables.values()):
        return []
    return [
        judge(
            goal,
            tables[goal.measure],
            in_pairs(results[goal.measure], goal.figure, OURS) if least(goal.figure) else None,
        )
        for goal in GOALS
        if goal.measure in tables
    ]
