"""Is the address silent? A TCP connect tells: refused is silence, accepted is not, anything else proves nothing."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from pypto_serving_router.core.slot import Slot

Reply: TypeAlias = Literal["refused", "accepted", "no way", "nothing"]

PATIENCE: Final = 5.0
"""Seconds until an address that says nothing at all is given up on."""

_NO_WAY: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH)
"""This machine has no IPv6, say: a name's other addresses decide."""


async def silent(slot: Slot, *, patience: float = PATIENCE) -> bool | None:
    """Tell whether nothing listens at the slot's address; None if that can't be told within `patience` seconds.

    A name is silent if all the addresses are that it stands for. Nothing is sent to whoever accepts.
    """
    try:
        async with asyncio.timeout(patience):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(slot.address, slot.port, type=socket.SOCK_STREAM)
            replies = set(await asyncio.gather(*(_knock(family, address) for family, _, _, _, address in found)))
    except (OSError, TimeoutError):
        return None
    if "accepted" in replies:
        return False
    return True if replies - {"no way"} == {"refused"} else None


async def _knock(family: int, address: tuple[Any, ...]) -> Reply:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as knock:
            knock.settimeout(0)  # non-blocking, as the loop wants it
            await asyncio.get_running_loop().sock_connect(knock, address)
            # A port in the ephemeral range may be lent to this very connection, which then meets itself.
            return "refused" if knock.getsockname() == knock.getpeername() else "accepted"
    except ConnectionRefusedError:
        return "refused"
    except OSError as problem:
        return "no way" if problem.errno in _NO_WAY else "nothing"
