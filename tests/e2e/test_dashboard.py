"""The dashboard in a real browser, over a real router and simulated replicas.

The README's pictures are taken here: `PYPTO_SCREENSHOTS=docs/images pytest tests/e2e/test_dashboard.py`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import axe
from tests.support.browser import Page, program
from tests.support.client import chat as turn
from tests.support.fleet import replica, sim_host
from tests.support.owned import launch, slot_processes
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.harness import Harness
    from tests.support.router import Router
    from tests.support.sim import Sim

pytestmark = pytest.mark.skipif(program() is None, reason="Chromium is not installed")

TOKEN = "s3cret-token"
TO_BE_EXPECTED = ("the server responded with a status of", "ERR_CONNECTION")
"""What the browser itself notes of answers that the page handles."""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A browser; whatever page it showed had no error and loaded nothing it may not."""
    page = Page(tmp_path / "profile")
    yield page
    complaints = [one for one in page.complaints if not any(expected in one for expected in TO_BE_EXPECTED)]
    page.close()
    assert complaints == []


def said(page: Page, words: str) -> None:
    page.until(f"document.getElementById('said').textContent.includes({json.dumps(words)})")


def phase(page: Page, name: str, wanted: str) -> None:
    """Wait until the table of replicas shows a replica in a phase."""
    page.until(
        "[...document.querySelectorAll('#replicas tr')].some((row) =>"
        f" row.querySelector('th').firstChild.textContent === {json.dumps(name)} &&"
        f" row.querySelector('.pill').textContent === {json.dumps(wanted)})"
    )


def give_token(page: Page, token: str) -> None:
    page.until("!document.getElementById('token-form').hidden")
    page.run(f"document.getElementById('token').value = {json.dumps(token)}")
    page.click("Use it")


def kill(harness: Harness, slot: str) -> None:
    (pid,) = slot_processes(harness.folder / "logs")[slot]
    os.kill(pid, signal.SIGKILL)


