"""The benchmark that users can run: its judgement, its tables, and a short run of the real thing."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from bench.catalogue import ROUTER, NotFound, Programs, source_digest, version
from bench.goals import GOALS, Bound, Goal, Verdict, judge, judge_all
from bench.growth import addresses, buckets, quantile_bounds
from bench.measures.registry import MEASURES
from bench.measures.saturation import parse_wrk
from bench.plots import Dot, draw, write_plots
from bench.script import Script, find
from bench.startup import imports
from bench.summary import Results, Rounds, Row, in_pairs, rows
from bench.tables import report, show
from bench.tally import spread
from hypothesis import given
from hypothesis import strategies as st

from bench import catalogue
from pypto_serving_router import __version__

ROOT = Path(__file__).resolve().parents[2]
CPU = Goal(
    "cpu",
    "req",
    "cpu_us",
    (Bound(1.25, ("nginx", "haproxy")), Bound(0.5, ("vllm-router",))),
    Bound(1.0, ("nginx", "haproxy")),
)


def command(*words: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)


def table(**cpu: float) -> dict[str, Row]:
    return {name.replace("_", "-"): {"cpu_us": value, "bad": 0} for name, value in cpu.items()}


@pytest.mark.parametrize(
    ("ours", "verdict"), [(20.0, Verdict.WIN), (20.1, Verdict.PASS), (25.0, Verdict.PASS), (25.1, Verdict.MISS)]
)
def test_verdict_by_the_better_yardstick(ours: float, verdict: Verdict) -> None:
    """A figure passes within the bound and wins within the win bound of the better of two (spec 8)."""
    assert judge(CPU, table(ours=ours, nginx=30.0, haproxy=20.0, vllm_router=100.0)).verdict is verdict


def test_every_bound_must_hold() -> None:
    """A win over nginx is a miss where another proxy's bound does not hold (spec 8)."""
    outcome = judge(CPU, table(ours=10.0, nginx=30.0, haproxy=20.0, vllm_router=19.0))

    assert outcome.verdict is Verdict.MISS
    assert "0.53 x vllm-router" in outcome.note


def test_missing_peers_are_said() -> None:
    """A verdict on what was measured says what was not; without anything to compare there is none (spec 8)."""
    part = judge(CPU, table(ours=10.0, nginx=30.0))
    none = judge(CPU, table(ours=10.0))

    assert (part.verdict, part.doubtful) == (Verdict.WIN, True)
    assert "vllm-router not measured" in part.note
    assert none.verdict is Verdict.UNKNOWN
    assert judge(CPU, table(nginx=10.0)).verdict is Verdict.UNKNOWN


def test_bad_answers_void_a_figure() -> None:
    """However fast, wrong answers are a miss (spec 8)."""
    figures = {**table(nginx=30.0, haproxy=20.0, vllm_router=100.0), "ours": {"cpu_us": 1.0, "bad": 1}}

    assert judge(CPU, figures).verdict is Verdict.MISS


def test_a_figure_told_in_words_is_a_miss() -> None:
    """A connection that is never closed has no number of milliseconds, and fails its bound (spec 4.5)."""
    goal = next(g for g in GOALS if g.figure == "quiet_max")

    assert judge(goal, {"ours": {"quiet_max": "not in 3 s", "bad": 0}}).verdict is Verdict.MISS
    assert judge(goal, {"ours": {"quiet_max": 49.0, "bad": 0}}).verdict is Verdict.PASS


def test_more_requests_are_better() -> None:
    """Saturation is judged from below, and says when a core was not full (spec 8)."""
    goal = next(g for g in GOALS if g.measure == "sat")
    full = {"ours": {"rps": 80.0, "busy_pct": 99, "bad": 0}, "nginx": {"rps": 100.0, "busy_pct": 99, "bad": 0}}
    slack = {**full, "nginx": {"rps": 79.0, "busy_pct": 40, "bad": 0}}

    assert judge(goal, full).verdict is Verdict.PASS
    assert judge(goal, slack).verdict is Verdict.WIN
    assert "core not full: nginx 40 %" in judge(goal, slack).note
    assert (judge(goal, full).doubtful, judge(goal, slack).doubtful) == (False, True)
    assert judge(goal, {**full, "ours": {"rps": 79.0, "busy_pct": 99, "bad": 0}}).verdict is Verdict.MISS


