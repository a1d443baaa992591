"""Who answers a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from pypto_serving_router.core.answer import Answer, document
from pypto_serving_router.core.head import RequestHead, parse_request
from pypto_serving_router.proxy.dispatcher import Dispatcher
from pypto_serving_router.proxy.exchange import Exchange
from pypto_serving_router.proxy.local import LocalCall

if TYPE_CHECKING:
    from tests.support.rig import Rig

    from pypto_serving_router.proxy.client import ClientConnection


async def serve(head: RequestHead, body: bytes) -> Answer:
    return document({})


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/v1/chat/completions", Exchange),
        (b"/v1/", Exchange),
        (b"/v1", LocalCall),
        (b"/v2/models", LocalCall),
        (b"/health", LocalCall),
        (b"/", LocalCall),
        (b"*", LocalCall),
    ],
)
def test_who_answers(rig: Rig, target: bytes, expected: type[object]) -> None:
    """spec 4.1: what is below /v1/ goes to a replica, all else is the router's own."""
    head = parse_request(b"OPTIONS %b HTTP/1.1\r\nHost: router" % target)
    client = cast("ClientConnection", rig.connect().protocol)
    dispatcher = Dispatcher(rig.proxy, serve=serve, spawn=rig.turns.spawn)

    assert type(dispatcher.open(client, head)) is expected
