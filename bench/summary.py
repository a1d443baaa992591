"""From the figures of all rounds to one row for each proxy."""

import statistics
from collections.abc import Mapping, Sequence

from bench.catalogue import DIRECT, YARDSTICKS
from bench.measures.context import Figures
from bench.measures.registry import MEASURES

Row = Mapping[str, float | str]
"""Figures as they are read."""
Rounds = Mapping[str, Sequence[Row]]
"""The figures of a measure: of each proxy, round by round."""
Results = Mapping[str, Rounds]
"""By measure."""


def least(name: str) -> bool:
    """Return whether the least of all rounds stands for a figure, rather than the median.

    What disturbs a CPU time only ever adds to it.
    """
    return name.endswith("_us")


def rows(measure: str, rounds: Rounds) -> dict[str, Figures]:
    """Return one row for each proxy that got through every round or some."""
    found: dict[str, Figures] = {}
    for name, runs in rounds.items():
        whole = [_with_added(measure, run, i, rounds) for i, run in enumerate(runs) if "failed" not in run]
        if whole:
            found[name] = {key: _one(key, [run[key] for run in whole if key in run]) for key in _keys(whole)}
    return found


def _keys(runs: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in run))


def _one(key: str, values: Sequence[float | str]) -> float | str:
    numbers = [value for value in values if not isinstance(value, str)]
    words = [value for value in values if isinstance(value, str)]
    if words:
        return words[0]  # a figure that could not be had even once is not averaged away
    if key == "bad":
        return max(numbers)
    return min(numbers) if least(key) else statistics.median(numbers)


def _with_added(measure: str, run: Row, number: int, rounds: Rounds) -> Figures:
    """Return the run with `added_...`: its figures less those of the direct path in the same round."""
    direct = rounds.get(DIRECT, ())
    added: Figures = {}
    if number < len(direct):
        for key in MEASURES[measure].added:
            mine, base = run.get(key), direct[number].get(key)
            if isinstance(mine, float | int) and isinstance(base, float | int):
                added[f"added_{key}"] = mine - base
    return {**run, **added}


def in_pairs(rounds: Rounds, key: str, chief: str) -> dict[str, float]:
    """Return how many times each proxy's figure `chief`'s is: the median over the rounds that have both.

    Neighbours in a round had the same machine; the least of each one's rounds may come from different hours of it.
    """
    found: dict[str, float] = {}
    for name, runs in rounds.items():
        each = [
            mine / theirs
            for run, its in zip(rounds.get(chief, ()), runs, strict=False)
            if (mine := number(run, key)) is not None and (theirs := number(its, key))
        ]
        if each:
            found[name] = statistics.median(each)
    return found


def number(row: Row | None, key: str) -> float | None:
    """Return a figure of a row, None where there is none or it is told in words."""
    value = (row or {}).get(key)
    return float(value) if isinstance(value, float | int) else None


def best_yardstick(table: Mapping[str, Row], key: str, *, more_is_better: bool = False) -> float | None:
    """Return the better figure of nginx's and HAProxy's."""
    values = [value for name in YARDSTICKS if (value := number(table.get(name), key)) is not None]
    if not values:
        return None
    return max(values) if more_is_better else min(values)