def test_an_added_latency_of_nothing_is_no_yardstick() -> None:
    """A ratio to noise is not judged (spec 8)."""
    goal = next(g for g in GOALS if g.figure == "added_lat_p50")
    figures = {"ours": {"added_lat_p50": 0.1, "bad": 0}, "nginx": {"added_lat_p50": -0.01, "bad": 0}}

    assert judge(goal, figures).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("others", "doubtful"), [(10.0, False), (150.0, True)])
def test_latencies_on_a_busy_machine_are_doubtful(others: float, doubtful: bool) -> None:
    """A latency is judged, and doubted where something else had the cores (spec 8)."""
    goal = next(g for g in GOALS if g.figure == "added_lat_p99")
    figures = {name: {"added_lat_p99": 1.0, "others_pct": others, "bad": 0} for name in ("ours", "nginx")}

    outcome = judge(goal, figures)

    assert (outcome.verdict, outcome.doubtful) == (Verdict.WIN, doubtful)


def test_goals_name_figures_that_exist() -> None:
    """Each goal's measure prints its figure (spec 8)."""
    for goal in GOALS:
        measure = MEASURES[goal.measure]
        assert goal.figure.removeprefix("added_") in measure.columns + measure.added


def test_rows_take_the_least_cpu_and_the_median_of_the_rest() -> None:
    """Of several rounds CPU counts by its least, latency by its median; a failed round counts nothing (spec 8)."""
    runs = [{"cpu_us": 3.0, "lat_p50": 1.0, "bad": 0}, {"cpu_us": 2.0, "lat_p50": 5.0, "bad": 2}]

    assert rows("req", {"ours": [*runs, {"failed": "x"}, {"cpu_us": 9.0, "lat_p50": 2.0, "bad": 0}]}) == {
        "ours": {"cpu_us": 2.0, "lat_p50": 2.0, "bad": 2}
    }
    assert rows("req", {"ours": [{"failed": "x"}]}) == {}


def test_ratios_of_cpu_are_taken_round_by_round() -> None:
    """A round that was slow for all proxies says as much as another, and one lucky round decides nothing (spec 8)."""
    rounds: Rounds = {
        "ours": [{"cpu_us": 21.0, "bad": 0}, {"cpu_us": 42.0, "bad": 0}, {"cpu_us": 20.0, "bad": 0}],
        "nginx": [{"cpu_us": 20.0, "bad": 0}, {"cpu_us": 40.0, "bad": 0}, {"cpu_us": 10.0, "bad": 0}],
        "haproxy": [{"cpu_us": 30.0, "bad": 0}, {"failed": "x"}, {"cpu_us": 30.0, "bad": 0}],
    }

    assert in_pairs(rounds, "cpu_us", "ours") == {
        "ours": 1.0,
        "nginx": pytest.approx(1.05),
        "haproxy": pytest.approx((21 / 30 + 20 / 30) / 2),
    }
    (outcome,) = judge_all({"req": rounds})
    assert outcome.verdict is Verdict.PASS
    assert outcome.value == 20.0
    assert outcome.note.startswith("1.05 x nginx;")
    assert judge_all({"req": {"ours": rounds["ours"]}})[0].verdict is Verdict.UNKNOWN


def test_added_latency_is_taken_round_by_round() -> None:
    """What a proxy adds is told against the direct path of the same round (spec 8)."""
    rounds = {
        "direct": [{"lat_p50": 1.0, "lat_p99": 2.0}, {"lat_p50": 5.0, "lat_p99": 9.0}],
        "ours": [{"lat_p50": 1.5, "lat_p99": 2.5}, {"lat_p50": 5.7, "lat_p99": 9.7}],
    }

    assert rows("lat", rounds)["ours"]["added_lat_p50"] == pytest.approx(0.6)


