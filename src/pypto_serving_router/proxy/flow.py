"""What passes through a connection, and ends of connections that the other side cannot misread."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import asyncio

Piece: TypeAlias = bytes | memoryview
"""Part of a body: a view where a copy would cost more than keeping the rest of what was read with it."""

_NO_LINGER = struct.pack("ii", 1, 0)


def reset(transport: asyncio.Transport) -> None:
    """Close with RST and drop what is unsent: the only sign of a cut where the framing cannot show one."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):  # the peer closed it first: nothing is left to reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def peer_has_left(transport: asyncio.Transport) -> bool:
    """Tell whether the peer's FIN has arrived on a connection that is not being read.

    A paused transport does not see it; the kernel does (`tcpi_state` is the first byte of TCP_INFO, tcp(7)).
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return True
    return state in _CLOSED_BY_PEER


_CLOSED_BY_PEER = frozenset([7, 8, 9])  # CLOSE, CLOSE_WAIT, LAST_ACK in include/net/tcp_states.h
