"""Ports for tests."""

from __future__ import annotations

import socket

import pytest
from tests.support import ports


def test_ports_are_given_once() -> None:
    """Nobody else is given a port that a test has (spec 10)."""
    base = ports.free_ports(3)

    assert all(ports._claim(port) is None for port in range(base, base + 3))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", base + 2))


def test_ports_in_use_are_not_given() -> None:
    """A port that somebody listens on is not free (spec 10)."""
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()

        assert ports._claim(listener.getsockname()[1]) is None


def test_a_refusing_port() -> None:
    """A connection to it is refused (spec 10)."""
    with ports.refusing_port() as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_a_swallowing_port() -> None:
    """A connection to it is neither accepted nor refused (spec 10)."""
    with ports.swallowing_port() as port, pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=0.3).close()
