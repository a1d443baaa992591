"""Names in the operators' pages are names that the router has."""

from __future__ import annotations

import re

import msgspec
import pytest
from tests.support.markdown import ROOT

from pypto_serving_router.config.model import Settings
from pypto_serving_router.core.slot import Cause, SlotState
from pypto_serving_router.telemetry.families import FAMILIES
from pypto_serving_router.telemetry.metrics import OUTCOMES

DOCS = ROOT / "docs"
SOURCE = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
PAGES = [
    *("how-to/launching.md", "how-to/timeouts.md", "how-to/monitoring.md", "how-to/troubleshooting.md"),
    *("how-to/service.md", "how-to/container.md", "explanation/failure-model.md", "tutorial.md"),
]
OPTIONS = {setting.name for setting in msgspec.structs.fields(Settings)} | {"check", "print_schema"}
OTHERS = {"tp", "dp", "ep", "init", "network", "stop_timeout"}
"""Options of engines and container engines that the pages speak of."""

SERIES = {
    family.name + suffix
    for family in FAMILIES
    for suffix in {"histogram": ("", "_bucket", "_count", "_sum"), "summary": ("", "_count", "_sum")}.get(
        family.kind, ("",)
    )
}


def text(page: str) -> str:
    return (DOCS / page).read_text()


def column(page: str, head: str, number: int = 0) -> list[str]:
    """Return what stands in code marks in one column of the table with that head."""
    table = text(page).partition(head)[2].partition("\n\n")[0]
    cells = [line.split("|")[number + 1] for line in table.splitlines()[1:] if line.startswith("| `") or number]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("page", PAGES)
def test_names_are_those_of_the_router(page: str) -> None:
    """Options, variables, metrics, causes, states and outcomes are spelled as the router has them (spec 1.2, 9)."""
    words = text(page)
    options = {name.replace("-", "_") for name in re.findall(r"`--([a-z][a-z-]+)", words)}
    variables = {name.lower() for name in re.findall(r"PYPTO_ROUTER_([A-Z_]+)", words)}

    assert options <= OPTIONS | OTHERS
    assert variables <= OPTIONS
    assert set(re.findall(r"pypto_router_[a-z_]+", words)) <= SERIES
    assert set(re.findall(r"cause=\"?([a-z-]+)", words)) <= {*Cause}
    assert set(re.findall(r"(?:to|from)=([a-z]+)", words)) <= {*SlotState}
    assert set(re.findall(r"outcome `([a-z_]+)`", words)) <= {*OUTCOMES}


def test_every_reason_for_an_unconfirmed_slot_is_explained() -> None:
    """An operator finds each reason with what to do about it, and none that does not exist (spec 6.2)."""
    reasons = [Cause.STOP_UNCONFIRMED, Cause.UNREACHABLE_AT_STARTUP, Cause.ADDRESS_IN_USE, Cause.UNDECLARED]
    explained = column("how-to/troubleshooting.md", "| `reason` | What happened | What to do |")

    assert explained == [reason.value for reason in reasons]


def test_the_events_that_are_explained_are_logged() -> None:
    """What the page about watching says of the log is what the router writes (spec 9)."""
    events = column("how-to/monitoring.md", "| Event | Says |")

    assert "slot changed" in events
    assert [event for event in events if f'"{event}"' not in SOURCE] == []


def test_the_codes_that_are_explained_are_answered() -> None:
    """The codes of errors are those that clients get (spec 4.7)."""
    codes = column("how-to/troubleshooting.md", "| Answer | `code` | Means |", 1)

    assert "upstream_unreachable" in codes
    assert [code for code in codes if f'"{code}"' not in SOURCE] == []
