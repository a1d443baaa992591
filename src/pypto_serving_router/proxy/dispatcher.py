"""Who answers a request: a replica, or the router itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pypto_serving_router.proxy.exchange import Exchange
from pypto_serving_router.proxy.local import LocalCall

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine

    from pypto_serving_router.core.answer import Answer
    from pypto_serving_router.core.head import RequestHead
    from pypto_serving_router.proxy.client import ClientConnection, Handler
    from pypto_serving_router.proxy.shared import Proxy


class Dispatcher:
    """Gives what is below `/v1/` to a replica, and all else to `serve`."""

    def __init__(
        self,
        proxy: Proxy,
        *,
        serve: Callable[[RequestHead, bytes], Awaitable[Answer]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._proxy = proxy
        self._serve = serve
        self._spawn = spawn

    def open(self, client: ClientConnection, head: RequestHead) -> Handler:
        """Make the handler of a request."""
        if head.target[:4] == b"/v1/":
            return Exchange(self._proxy, client, head)
        return LocalCall(client, head, serve=self._serve, spawn=self._spawn)
