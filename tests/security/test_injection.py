"""Text that comes from outside, on its way into heads, logs and answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import chat
from tests.support.fleet import replica
from tests.support.talk import CHAT, post
from tests.support.upstream import RawUpstream, then_close
from tests.support.waiting import wait_until

from pypto_serving_router.config.load import parse_fleet
from pypto_serving_router.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.router import Router
    from tests.support.sim import Sim

HOSTILE = [
    "a\r\nX-Injected: 1",
    "a\nb",
    "a b",
    "\x1b[31mred",
    "a\u2028b",
    "../x",
    "<script>",
    "é",
    "",
    "x" * 129,
    "a\0",
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["replicas", "hosts"])
def test_names_that_could_end_a_line_are_refused(kind: str, name: str) -> None:
    """Names reach heads, paths, labels and logs; the fleet file may hold none that could act there (spec 2.6)."""
    entry: dict[str, Any] = {"name": name, "host": "a", "port": 1}
    if kind == "hosts":
        entry = {"name": name, "devices": [0], "model": "/m"}

    with pytest.raises(ConfigError) as refused:
        parse_fleet(json.dumps({kind: [entry]}).encode(), source="fleet.json")

    assert all(str(problem).isprintable() for problem in refused.value.problems)


def test_an_id_that_could_act_is_replaced(start_sim: Callable[..., Sim], start_router: Callable[..., Router]) -> None:
    """No id from a client comes back in a head unless it is made of harmless characters (spec 3.1)."""
    router = start_router([start_sim()])

    for session in (
        "a\x00b",
        "a b",
        "\x1b[2J",
        "x" * 129,
        "<script>alert(1)</script>",
        "a,b",
        "ä",
        "a%0d%0ab",
        "a\r\nb",
    ):
        answer = router.request("POST", CHAT, body={**chat("x"), "session_id": session})
        assert answer.status == 200
        minted = answer.header("X-Session-Id") or ""
        assert len(minted) == 32
        assert minted.isalnum()


def test_what_a_replica_says_stays_in_its_place(
    start_router: Callable[..., Router], start_upstream: Callable[..., RawUpstream]
) -> None:
    """Garbage from a replica is quoted in errors, logs and /replicas on one line, and adds no field (spec 4.7, 6.2)."""
    garbage = [
        b"HTTP/1.1 200 a\x0bb\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 2x0 \x1b[31m\r\n\r\n",
        b"\x1b]0;title\x07\r\nX-Injected: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: 1\nX-Injected: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    ]
    upstream = start_upstream(*map(then_close, garbage))
    router = start_router([replica(upstream.url, name="one")], "--health-interval", "0.1")

    for _ in garbage:
        router.wait_ready(1)
        answer = router.request("POST", CHAT, body=chat("x"))
        assert answer.status == 502
        assert answer.header("X-Injected") is None
        assert answer.json()["error"]["message"].isprintable()
        assert (router.replicas()["replicas"][0]["last_error"] or "").isprintable()
    for line in wait_until(lambda: router.stderr).splitlines():
        assert line.isprintable()
        json.loads(line)


@pytest.mark.parametrize("form", ["json", "text"])
def test_one_record_is_one_line(start_sim: Callable[..., Sim], start_router: Callable[..., Router], form: str) -> None:
    """Whatever a client sends, it writes no record of its own and moves no cursor (spec 9)."""
    router = start_router([start_sim()], "--access-log", "--log-level", "debug", "--log-format", "json")
    if form == "text":
        router = start_router([start_sim()], "--access-log", "--log-format", "text", wait=False)
        address = wait_until(lambda: [word for word in router.stderr.split() if word.startswith("url=http://")])
        router.url = address[0].removeprefix("url=").strip("'\"")
        router.port = int(router.url.rpartition(":")[2])
    with router.connect() as wire:
        wire.send(
            post(
                chat("x"),
                path="/v1/chat/completions?%0a%0d%1b[31m",
                X_Request_Id='a" event="forged\t\xff\x80',
                X_Session_Id="\x85forged",
                User_Agent="\x9b31m",
            ).replace(b"\xc2", b"")
        )
        assert wire.read_answer("POST").status == 200

    def shown() -> list[str]:
        return [line for line in router.stderr.splitlines() if "exchange ended" in line]

    (line,) = wait_until(shown, what="the access record")
    assert line.isprintable()
    assert "event=forged" not in line
    if form == "json":
        assert json.loads(line)["event"] == "exchange ended"
