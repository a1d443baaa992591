"""The admin token: how it is compared, and everywhere it must not be."""

from __future__ import annotations

from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.client import chat
from tests.support.fleet import sim_host
from tests.support.owned import slot_processes
from tests.support.talk import CHAT
from tests.support.waiting import wait_until

from pypto_serving_router.admin import access
from pypto_serving_router.core.head import parse_request

if TYPE_CHECKING:
    from tests.support.harness import Harness

TOKEN = "s3cret/Token+with=odd~chars"
WRONG = ["", "s", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), TOKEN[::-1], f"{TOKEN}, {TOKEN}", f'"{TOKEN}"']


@pytest.mark.parametrize("given", [TOKEN, *WRONG])
def test_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """Every token that is offered is compared as a whole, never character by character (spec 6.6)."""
    compared: list[tuple[bytes, bytes]] = []

    def watched(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare_digest(one, other)

    monkeypatch.setattr(access, "compare_digest", watched)
    head = parse_request(f"POST /replicas HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {given}".encode())

    refused = access.refusal(head, TOKEN.encode())

    assert (refused is None) == (given == TOKEN)
    assert compared == [(given.encode(), TOKEN.encode())]


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "Authorization: Basic czNjcmV0",
        f"Authorization: {TOKEN}",
        f"Authorization: Bearer\t{TOKEN}",
        f"Authorization: Bearer {TOKEN}\r\nConnection: Authorization",
        f"Authorization: Bearer x\r\nAuthorization: Bearer {TOKEN}",
        f"X-Authorization: Bearer {TOKEN}",
        f"Cookie: Authorization=Bearer {TOKEN}",
    ],
)
def test_it_is_wanted_in_one_place_and_form(lines: str) -> None:
    """Anything but one whole bearer token is no token (spec 6.6)."""
    block = "\r\n".join(["GET /replicas HTTP/1.1", "Host: a", *filter(None, [lines])])

    refused = access.refusal(parse_request(block.encode()), TOKEN.encode())

    assert refused is not None
    assert refused.status == 401


def test_it_is_nowhere_to_be_read(harness: Harness) -> None:
    """Not on the process list, in no log at its chattiest, in no answer, file or replica (spec 1.3, 6.6)."""
    router = harness.start_router(
        {"hosts": [sim_host([0, 1])]},
        *("--initial-replicas", "1", "--log-level", "debug", "--access-log"),
        *("--state-file", str(harness.folder / "state")),
        env={"PYPTO_ROUTER_ADMIN_TOKEN": TOKEN},
    )
    router.wait_ready(1)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    answers = [
        router.request("GET", path, headers=headers)
        for path in ("/", "/health", "/metrics", "/replicas", "/replicas?events=256", "/replicas/node-d0/log", "/x")
        for headers in ({}, bearer, {"Authorization": f"Bearer {TOKEN}x"}, {**bearer, "Origin": "http://evil.example"})
    ]
    answers.append(router.request("POST", "/replicas", headers=bearer, body=b"{"))
    answers.append(router.request("POST", CHAT, body=chat("x"), headers=bearer))
    assert {200, 400, 401, 403, 404} <= {answer.status for answer in answers}

    for answer in answers:
        assert TOKEN.encode() not in answer.body
        assert TOKEN not in str(answer.headers)
    launched = harness.launched()
    assert set(slot_processes(harness.folder / "logs")["node-d0"]) <= set(launched)
    assert TOKEN.encode() not in Path(f"/proc/{router.pid}/cmdline").read_bytes()
    assert not [what for what in launched.values() if TOKEN in what]
    for pid in launched:
        with suppress(FileNotFoundError, ProcessLookupError):  # a command of the router's that has ended
            assert TOKEN.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    written = [path for path in harness.folder.rglob("*") if path.is_file()]
    assert {"state", "node-d0.log", "node-d0.json", "router0.err"} <= {path.name for path in written}
    for path in written:
        assert TOKEN.encode() not in path.read_bytes(), path


def test_refusals_cannot_flood_the_log(harness: Harness) -> None:
    """Guessing a token is told once a minute, with how many were held back, and never with what was guessed."""
    router = harness.start_router({"hosts": [sim_host()]}, "--initial-replicas", "0", "--admin-token", TOKEN)
    for number in range(30):
        assert router.request("GET", "/replicas", headers={"Authorization": f"Bearer guess{number}"}).status == 401

    wait_until(lambda: "refused" in router.stderr, what="a record of refusals")
    assert router.stderr.count("\n") < 10
    assert "guess" not in router.stderr
