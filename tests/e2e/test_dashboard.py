"""The dashboard in a real browser, over a real router and simulated replicas."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.browser import Page, program
from tests.support.fleet import replica, sim_host
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


def chat(router: Router, session: str | None = None) -> str:
    body: dict[str, Any] = {"model": "qwen", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    headers = {} if session is None else {"X-Session-Id": session}
    answer = router.request("POST", "/v1/chat/completions", body=body, headers=headers)
    assert answer.status == 200
    return str(answer.header("x-session-id"))


def test_an_operators_day(page: Page, start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """The page shows the fleet live; with the token it launches, drains, frees and shows logs (spec 6.7, 9)."""
    sim = start_sim()
    host = sim_host((0, 1, 2), name="node")
    router = start_router(
        {"replicas": [replica(sim.url, name="static0")], "hosts": [host]},
        *("--admin-token", TOKEN, "--initial-replicas", "0", "--health-interval", "0.2"),
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


def test_for_everybody(
    page: Page, tmp_path: Path, start_sim: Callable[..., Sim], start_router: Callable[..., Router]
) -> None:
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

    page.screenshot(tmp_path / "dashboard.png")
    assert (tmp_path / "dashboard.png").stat().st_size > 10_000


def test_names_cannot_act(page: Page, start_router: Callable[..., Router]) -> None:
    """Whatever the router is told to show arrives as text (spec 6.7)."""
    router = start_router([{"host": "127.0.0.1", "port": 1, "name": "static0"}], "--health-interval", "0.1")
    page.open(router.url)
    phase(page, "static0", "starting")
    page.run(
        """
        (async () => {
          const { showEvents, showReplicas } = await import('./view.js');
          const evil = '<img src=x onerror="window.harmed = 1"><script>window.harmed = 1</script>';
          const event = { number: 1, timestamp: '2026-01-01T00:00:00Z', level: 'info' };
          showEvents([{ ...event, event: evil, replica: evil, error: evil }]);
          showReplicas([{ name: evil, url: evil, phase: 'failed', outstanding: 0, last_error: evil, owned: true }],
            { rates: new Map(), pending: new Set(), act: {} });
        })()
        """
    )

    assert (
        page.run("document.querySelectorAll('#events img, #events script, #replicas img, #replicas script').length")
        == 0
    )
    assert page.run("window.harmed") is None
    wait_until(lambda: page.run("document.getElementById('state').textContent") == "unavailable")