@given(st.lists(st.integers(1, 10**10), min_size=1))
def test_percentiles_are_of_the_sample(values: list[int]) -> None:
    """Percentiles are in order and are values that were measured (spec 8)."""
    found = spread(values)

    assert found.p50 <= found.p90 <= found.p99 <= found.max == max(values) / 1e6
    assert {found.p50, found.p90, found.p99} <= {value / 1e6 for value in values}


@given(
    st.builds(
        Script,
        stream=st.integers(0, 1),
        events=st.integers(0, 10**6),
        interval=st.integers(-1, 1000),
        hold=st.integers(0, 1),
        die=st.integers(-1, 9),
    ),
    st.integers(0, 200),
)
def test_scripts_survive_a_message(script: Script, cut: int) -> None:
    """The stub does what a request asks for, in however many pieces its body comes (spec 8)."""
    body = json.dumps({"messages": [{"role": "system", "content": script.text()}]}).encode()

    assert find([piece for piece in (body[:cut], body[cut:]) if piece]) == script


def test_wrk_is_read() -> None:
    """wrk's units and errors become figures (spec 8)."""
    text = """Running 2s test
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.90ms  100.00us  7.60ms   90.00%
  Latency Distribution
     50%  900.00us
     99%    1.50s
  47418 requests in 2.00s, 30.00MB read
  Socket errors: connect 0, read 3, write 0, timeout 1
  Non-2xx or 3xx responses: 5
Requests/sec:  23709.10
"""
    figures = parse_wrk(text)

    assert (figures["requests"], figures["rps"], figures["bad"]) == (47418.0, 23709.1, 9.0)
    assert figures["lat_p50"] == pytest.approx(0.9)
    assert figures["lat_p99"] == pytest.approx(1500.0)
    with pytest.raises(ValueError, match="nothing of use"):
        parse_wrk("unable to connect")


def test_loop_delay_is_read_between_two_looks() -> None:
    """The quantile is of what was counted in between, within the bounds of its bucket (spec 8)."""
    text = "\n".join(f'x_loop_delay_seconds_bucket{{le="{bound}"}} %d' for bound in ("0.001", "0.01", "+Inf"))
    before, after = buckets(text % (50, 50, 90)), buckets(text % (60, 149, 190))

    assert quantile_bounds(before, after, 0.99) == (1.0, 10.0)
    assert quantile_bounds(before, after, 0.5) == (1.0, 10.0)
    assert quantile_bounds(before, after, 0.995) == (10.0, float("inf"))
    assert quantile_bounds(after, after, 0.99) is None
    assert quantile_bounds(buckets(""), buckets(""), 0.99) is None


def test_replica_addresses_differ() -> None:
    """A thousand replicas have a thousand addresses (spec 8)."""
    assert len(set(addresses(1000))) == 1000


def test_import_times_are_read() -> None:
    """The interpreter's table of imports is read with names free of indentation (spec 8)."""
    text = "import time: self [us] | cumulative | imported package\nimport time:   156 |  203 |   os.path\nother\n"

    assert [(m.module, m.own, m.whole) for m in imports(text)] == [("os.path", 156, 203)]


def test_plots_are_pictures(tmp_path: Path) -> None:
    """Every plot is well-formed, and drawn only where there is something to compare (spec 8)."""
    picture = ET.fromstring(draw("a < b", "µs", [Dot("ours", 5.0, 4.0, 6.0), Dot("nginx", 500.0, 500.0, 500.0)]))
    one: Results = {"req": {"ours": [{"cpu_us": 1.0}]}, "faults": {"ours": [{"body": "identical"}]}}
    two: Results = {"req": {"ours": [{"cpu_us": 1.0}], "nginx": [{"cpu_us": 2.0}]}}

    assert len(picture.findall("{*}circle")) == 2
    assert write_plots(tmp_path, one, ["ours"]) == []
    assert write_plots(tmp_path, two, ["ours", "nginx"]) == [tmp_path / "req.svg"]


def test_figures_are_short() -> None:
    """Figures are shown with about three digits (spec 8)."""
    assert [show(v) for v in (0, 2.0, 0.1234, 12.345, 12345.6, "told", None)] == [
        "0",
        "2",
        "0.123",
        "12.3",
        "12346",
        "told",
        "",
    ]