def chat(router: Router, session: str | None = None) -> str:
    body: dict[str, Any] = {"model": "qwen", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    headers = {} if session is None else {"X-Session-Id": session}
    answer = router.request("POST", "/v1/chat/completions", body=body, headers=headers)
    assert answer.status == 200
    return str(answer.header("x-session-id"))


def test_an_operators_day(
    page: Page, harness: Harness, start_sim: Callable[..., Sim], start_router: Callable[..., Router]
) -> None:
    """The page shows the fleet live; with the token it launches, drains, frees and shows logs (spec 6.7, 9)."""
    sim = start_sim()
    host = sim_host((0, 1, 2), name="node")
    router = start_router(
        {"replicas": [replica(sim.url, name="static0")], "hosts": [host]},
        *("--admin-token", TOKEN, "--initial-replicas", "0", "--health-interval", "0.2", "--replace-after", "0.2"),
    )
    page.open(router.url)

    # Without the token: what /health shows, and no buttons.
    phase(page, "static0", "ready")
    assert "Launch" not in page.text()
    give_token(page, "wrong")
    said(page, "does not accept this token")
    give_token(page, TOKEN)

    # Launching, and traffic.
    page.click("Launch a replica")
    said(page, "node-d0 is starting")
    phase(page, "node-d0", "ready")
    page.click("Launch here: node-d2")
    said(page, "node-d2 is starting")
    phase(page, "node-d2", "ready")
    session = chat(router)
    chat(router, session)
    page.until("document.getElementById('sessions').textContent === '1'")
    page.until("document.getElementById('affinity').textContent === '50 %'")

    # Why the conversation is where it is.
    page.until("/new, or nothing is remembered/.test(document.getElementById('decisions').textContent)")
    page.run(f"document.getElementById('session').value = {json.dumps(session)}")
    page.click("Explain")
    page.until("document.getElementById('story').textContent.startsWith('It is pinned to ')")
    page.run("document.getElementById('session').value = 'nobody'")
    page.click("Explain")
    page.until("document.getElementById('story').textContent === 'nothing is remembered of this session'")

    # A replica that dies is seen to, and its slot waits; whoever wants the devices says no to a replacement.
    kill(harness, "node-d0")
    page.click("Don't replace …: node-d0")
    page.until("/It lost its replica, and will be launched on again in \\d+ s/.test(document.body.innerText)")
    page.click("Don't replace")
    said(page, "node-d0 stays free")
    page.click("Launch here: node-d0")
    phase(page, "node-d0", "ready")

    # Its log follows.
    page.click("Log: node-d2")
    page.until("document.getElementById('log-text').textContent.includes('[simulation]')")
    page.press("Escape", 27)
    page.until("!document.getElementById('log').open")

    # Draining asks first, and a key says no.
    page.click("Drain and stop: node-d2")
    page.until("document.getElementById('confirm').open && document.activeElement.textContent === 'Cancel'")
    page.press("Escape", 27)
    page.until("!document.getElementById('confirm').open")
    phase(page, "node-d2", "ready")
    page.click("Drain and stop: node-d2")
    # Asked again in the very turn in which it was told no: that no is not the answer to the second question.
    page.run(
        "document.getElementById('confirm').close('no');"
        " document.querySelector('button[aria-label=\"Drain and stop: node-d2\"]').click()"
    )
    page.click("Drain and stop")
    said(page, "node-d2 is stopped")
    assert [row["name"] for row in router.replicas({"Authorization": f"Bearer {TOKEN}"})["replicas"]] == [
        "static0", "node-d0",
    ]  # fmt: skip

    # A slot that somebody else has taken is explained, and freed only on the operator's word.
    with socket.create_server(("127.0.0.1", host["port_base"] + 1)):
        page.click("Launch here: node-d1")
        page.until("document.body.innerText.includes('End it on node')")
        page.click("Look again: node-d1")
        said(page, "stays reserved")
        page.click("Free it …: node-d1")
        assert page.run("document.getElementById('confirm-yes').disabled") is True
        page.run("document.getElementById('confirm-check').click()")
        page.click("Free it")
        said(page, "node-d1 is free")

    # What happened is told, the latest first.
    page.until("document.querySelector('#events li').textContent.includes('node-d1: unconfirmed → free')")
    assert "node-d2: draining → stopping" in page.text()

    # The token stays in this tab.
    assert page.run("document.cookie + JSON.stringify({...localStorage})") == "{}"
    assert TOKEN not in page.run("document.documentElement.outerHTML")
    page.click("Forget the token")
    page.until("!document.getElementById('token-form').hidden")
    assert page.run("JSON.stringify({...sessionStorage})") == "{}"
    assert "Drain" not in page.text()


def test_router_gone_and_back(page: Page, start_router: Callable[..., Router], start_sim: Callable[..., Sim]) -> None:
    """A router that is gone is said to be, with how old the figures are; one that is back goes on (spec 9)."""
    sim = start_sim()
    router = start_router([replica(sim.url, name="static0")])
    page.open(router.url)
    phase(page, "static0", "ready")
    page.until("document.getElementById('state').textContent === 'ok'")

    router.kill()

    page.until("!document.getElementById('gone').hidden")
    assert page.run("document.getElementById('state').textContent") == "gone"
    assert "What is below is from " in page.text()
    phase(page, "static0", "ready")
    sim.kill()
    start_router([replica(sim.url, name="static0")], "--port", str(router.port), "--health-interval", "0.1")
    page.until("document.getElementById('gone').hidden")
    page.until("document.getElementById('state').textContent === 'unavailable'")
    phase(page, "static0", "starting")


@contextmanager
def conversations(router: Router) -> Iterator[None]:
    """Let four people talk to the replicas."""
    ended = threading.Event()

    def talk() -> None:
        while not ended.is_set():
            turns, session = ["Hello"], ""
            while len(turns) < 12 and not ended.is_set():
                headers = {"X-Session-Id": session} if session else {}
                with suppress(OSError, HTTPException):  # the replica was killed
                    answer = router.request(
                        "POST", "/v1/chat/completions", body=turn(*turns, stream=True), headers=headers
                    )
                    session = str(answer.header("x-session-id"))
                turns += ["So I hear.", "Tell me more of it, at length. " * len(turns)]

    people = [threading.Thread(target=talk) for _ in range(4)]
    for one in people:
        one.start()
    try:
        yield
    finally:
        ended.set()
        for one in people:
            one.join()


def barriers(page: Page, where: str) -> list[str]:
    """What axe-core finds to be in somebody's way, in the light and in the dark."""
    found = []
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        found += [f"{where}, {scheme}: {violation}" for violation in axe.violations(page)]
    return found


@pytest.mark.skipif(
    axe.program() is None, reason="axe-core is not installed: pip install --no-deps axe-playwright-python"
)
def test_no_barriers(page: Page, harness: Harness, tmp_path: Path, start_router: Callable[..., Router]) -> None:
    """Whatever the page shows, axe-core has nothing against it, in both themes (spec 9)."""
    pace = {"prefill_rate": 3000, "decode_rate": 60}
    hosts = [sim_host((0, 1, 2), name="node01", sim=pace), sim_host((3, 4), name="node02", sim=pace)]
    router = start_router(
        {"hosts": hosts}, "--initial-replicas", "3", "--health-interval", "0.2", "--replace-after", "0.2"
    )
    pictures = os.environ.get("PYPTO_SCREENSHOTS")
    found = []
    page.open(router.url)
    for number in range(3):
        phase(page, f"node01-d{number}", "ready")
    with socket.create_server(("127.0.0.1", hosts[1]["port_base"] + 3)), conversations(router):
        assert launch(router, slot="node02-d3").status == 409
        samples = 30 if pictures else 1  # the charts of a picture are to show something
        page.until(f"document.querySelector('#rate-chart .line').getAttribute('d').split('L').length > {samples}", 100)
        kill(harness, "node01-d2")
        page.until("document.querySelector('.pill.cooling') !== null")
        for scheme in ("light", "dark"):
            page.prefer(scheme)
            page.screenshot(Path(pictures or tmp_path) / f"dashboard-{scheme}.webp")
    found += barriers(page, "a fleet in trouble")
    page.click("Drain and stop: node01-d1")
    found += barriers(page, "a question")
    page.press("Escape", 27)
    page.click("Log: node01-d0")
    page.until("document.getElementById('log-text').textContent.includes('[simulation]')")
    found += barriers(page, "a log")
    page.press("Escape", 27)
    router.signal(signal.SIGTERM)
    assert router.wait() == 0
    page.until("!document.getElementById('gone').hidden")
    found += barriers(page, "no router")
    page.open(start_router({"hosts": hosts}, "--admin-token", TOKEN, "--initial-replicas", "0").url)
    page.until("!document.getElementById('token-form').hidden")
    found += barriers(page, "no token")
    assert found == [], "\n".join(found)


def test_for_everybody(page: Page, start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """The page can be read and worked with a keyboard and a screen reader, in the dark and in the light (spec 9)."""
    sim = start_sim()
    router = start_router({"replicas": [replica(sim.url, name="static0")], "hosts": [sim_host((0, 1))]})
    page.open(router.url)
    phase(page, "node-d0", "ready")

    found = page.accessible()

    names = {role: [name for kind, name in found if kind == role] for role, _ in found}
    assert {"Launch a replica", "Log: node-d0", "Drain and stop: node-d0"} <= set(names["button"])
    assert all(
        name
        for role in ("button", "checkbox", "textbox", "searchbox", "combobox", "img")
        for name in names.get(role, [])
    )
    assert {"Replicas", "Slots", "What happened last", "Requests per second"} <= set(names["heading"])
    assert "static0" in " ".join(names["rowheader"])
    assert any("requests in flight" in name for name in names.get("img", []) + names.get("image", []))

    reached = set()
    for _ in range(30):
        page.press("Tab", 9)
        reached.add(page.run("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"))
    assert {"Launch a replica", "Log: node-d0", "Drain and stop: node-d0"} <= reached

    papers = {}
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        papers[scheme] = page.run("getComputedStyle(document.body).backgroundColor")
    assert papers["light"] != papers["dark"]


def test_names_cannot_act(page: Page, start_router: Callable[..., Router]) -> None:
    """Whatever the router is told to show arrives as text (spec 6.7)."""
    router = start_router([{"host": "127.0.0.1", "port": 1, "name": "static0"}], "--health-interval", "0.1")
    page.open(router.url)
    phase(page, "static0", "starting")
    page.run(
        """
        (async () => {
          const { showEvents, showReplicas } = await import('./view.js');
          const { showDecisions } = await import('./decisions.js');
          const evil = '<img src=x onerror="window.harmed = 1"><script>window.harmed = 1</script>';
          const event = { number: 1, timestamp: '2026-01-01T00:00:00Z', level: 'info' };
          showEvents([{ ...event, event: evil, replica: evil, error: evil }]);
          showReplicas([{ name: evil, url: evil, phase: 'failed', outstanding: 0, last_error: evil, owned: true }],
            { rates: new Map(), firstBytes: new Map(), pending: new Set(), act: {} });
          const load = { replica: evil, routable: true, outstanding: 0 };
          showDecisions({ slack: 0, session: evil, pinned: { replica: evil }, decisions: [
            { at: event.timestamp, digest: evil, replica: evil, why: 'unroutable', left: evil, trouble: evil,
              stayed: 0, ended: null, replicas: 1, loads: [load] }] });
        })()
        """
    )

    assert page.run("document.querySelectorAll('main img, main script').length") == 0
    assert page.run("window.harmed") is None
    wait_until(lambda: page.run("document.getElementById('state').textContent") == "unavailable")
