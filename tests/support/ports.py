"""Ports for what cannot take port 0, and addresses that refuse or swallow connections."""

from __future__ import annotations

import itertools
import random
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Below the ephemeral range, so that no outgoing connection of the machine takes one in between.
_LOW, _HIGH = 16_000, 32_000

# A claim is a name in the kernel's abstract namespace: atomic among all test runs on the machine, and gone with the
# process that holds it.
_claims: list[socket.socket] = []


def free_ports(count: int = 1) -> int:
    """Return the first of `count` successive ports that nobody uses and no other test run will be given."""
    while True:
        base = random.SystemRandom().randrange(_LOW, _HIGH - count)
        claims = list(itertools.takewhile(bool, map(_claim, range(base, base + count))))
        if len(claims) == count:
            _claims.extend(claim for claim in claims if claim)
            return base
        for claim in claims:
            assert claim
            claim.close()


def free_port() -> int:
    """Return a port that nobody uses."""
    return free_ports(1)


def _claim(port: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0pypto-test-port-{port}")
        for address in ("127.0.0.1", "0.0.0.0"):
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((address, port))
                trial.listen()
    except OSError:
        claim.close()
        return None
    return claim


@contextmanager
def refusing_port() -> Iterator[int]:
    """Hold a port on 127.0.0.1 that refuses every connection."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextmanager
def swallowing_port() -> Iterator[int]:
    """Hold a port on 127.0.0.1 where a connection is neither accepted nor refused: its queue is full."""
    with ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            filler = held.enter_context(socket.socket())
            filler.settimeout(0.2)
            try:
                filler.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()[1]
