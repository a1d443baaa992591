"""The affinity benchmark: what it replays, how it reads the turns, its verdicts, and a short run."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench.affinity.client import Turn, _Stream
from bench.affinity.figures import Figures, judge, measure, median
from bench.affinity.pacer import timetable
from bench.affinity.report import picture, table, verdicts
from bench.affinity.routers import ROUTERS, Routing
from bench.affinity.workload import MIXES, draw
from bench.goals import Verdict
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
GOOD = Figures(
    cached=0.8,
    of_oracle=1.01,
    moves=0,
    first_token_p50=0.5,
    first_token_p99=1.0,
    light_p99=1.0,
    total=10.0,
    request_spread=1.0,
    work_spread=1.0,
    computed=1000,
    errors=0,
)


def turn(conversation: int, number: int, server: str, prompt: int, cached: int, **more: float) -> Turn:
    """An answered turn."""
    facts = {"heavy": False, "sent": 0.0, "first_token": 0.1, "total": 0.2, **more}
    return Turn(conversation=conversation, turn=number, server=server, prompt=prompt, cached=cached, **facts)  # type: ignore[arg-type] # a table of numbers


@settings(max_examples=25)
@given(st.sampled_from(sorted(MIXES)), st.integers(1, 12), st.integers(1, 4), st.integers(0, 9))
def test_every_router_gets_the_same_conversations(mix: str, count: int, servers: int, seed: int) -> None:
    """What is said, when, and the best place follow from the seed; no server is home to more than its part."""
    first, again = (
        draw(MIXES[mix], seed=str(seed), count=count, servers=servers, words_per_token=0.9) for _ in range(2)
    )
    homes = [sum(one.home == index for one in first) for index in range(servers)]

    assert first == again
    assert max(homes) <= -(-count // servers)
    assert len({one.session for one in first}) == len({one.system for one in first}) == count
    assert sum(one.heavy for one in first) == round(count * MIXES[mix].heavy_share)


def test_figures_of_a_run() -> None:
    """Cached tokens are counted over later turns and held against the turn before; a failed turn is an error only."""
    turns = [
        turn(0, 1, "e0", 100, 0, first_token=0.5),
        turn(0, 2, "e0", 200, 100),
        turn(0, 3, "e1", 300, 0, first_token=0.9),
        turn(1, 1, "e1", 100, 0),
        Turn(conversation=1, heavy=False, turn=2, sent=0.0, error="cut"),
        turn(1, 2, "e1", 200, 90),
    ]
    figures = measure(turns, servers=2, total=9.0)

    assert figures.cached == pytest.approx(190 / 700)
    assert figures.of_oracle == pytest.approx(190 / 400)
    assert (figures.moves, figures.errors, figures.total) == (1, 1, 9.0)
    assert (figures.first_token_p50, figures.first_token_p99) == (0.1, 0.9)
    assert figures.computed == 100 + 100 + 300 + 100 + 110
    assert figures.request_spread == pytest.approx(3 / 2.5)
    assert figures.work_spread == pytest.approx(510 / 355)


def test_median_is_by_figure() -> None:
    """One bad run of three changes no figure much."""
    runs = [GOOD, replace(GOOD, total=99.0), replace(GOOD, total=11.0, moves=3)]

    assert (median(runs).total, median(runs).moves) == (11.0, 0)


@pytest.mark.parametrize(
    ("figure", "value", "verdict"),
    [
        ("total", 11.0, Verdict.WIN),
        ("total", 13.0, Verdict.PASS),
        ("total", 13.1, Verdict.MISS),
        ("moves", 1, Verdict.MISS),
        ("of_oracle", 0.98, Verdict.MISS),
        ("first_token_p99", 1.36, Verdict.MISS),
        ("errors", 1, Verdict.MISS),
    ],
)
def test_verdicts(figure: str, value: float, verdict: Verdict) -> None:
    """Each goal is judged by ours, over direct's where it is relative."""
    rows = {"direct": GOOD, "ours": replace(GOOD, **{figure: value})}
    found = {goal.figure: verdict for goal, _, verdict in judge("skew", rows)}

    assert found.pop(figure) is verdict
    assert set(found.values()) <= {Verdict.WIN, Verdict.PASS}
    assert judge("skew", {"ours": GOOD}) == []


def test_report_and_picture() -> None:
    """Every router has its row and its dot, and ours stands out; the picture is well-formed."""
    runs = {"direct": [GOOD], "ours": [GOOD, GOOD], "<odd>": [replace(GOOD, of_oracle=0.3, total=30.0)]}
    drawn = ET.fromstring(picture("even: <title>", runs))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]

    assert [line.split(" | ")[0] for line in table(runs).splitlines()[2:]] == ["| direct", "| ours", "| <odd>"]
    assert {"direct", "ours", "<odd>", "even: <title>"} <= set(texts)
    assert "PASS" in verdicts("even", runs)


def test_a_stream_is_read_line_by_line() -> None:
    """Text, first token, server and usage come from the events; without the end it is not whole."""
    stream = _Stream()
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    for event in (
        {"choices": [{"delta": {"role": "assistant", "content": None}}], "model": "e1"},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"content": "b"}}]},
        {"choices": [], "usage": usage},
    ):
        stream.take(b"data: " + json.dumps(event).encode(), 5.0 + len(stream.text))
    assert not stream.done
    stream.take(b"data: [DONE]", 9.0)

    assert (stream.text, stream.first_token, stream.server) == ("ab", 5.0, "e1")
    assert (stream.prompt, stream.cached, stream.done) == (9, 4, True)


def test_engines_take_turns() -> None:
    """Each runs for its share of a period, and they do not all run at once."""
    events = timetable(0.5, [10, 20])

    assert len(events) == 4
    assert [pid for _, pid, _ in events] in ([10, 20, 10, 20], [20, 10, 20, 10], [10, 20, 20, 10], [20, 10, 10, 20])


def test_every_command_can_be_filled_in(tmp_path: Path) -> None:
    """No placeholder is left in a command, and each file that it names was written."""
    programs = SimpleNamespace(find=lambda name: f"/bin/{name}")
    for router in ROUTERS.values():
        routing = Routing(router, programs, [8001, 8002], "m", tmp_path)  # type: ignore[arg-type] # finds everything
        words = routing._argv
        assert not [word for word in words if "{" in word]
        files = [Path(word) for word in words if word.endswith((".json", ".conf"))]
        assert all(file.is_file() and "8002" in file.read_text() for file in files)
        assert routing.port_for(1) == (routing.port if words else 8002)


@pytest.mark.slow
def test_short_run(tmp_path: Path) -> None:
    """Affinity keeps what simulated caches hold, and without it they lose it; the folder has figures and picture."""
    argv = [
        sys.executable,
        "-m",
        "bench.affinity",
        "--sim",
        "--servers",
        "2",
        "--conversations",
        "4",
        "--mixes",
        "even",
    ]
    argv += ["--routers", "ours,ours-off", "--repeat", "1", "--prefill-rate", "40000", "--out", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())["results"]["even"]
    ours, off = Figures(**results["ours"][0]), Figures(**results["ours-off"][0])

    assert ours.of_oracle > 0.95
    assert (ours.moves, ours.errors, off.errors) == (0, 0, 0)
    assert off.moves > 0
    assert off.cached < ours.cached
    assert ET.parse(tmp_path / "affinity-even.svg").getroot().tag.endswith("svg")
    assert "| ours-off |" in done.stdout