def test_the_report_says_what_failed() -> None:
    """A peer that broke has its reason in the table, and what was not run has a place of its own (spec 8)."""
    results: Results = {"req": {"ours": [{"cpu_us": 1.0, "bad": 0}], "smg": [{"failed": "it|broke"}]}}
    text = report(results, order=["ours", "smg"], machine={"system": "x"}, not_run={"nginx": "no program nginx"})

    assert "failed: it/broke" in text
    assert "- nginx: no program nginx" in text


def test_a_program_that_is_not_there() -> None:
    """A chosen program that is missing is an error that names it, not a search elsewhere (spec 8)."""
    with pytest.raises(NotFound, match="no program nginx"):
        Programs({"nginx": "/nonexistent/nginx"}).find("nginx")


def test_our_router_is_the_installed_one_while_it_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled one, as users have it, is measured; one of other sources is not taken for it (spec 8)."""
    monkeypatch.setattr(catalogue, "ENVIRONMENTS", tmp_path)
    checkout = str(Path(sys.executable).parent / ROUTER)
    installed = tmp_path / "ours/bin" / ROUTER
    installed.parent.mkdir(parents=True)
    installed.touch(mode=0o755)

    assert Programs({}).find(ROUTER) == checkout
    ready = tmp_path / "ours/.ready"
    ready.write_text(source_digest())
    assert Programs({}).find(ROUTER) == str(installed)
    assert Programs({}).find(f"{ROUTER}-plain") == checkout
    ready.write_text("of other sources")
    assert Programs({}).find(ROUTER) == checkout
    assert version(checkout) in {f"{__version__} (compiled)", f"{__version__} (not compiled)"}


def test_short_run(tmp_path: Path) -> None:
    """A comparison of the router with the direct path runs, and says what it could not run (spec 8)."""
    done = command(
        "bench.run",
        *("--peers", "direct,ours,nginx"),
        *("--bin", "nginx=/nonexistent/nginx"),
        *("--tests", "req,ssebatch,lat,leave,slow,idle"),
        *("--rounds", "1", "--seconds", "0.3", "--streams", "20"),
        *("--out", tmp_path),
    )

    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "results.json").read_text())
    assert list(document["not_run"]) == ["nginx"], done.stderr
    results = document["results"]
    assert {name: sorted(of) for name, of in results.items()} == {
        "req": ["direct", "ours"],
        "ssebatch": ["direct", "ours"],
        "lat": ["direct", "ours"],
        "leave": ["ours"],
        "slow": ["ours"],
        "idle": ["ours"],
    }
    for of in results.values():
        assert [run["bad"] for runs in of.values() for run in runs] == [0] * len(of), done.stderr
    assert results["req"]["ours"][0]["cpu_us"] > 0
    assert results["idle"]["ours"][0]["closed"] == 20
    assert done.stdout == (tmp_path / "report.md").read_text() + "\n"
    assert "| slow reader, MiB a stream |" in done.stdout
    again = command("bench.run", "--from", tmp_path / "results.json")
    assert again.stdout == done.stdout


def test_wrong_names_are_refused() -> None:
    """An unknown peer or test ends the run with the known ones (spec 8)."""
    done = command("bench.run", "--peers", "ours", "--tests", "speed")

    assert done.returncode == 1
    assert "no test 'speed'; there are big" in done.stderr


def test_short_startup() -> None:
    """The cost of a start is told, with its imports (spec 8)."""
    done = command("bench.startup", "--rounds", "1")

    assert "| CPU, s |" in done.stdout, done.stderr
    assert "pypto_serving_router" in done.stdout
    assert "s of CPU to start: " in done.stdout


def test_short_growth() -> None:
    """A small fleet is watched while its streams run, and the loop's delay is judged (spec 8)."""
    done = command("bench.growth", "--replicas", "20", "--streams", "40", "--events", "200", "--seconds", "1")

    assert "| streams open | 40 |" in done.stdout, done.stderr
    assert "wrong:" not in done.stdout
    assert "by the router's own count" in done.stdout
