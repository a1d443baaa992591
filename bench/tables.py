"""The report in Markdown."""

from collections.abc import Iterator, Mapping, Sequence

from bench.catalogue import DIRECT, YARDSTICKS
from bench.goals import Bound, Outcome, judge_all
from bench.measures.registry import MEASURES
from bench.summary import Results, Rounds, Row, best_yardstick, in_pairs, least, number, rows


def show(value: float | str | None) -> str:
    """Return a figure with about three digits."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    size = abs(value)
    return f"{value:.3f}" if size < 1 else f"{value:.1f}" if size < 1000 else f"{value:.0f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(cells: Sequence[str]) -> Iterator[str]:
    yield _line(cells)
    yield "|" + "---|" * len(cells)


def _measure(name: str, rounds: Rounds, order: Sequence[str]) -> Iterator[str]:
    measure = MEASURES[name]
    table = rows(name, rounds)
    yield f"\n### {name}: {measure.title}\n"
    if not measure.columns:
        yield from _told(rounds, order)
        return
    columns = [*measure.columns, *(f"added_{key}" for key in measure.added if DIRECT in rounds)]
    chief = f"added_{measure.added[0]}" if name in {"lat", "ttft"} and DIRECT in rounds else columns[0]
    best = best_yardstick(table, chief, more_is_better=measure.more_is_better)
    yield from _head(["proxy", *columns, "x best of nginx, HAProxy", "rounds", "bad"])
    for peer in (p for p in order if p in rounds):
        row = table.get(peer)
        if row is None:
            yield _line([peer, *[""] * len(columns), "", "0", f"failed: {_why(rounds[peer])}"])
            continue
        value = number(row, chief)
        times = value / best if value and best and best > 0 and peer != DIRECT else None
        if times is not None and least(chief):
            ratios = in_pairs(rounds, chief, peer)
            times = max(ratios[name] for name in YARDSTICKS if name in ratios)
        ratio = "" if times is None else f"{times:.2f}"
        runs = sum("failed" not in run for run in rounds[peer])
        yield _line([peer, *(show(row.get(c)) for c in columns), ratio, str(runs), show(row.get("bad"))])
    cpu = any(least(c) for c in columns)
    shown = "CPU times: the least of all rounds; the rest: medians." if cpu else "Medians of all rounds."
    yield f"\n{shown} The ratio is of `{chief}`{', in the median of the rounds' if least(chief) else ''}."


def _why(runs: Sequence[Row]) -> str:
    return str(runs[-1].get("failed", "")).replace("|", "/").replace("\n", " ")


def _told(rounds: Rounds, order: Sequence[str]) -> Iterator[str]:
    for peer in (p for p in order if p in rounds):
        yield f"- **{peer}**"
        for key, value in rounds[peer][0].items():
            yield f"  - {key}: {value}"


def _goal(outcome: Outcome) -> str:
    goal = outcome.goal
    sign = "≥" if goal.at_least else "≤"

    def bound(b: Bound | None) -> str:
        return f"{sign} {b}" if b else ""

    must = ", ".join(map(bound, goal.must))
    verdict = f"**{outcome.verdict}**{', in doubt' if outcome.doubtful else ''}"
    return _line([goal.title, show(outcome.value), must, bound(goal.win), outcome.note, verdict])


def report(results: Results, *, order: Sequence[str], machine: Mapping[str, str], not_run: Mapping[str, str]) -> str:
    """Return the whole report."""
    lines = ["# Benchmark", "", *(f"- {key}: {value}" for key, value in machine.items())]
    outcomes = judge_all(results)
    if outcomes:
        lines += ["", "## Goals", ""]
        lines += _head(["goal", "ours", "must", "win", "found", "verdict"])
        lines += map(_goal, outcomes)
    lines += ["", "## Measures"]
    for name, rounds in results.items():
        if rounds:
            lines += _measure(name, rounds, order)
    lines += ["", "## Not run", ""]
    lines += [f"- {name}: {why}" for name, why in not_run.items()] or ["Everything asked for was run."]
    return "\n".join(lines) + "\n"
