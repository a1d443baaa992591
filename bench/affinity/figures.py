"""What a run shows: figures of its turns, medians of several runs, and the verdict on our goals."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from bench.affinity.client import Turn
from bench.catalogue import DIRECT
from bench.goals import Verdict

OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run. Shares are of 1; times in seconds; a spread is the busiest server's part over the mean."""

    cached: float
    """Of the prompt tokens of all turns but the first, what the engines found in their caches."""
    of_oracle: float
    """The same over what a perfect placement finds: the previous turn's prompt, whole."""
    moves: float
    """Turns that another server answered than the turn before."""
    first_token_p50: float
    first_token_p99: float
    light_p99: float
    """The same, of conversations that are not heavy."""
    total: float
    """From the first start to the last answer."""
    request_spread: float
    work_spread: float
    """Of prompt tokens computed."""
    computed: float
    """Prompt tokens that the engines had to compute."""
    errors: float


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the others does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _spread(parts: Sequence[float]) -> float:
    return max(parts) / (sum(parts) / len(parts)) if any(parts) else float("nan")


def measure(turns: Sequence[Turn], *, servers: int, total: float) -> Figures:
    """Read the figures off the turns of one run."""
    good = [turn for turn in turns if not turn.error]
    known = {(turn.conversation, turn.turn): turn for turn in good}
    pairs = [(before, turn) for turn in good if (before := known.get((turn.conversation, turn.turn - 1)))]
    cached = sum(turn.cached for _, turn in pairs)
    first = [turn.first_token for turn in good]
    each = [[turn for turn in good if turn.server == f"e{index}"] for index in range(servers)]
    return Figures(
        cached=cached / sum(turn.prompt for _, turn in pairs),
        of_oracle=cached / sum(before.prompt for before, _ in pairs),
        moves=sum(before.server != turn.server for before, turn in pairs),
        first_token_p50=quantile(first, 0.5),
        first_token_p99=quantile(first, 0.99),
        light_p99=quantile([turn.first_token for turn in good if not turn.heavy], 0.99),
        total=total,
        request_spread=_spread([float(len(part)) for part in each]),
        work_spread=_spread([float(sum(turn.prompt - turn.cached for turn in part)) for part in each]),
        computed=sum(turn.prompt - turn.cached for turn in good),
        errors=len(turns) - len(good),
    )


def median(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure."""
    return Figures(**{f.name: statistics.median(getattr(run, f.name) for run in runs) for f in fields(Figures)})


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of ours and its bound, a factor of direct's where it is relative; better than `win` is a win."""

    title: str
    figure: str
    bound: float
    win: float | None = None
    relative: bool = False
    at_least: bool = False


_SHARED = (
    Goal("share of the oracle's cached tokens", "of_oracle", 0.99, at_least=True),
    Goal("moves", "moves", 0),
    Goal("errors", "errors", 0),
    Goal("time to first token p99 over direct", "first_token_p99", 1.35, relative=True),
)
GOALS: Mapping[str, Sequence[Goal]] = {
    "even": (*_SHARED, Goal("total time over direct", "total", 1.10, relative=True)),
    "skew": (*_SHARED, Goal("total time over direct", "total", 1.30, 1.10, relative=True)),
}


def judge(mix: str, rows: Mapping[str, Figures]) -> list[tuple[Goal, float, Verdict]]:
    """Return the verdicts on our goals for a mix; none where ours or direct was not measured."""
    if OURS not in rows or DIRECT not in rows:
        return []
    found = []
    for goal in GOALS.get(mix, ()):
        value = getattr(rows[OURS], goal.figure)
        if goal.relative:
            value /= getattr(rows[DIRECT], goal.figure)
        good = value >= goal.bound if goal.at_least else value <= goal.bound
        won = goal.win is not None and value <= goal.win
        found.append((goal, value, Verdict.WIN if won else Verdict.PASS if good else Verdict.MISS))
    return found
