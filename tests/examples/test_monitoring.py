"""The alert rules and the dashboard ask for what a router really shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.fleet import replica, sim_host
from tests.support.markdown import ROOT, leads_somewhere
from tests.support.promql import read

from pypto_serving_router.core.balancer import Phase, Placement
from pypto_serving_router.core.slot import Cause, SlotState
from pypto_serving_router.telemetry import families
from pypto_serving_router.telemetry.metrics import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.router import Router
    from tests.support.sim import Sim

FOLDER = ROOT / "examples/monitoring"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds."""

VALUES: dict[str, set[str]] = {
    "phase": {*Phase},
    "state": {*SlotState},
    "cause": {*Cause},
    "placement": {*Placement},
    "result": {"ok", "failed"},
    "outcome": {*OUTCOMES},
}
"""What a label can be, where that is a closed list."""

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus has it)"
)


def alerts() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def panel_expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def plain(expression: str) -> str:
    """Return an expression of the dashboard as Grafana sends it."""
    return re.sub(r'"\$\w+"', '".+"', expression.replace("$__rate_interval", "5m"))


@pytest.fixture
def shown(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> dict[str, set[str]]:
    """What a router shows that has routed, launched and stopped: the labels of each name."""
    fleet = {"replicas": [replica(start_sim().url)], "hosts": [sim_host([0])]}
    router = start_router(fleet)
    router.wait_ready(2)
    assert router.request("POST", "/v1/completions", body={"prompt": "x", "max_tokens": 2}).status == 200
    assert router.request("DELETE", "/replicas/node-d0").status == 200

    labels: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(router.request("GET", "/metrics").body.decode()):
        for sample in family.samples:
            labels[sample.name] |= set(sample.labels)
    return labels


def test_every_series_asked_for_is_shown(shown: dict[str, set[str]]) -> None:
    """No rule or panel asks for a metric or a label that a router does not have (spec 6.7, 9)."""
    wrong = []
    for expression in [*panel_expressions(), *(rule["expr"] for rule in alerts())]:
        selectors, grouped = read(expression)
        assert selectors
        known = SCRAPED.union(*(shown.get(selector.name, set()) for selector in selectors))
        wrong += [f"{label} in {expression}" for label in grouped - known]
        for selector in selectors:
            if selector.name not in shown and selector.name != "up":
                wrong.append(f"{selector.name} in {expression}")
                continue
            wrong += [
                f"{selector.name}{{{label}}} in {expression}"
                for label, _, _ in selector.matchers
                if label not in shown[selector.name] | SCRAPED
            ]
    assert wrong == []


def test_every_value_asked_for_can_occur() -> None:
    """A matcher on a closed list of values names only values of that list (spec 9)."""
    wrong = []
    for expression in [*panel_expressions(), *(rule["expr"] for rule in alerts())]:
        for selector in read(expression)[0]:
            for label, operator, value in selector.matchers:
                commands = selector.name.startswith(families.HOST_COMMAND.name)
                allowed = {"ok", "error"} if label == "outcome" and commands else VALUES.get(label)
                if allowed is not None and not set(value.split("|") if "~" in operator else [value]) <= allowed:
                    wrong.append(f"{label}{operator}{value} in {expression}")
    assert wrong == []


# --- the rules -------------------------------------------------------------------------------


def test_what_an_operator_must_know_has_an_alert() -> None:
    """Replicas that fail, slots that need somebody, less affinity, a late loop, failed launches (spec 9)."""
    wanted = {
        *("ReplicaFailed", "SlotUnconfirmed", "SlotAbandoned", "NoReplicaRoutable"),
        *("AffinityFell", "LoopDelay", "LaunchesFail"),
    }
    assert wanted <= {rule["alert"] for rule in alerts()}


def test_every_alert_says_what_to_do() -> None:
    """Each names a section of the documentation that is there, and the page about watching lists it (spec 9)."""
    page = (ROOT / "docs/how-to/monitoring.md").read_text()
    for rule in alerts():
        assert rule["annotations"]["summary"]
        assert leads_somewhere(rule["annotations"]["runbook"], ROOT), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert f"`{rule['alert']}`" in page


@promtool
def test_prometheus_takes_the_configuration() -> None:
    """Prometheus' own tool finds nothing wrong with the configuration and the rules (spec 9)."""
    done = subprocess.run(
        ["promtool", "check", "config", FOLDER / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_alerts_fire_when_they_should_and_only_then() -> None:
    """Made-up histories set off the alerts that they should (spec 9)."""
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"],
        cwd=ROOT / "tests/examples",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_history_that_sets_it_off() -> None:
    """An alert without a test that fires it may never fire (spec 9)."""
    histories = (ROOT / "tests/examples/alerts_test.yml").read_text().partition("name: the router is down")[2]
    assert [rule["alert"] for rule in alerts() if not re.search(rf"\b{rule['alert']}\b", histories)] == []


# --- the dashboard ---------------------------------------------------------------------------


@promtool
def test_prometheus_takes_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    """Prometheus' own tool finds nothing wrong with the panels' expressions (spec 9)."""
    rules = [
        {"record": f"panel:{number}", "expr": plain(expression)}
        for number, expression in enumerate(panel_expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_for_the_router_that_is_chosen() -> None:
    """Every series is narrowed down to the job and the router chosen at the top (spec 9)."""
    chosen = {("job", "=~", "$job"), ("instance", "=~", "$instance")}
    for expression in panel_expressions():
        for selector in read(expression)[0]:
            assert chosen <= set(selector.matchers), expression


def test_panels_are_told_apart_and_do_not_overlap() -> None:
    """Each panel has an id, a title and a place of its own (spec 9)."""
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    for one, other in combinations((panel["gridPos"] for panel in everything), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in everything)
