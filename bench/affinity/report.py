"""The report of a comparison: tables in Markdown, and a picture of each mix."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from bench.affinity.figures import OURS, Figures, judge, median

Scale = Callable[[float], float]
Runs = Mapping[str, Sequence[Figures]]
"""The runs of each router, with one mix."""

_COLUMNS = (
    ("cached %", "cached", 100, 1),
    ("of oracle", "of_oracle", 1, 2),
    ("moves", "moves", 1, 0),
    ("first token p50 ms", "first_token_p50", 1000, 0),
    ("p99 ms", "first_token_p99", 1000, 0),
    ("light p99 ms", "light_p99", 1000, 0),
    ("total s", "total", 1, 1),
    ("requests max/mean", "request_spread", 1, 2),
    ("work max/mean", "work_spread", 1, 2),
    ("ktok computed", "computed", 0.001, 1),
    ("errors", "errors", 1, 0),
)
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 420, 64, 150, 56, 52
_LABEL = 14  # pixels that a label needs to itself


def table(runs: Runs) -> str:
    """Return medians, with the range of the total time."""
    lines = ["| router | " + " | ".join(title for title, *_ in _COLUMNS) + " |", "|---" * (len(_COLUMNS) + 1) + "|"]
    for name, each in runs.items():
        row = median(each)
        cells = [f"{getattr(row, key) * factor:.{digits}f}" for _, key, factor, digits in _COLUMNS]
        if len(each) > 1:
            low, high = min(run.total for run in each), max(run.total for run in each)
            cells[6] += f" ({low:.1f}\u2013{high:.1f})"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdicts(mix: str, runs: Runs) -> str:
    """Return what became of our goals."""
    rows = {name: median(each) for name, each in runs.items()}
    lines = [
        f"| {goal.title} | {value:.2f} | {'≥' if goal.at_least else '≤'} {goal.bound:g} | {verdict} |"
        for goal, value, verdict in judge(mix, rows)
    ]
    return "\n".join(["| goal | ours | bound | |", "|---|---|---|---|", *lines]) if lines else ""


def picture(title: str, runs: Runs) -> str:
    """Return a scatter plot as SVG: what came out of the caches, and how long it all took."""
    rows = {name: median(each) for name, each in runs.items()}
    most = 1.1 * max(row.total for row in rows.values())

    def x(share: float) -> float:
        return round(_LEFT + min(share, 1.05) / 1.05 * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(seconds: float) -> float:
        return round(_HEIGHT - _BOTTOM - seconds / most * (_HEIGHT - _TOP - _BOTTOM), 1)

    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}"'
            f' viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12" fill="#333">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
            f'<text x="12" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
            '<text x="12" y="40" fill="#666">the best place is the bottom right</text>',
            *_axes(x, y, most),
            *_dots(rows, x, y),
            "</svg>",
            "",
        ]
    )


def _axes(x: Scale, y: Scale, most: float) -> Iterator[str]:
    bottom, right = y(0), x(1.05)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        yield f'<line x1="{x(share)}" y1="{_TOP}" x2="{x(share)}" y2="{bottom}" stroke="#e5e5e5"/>'
        yield f'<text x="{x(share)}" y="{bottom + 18}" text-anchor="middle" fill="#666">{share:g}</text>'
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if most / s <= 8)
    for seconds in range(0, int(most) + 1, step):
        yield f'<line x1="{_LEFT}" y1="{y(seconds)}" x2="{right}" y2="{y(seconds)}" stroke="#e5e5e5"/>'
        yield f'<text x="{_LEFT - 8}" y="{y(seconds) + 4}" text-anchor="end" fill="#666">{seconds} s</text>'
    yield (
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 12}" text-anchor="middle" fill="#666">'
        "cached tokens, as a share of what a perfect placement finds; upwards: total time</text>"
    )


def _dots(rows: Mapping[str, Figures], x: Scale, y: Scale) -> Iterator[str]:
    taken: list[tuple[float, float]] = []
    for name, row in sorted(rows.items(), key=lambda item: -item[1].total):
        at, height = x(row.of_oracle), y(row.total)
        label = height + 4
        while any(abs(label - other) < _LABEL and abs(at - place) < 140 for place, other in taken):
            label += 1
        taken.append((at, label))
        mine = name.startswith(OURS)
        colour, weight = ("#c2410c", ' font-weight="bold"') if mine else ("#4b6a88", "")
        yield f'<circle cx="{at}" cy="{height}" r="5" fill="{colour}"/>'
        yield f'<text x="{at + 10}" y="{label}"{weight}>{escape(name)}</text>'


def write_pictures(folder: Path, results: Mapping[str, Runs], titles: Mapping[str, str]) -> None:
    """Draw each mix that has two routers or more."""
    for mix, runs in results.items():
        if len(runs) > 1:
            (folder / f"affinity-{mix}.svg").write_text(picture(titles[mix], runs))
