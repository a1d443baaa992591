"""All client connections: their number, and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.rig import codes
from tests.support.scripts import answer, request
from tests.support.witness import read_response

from pypto_serving_router.proxy.client import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.rig import Rig


LENGTHY = request(b"X-Session-Id: s", b"Content-Length: 10")
CHUNKED = request(b"X-Session-Id: s", b"Transfer-Encoding: chunked")


def test_connections_beyond_the_limit_are_dropped(make_rig: Callable[..., Rig]) -> None:
    """spec 4.10: they are refused at once and counted; room that comes free is used."""
    rig = make_rig(limits=Limits(max_connections=2))
    first, _, third = rig.connect(), rig.connect(), rig.connect()
    rig.turns.run()
    assert (third.lost, rig.frontend.refused) == (True, 1)

    first.end()
    rig.turns.run()
    fourth, upstream = rig.ask(request())
    upstream.send(answer())

    assert codes(fourth) == [200]


def test_closing_lets_requests_end(rig: Rig) -> None:
    """spec 7.11: idle connections go at once, the others with their answer, which says so; nobody new comes in."""
    idle, begun = rig.connect(), rig.connect()
    busy, upstream = rig.ask(request())
    begun, second = rig.ask(request() + request(), begun)
    second.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")

    rig.frontend.close()
    late = rig.connect()
    rig.turns.run()
    assert (idle.ended, late.lost, busy.ended, begun.ended) == ("fin", True, None, None)
    assert not rig.frontend.empty.is_set()
    upstream.send(answer())
    second.send(b"fine")
    rig.turns.run()

    assert read_response(busy.got).values(b"connection") == [b"close"]
    assert (busy.half_closed, begun.half_closed) == (True, True)
    assert (codes(busy), codes(begun)) == ([200], [200])
    for client in (busy, begun):
        client.end()
    rig.turns.run()
    assert rig.frontend.empty.is_set()


def test_an_empty_frontend_closes_at_once(rig: Rig) -> None:
    """spec 7.11: with no connection there is nothing to wait for."""
    rig.frontend.close()

    assert rig.frontend.empty.is_set()


def test_aborting_drops_everything(rig: Rig) -> None:
    """spec 7.11: at the second signal nothing is waited for, and the replicas hear of it."""
    idle = rig.connect()
    busy, upstream = rig.ask(request())

    rig.frontend.abort()
    rig.turns.run()

    assert (idle.lost, busy.lost, upstream.lost) == (True, True, True)
    assert rig.outcomes == [("client_left", 0)]
