"""The figures as pictures: one dot plot for each measure, drawn as SVG by hand.

Dots on a logarithmic axis, not bars: the slowest proxies here take a hundred times what the fastest do, and the
length of a bar says nothing on such an axis.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from bench.catalogue import DIRECT, OURS
from bench.measures.registry import MEASURES
from bench.summary import Results, Rounds, number, rows
from bench.tables import show

_WIDTH = 720
_LEFT = 130
_RIGHT = 90
_TOP = 56
_ROW = 26
_UNITS: Mapping[str, str] = {
    "cpu_us": "µs of CPU",
    "rps": "requests per second",
    "rss_kib_stream": "KiB",
    "grown_mib_stream": "MiB",
}


@dataclass(frozen=True, slots=True)
class Dot:
    """One proxy's figure and the range of its rounds."""

    name: str
    value: float
    low: float
    high: float


def dots(measure: str, rounds: Rounds, order: Sequence[str]) -> list[Dot]:
    """Return what can be drawn: positive figures of the measure's chief column, the best first."""
    key = MEASURES[measure].columns[0]
    table = rows(measure, rounds)
    found = []
    for name in order:
        value = number(table.get(name), key)
        if value is None or value <= 0 or name == DIRECT:
            continue
        each = [v for run in rounds[name] if (v := number(run, key)) is not None and v > 0]
        found.append(Dot(name, value, min(each), max(each)))
    return sorted(found, key=lambda dot: dot.value, reverse=MEASURES[measure].more_is_better)


def _ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [t for power in powers for step in (1, 2, 5) if low <= (t := step * 10.0**power) <= high]


def draw(title: str, unit: str, found: Sequence[Dot]) -> str:
    """Return the picture of some dots."""
    low = min(dot.low for dot in found) / 1.15
    high = max(dot.high for dot in found) * 1.15
    height = _TOP + _ROW * len(found) + 40

    def x(value: float) -> float:
        share = math.log(value / low) / math.log(high / low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
        f'<text x="12" y="40" fill="#666">{escape(unit)}, logarithmic; the line spans all rounds</text>',
    ]
    bottom = _TOP + _ROW * len(found)
    for tick in _ticks(low, high):
        parts.append(f'<line x1="{x(tick)}" y1="{_TOP}" x2="{x(tick)}" y2="{bottom}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{x(tick)}" y="{bottom + 18}" text-anchor="middle" fill="#666">{show(tick)}</text>')
    for row, dot in enumerate(found):
        y = _TOP + _ROW * row + _ROW // 2
        colour = "#c2410c" if dot.name == OURS else "#4b6a88"
        weight = ' font-weight="bold"' if dot.name == OURS else ""
        parts += [
            f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end"{weight}>{escape(dot.name)}</text>',
            f'<line x1="{x(dot.low)}" y1="{y}" x2="{x(dot.high)}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
            f'<circle cx="{x(dot.value)}" cy="{y}" r="5" fill="{colour}"/>',
            f'<text x="{x(dot.high) + 10}" y="{y + 4}"{weight}>{show(dot.value)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def write_plots(folder: Path, results: Results, order: Sequence[str]) -> list[Path]:
    """Draw every measure that has figures of two proxies or more; return the files."""
    written = []
    for name, rounds in results.items():
        measure = MEASURES[name]
        found = dots(name, rounds, order) if measure.columns else []
        if len(found) < 2:
            continue
        path = folder / f"{name}.svg"
        path.write_text(draw(measure.title, _UNITS.get(measure.columns[0], "ms"), found))
        written.append(path)
    return written
