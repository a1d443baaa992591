"""The soak: a few seconds of it, and that it would notice what it looks for."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from soak.ledger import Latencies, Ledger
from soak.traffic import Traffic, Wrong
from soak.wire import Cut
from tests.support.upstream import then_close

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.upstream import RawUpstream, Script


@pytest.mark.slow
def test_a_few_seconds_of_it(tmp_path: Path) -> None:
    """No answer is lost or mixed up, and nothing is left over, while replicas die and return (spec 4.5, 4.6, 5.4)."""
    options = ["--seconds", "6", "--rate", "25", "--calm", "2", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "soak", *options],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "findings.txt").exists()
    assert "| Findings | 0 |" in (tmp_path / "report.md").read_text()
    assert len((tmp_path / "samples.csv").read_text().splitlines()) > 2


async def ask(traffic: Traffic, kind: str) -> str:
    """Send one request, and let the connection go."""
    try:
        return await traffic.kinds[kind][1]()
    finally:
        traffic.close()
        for _ in range(3):  # turns of the loop in which a closed transport goes
            await asyncio.sleep(0)


def answer(content: str) -> bytes:
    """Return an answer with this text, to whatever was asked."""
    body = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
    head = b"HTTP/1.1 200 OK\r\nX-Session-Id: s\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + body


@pytest.mark.parametrize(
    ("script", "notices"),
    [
        (answer("somebody else's answer"), Wrong),
        (answer("").replace(b"X-Session-Id", b"X-Other-Id"), Wrong),
        (then_close(answer("cut")[:-5]), Cut),
        (then_close(b""), Cut),
        (b"HTTP/1.1 418 Odd\r\nContent-Length: 0\r\n\r\n", Wrong),
    ],
    ids=["mixed up", "without an id", "cut", "nothing", "another status"],
)
def test_it_notices(
    start_upstream: Callable[..., RawUpstream], tmp_path: Path, script: Script, notices: type[Exception]
) -> None:
    """An answer that is not to its request, or not whole, does not pass for one that is."""
    port = start_upstream(script).port
    traffic = Traffic(port, Ledger(tmp_path / "findings"), 1, lambda _: False)

    with pytest.raises(notices):
        asyncio.run(ask(traffic, "short"))


def test_a_broken_answer_that_looks_whole_is_noticed(
    start_upstream: Callable[..., RawUpstream], tmp_path: Path
) -> None:
    """Where the replica was told to break off, an answer that comes to an end is a fault of the router's."""
    whole = b"HTTP/1.1 200 OK\r\nX-Session-Id: s\r\nContent-Length: 2\r\n\r\nok"
    traffic = Traffic(start_upstream(whole).port, Ledger(tmp_path / "findings"), 1, lambda _: False)

    with pytest.raises(Wrong, match="looks whole"):
        asyncio.run(ask(traffic, "broken replica"))


def test_findings_are_written_down_at_once(tmp_path: Path) -> None:
    """What was found is in the file while the run goes on."""
    ledger = Ledger(tmp_path / "findings")
    ledger.count("short", "complete")
    ledger.finding("mixed up")

    assert (ledger.requests, ledger.findings) == (1, 1)
    assert (tmp_path / "findings").read_text() == "mixed up\n"


def test_quantiles() -> None:
    """A quantile is at most a tenth too high, and never above the worst that was seen."""
    latencies = Latencies()
    assert latencies.quantile(0.5) == 0
    for milliseconds in range(1, 101):
        latencies.add(milliseconds / 1000)

    assert 0.05 <= latencies.quantile(0.5) <= 0.056
    assert latencies.quantile(1.0) == latencies.worst == 0.1
