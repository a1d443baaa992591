"""An engine's life behind the router: loading, working, left alone, killed, launched and drained."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import request
from tests.support.engine import PROGRAM, PYTHON, model
from tests.support.ports import free_port
from tests.support.turns import Talk, body, chat, words
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine import Engine
    from tests.support.harness import Harness
    from tests.support.router import Router

pytestmark = pytest.mark.engine

ENDLESS = 3000
"""Tokens of an answer that is not waited for."""


@contextmanager
def stream(router: Router, **fields: Any) -> Iterator[http.client.HTTPResponse]:
    """Begin a streamed answer and read its first line; leave at the end."""
    content = json.dumps(body([{"role": "user", "content": words(20)}], **fields))
    with closing(http.client.HTTPConnection("127.0.0.1", router.port, timeout=30)) as connection:
        connection.request("POST", "/v1/chat/completions", content)
        with connection.getresponse() as response:
            assert response.readline().startswith(b"data: ")
            yield response


def test_a_replica_is_routable_while_its_engine_is_ready(
    start_router: Callable[..., Router], start_engine: Callable[..., Engine]
) -> None:
    """Absent and loading are no; ready is yes, on the first good probe; killed is no (spec 5.1, 5.2)."""
    port = free_port()
    router = start_router([f"http://127.0.0.1:{port}"], "--health-interval", "0.2")
    router.wait_ready(0)
    engine = start_engine(port=port)
    router.wait_ready(1)
    answer = chat(router.url, [{"role": "user", "content": "Hello"}], max_tokens=2)
    engine.kill()
    router.wait_ready(0)

    assert answer.text
    assert router.request("POST", "/v1/completions", body={}).status == 503


def test_a_client_that_leaves_frees_its_slot(router: Router, engines: list[Engine]) -> None:
    """The engine stops generating for nobody (spec 4.5)."""
    with stream(router, max_tokens=ENDLESS) as response:
        engine = next(each for each in engines if each.name == response.getheader("X-Router-Replica"))
        assert engine.busy_slots() == 1

    wait_until(lambda: engine.busy_slots() == 0, timeout=5, what="the slot to be free")
    assert router.health()["replicas"][0]["outstanding"] == 0


def test_a_replica_killed_midway_costs_that_answer_only(
    start_router: Callable[..., Router], start_engine: Callable[..., Engine]
) -> None:
    """The cut answer shows as cut, and its conversation goes on elsewhere (spec 4.6, 5.4)."""
    pair = [start_engine(wait=False), start_engine()]
    router = start_router([{"name": each.name, "host": "127.0.0.1", "port": each.port} for each in pair])
    router.wait_ready(2)
    with stream(router, max_tokens=ENDLESS) as response:
        session = response.getheader("X-Session-Id")
        lost = next(each for each in pair if each.name == response.getheader("X-Router-Replica"))
        lost.kill()
        with pytest.raises(http.client.IncompleteRead):
            response.read()

    talk = Talk(router.url, session=session)
    turn = talk.say("Are you still there?")
    assert (turn.session, turn.replica) == (session, next(each.name for each in pair if each is not lost))
    assert talk.say("Go on.").replica == turn.replica
    router.wait_ready(1)


def test_no_request_is_lost_to_a_connection_that_the_engine_closed(router: Router) -> None:
    """It closes a kept connection after a stream without saying so, and any after 5 s idle (spec 4.6)."""
    for index in range(40):
        turn = chat(router.url, [{"role": "user", "content": f"{index}"}], max_tokens=2)
        assert turn.text
    answer = router.request("POST", "/v1/completions", body={"prompt": "x", "max_tokens": 1})
    assert answer.status == 200

    def open_connections() -> float:
        lines = router.request("GET", "/metrics").body.decode().splitlines()
        (value,) = (line.split()[1] for line in lines if line.startswith("pypto_router_upstream_connections "))
        return float(value)

    wait_until(lambda: not open_connections(), timeout=15, what="the engine to close idle connections")
    assert router.request("POST", "/v1/completions", body={"prompt": "x", "max_tokens": 1}).status == 200


def test_the_router_launches_an_engine_and_drains_it(start_router: Callable[..., Router], harness: Harness) -> None:
    """`serve_command` runs any engine; DELETE lets its last answer end, and then nothing is left (spec 2.1, 7.8)."""
    command = [str(PYTHON), str(PROGRAM)]
    host = {
        "name": "node",
        "devices": [0],
        "port_base": free_port(),
        "model": str(model()),
        "served_model_name": "tiny",
        "serve_command": [*command, "--model", "{model}", "--port", "{port}"],
        "serve_args": ["--slots", "2"],
    }
    router = start_router({"hosts": [host]}, "--drain-timeout", "30")
    (row,) = router.wait_ready(1, timeout=60)["replicas"]
    deletion: list[int] = []

    def delete() -> None:
        deletion.append(router.request("DELETE", "/replicas/node-d0", timeout=60).status)

    with stream(router, max_tokens=300) as response:
        thread = threading.Thread(target=delete)
        thread.start()
        wait_until(lambda: router.health()["replicas"][0]["phase"] == "draining", what="the drain to begin")
        assert request(f"{row['url']}/health").status == 200
        assert response.read().endswith(b"data: [DONE]\n\n")
    thread.join()

    assert deletion == [200]
    assert router.replicas()["replicas"] == []
    wait_until(lambda: not harness.launched(), timeout=10, what="the end of what the router asked the host with")
