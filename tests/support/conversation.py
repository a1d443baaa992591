"""Whole exchanges on a rig, with the bytes of either side cut wherever one likes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.support.rig import Rig
from tests.support.witness import read_requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.rig import Wire

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True)
class Script:
    """What a client sends, and what replicas answer, request by request; with `ends`, they then close."""

    sent: bytes
    answers: Sequence[bytes]
    ends: bool = False


@dataclass(frozen=True)
class Account:
    """What came of it.

    `client` and `ending` are what the client got, and how its connection ended; `replica` what replicas got, one
    request after the other, and `kept` whether the connections used outlive it; `outcomes` how the exchanges ended.
    """

    client: bytes
    ending: str | None
    replica: bytes
    kept: set[bool]
    outcomes: list[tuple[str, int]]
    refused: list[int]


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Cut bytes in pieces at these places."""
    bounds = [0, *sorted({min(place, len(data)) for place in places} - {0, len(data)}), len(data)]
    return [data[start:stop] for start, stop in pairwise(bounds)]


def converse(script: Script, client_cuts: Sequence[int] = (), replica_cuts: Sequence[int] = ()) -> Account:
    """Let client and replicas have their conversation, and close the books."""
    rig = Rig()
    client = rig.connect()
    answers = list(script.answers)
    served: dict[Wire, int] = {}
    seen: dict[Wire, int] = {}
    for piece in cut(script.sent, client_cuts):
        client.send(piece)
        rig.turns.run()
        while answers and (wire := _waiting(rig, served, seen)) is not None:
            served[wire] = served.get(wire, 0) + 1
            for part in cut(answers.pop(0), replica_cuts):
                wire.send(part)
                rig.turns.run()
            if script.ends:
                wire.end()
                rig.turns.run()
    rig.check()
    return Account(
        client=client.got.replace(_CONTINUE, b"") if b"Expect:" in script.sent else client.got,
        ending=client.ended or ("half" if client.half_closed else None),
        replica=b"".join(wire.got for wire in rig.upstreams),
        kept={not wire.lost for wire in rig.upstreams},
        outcomes=rig.outcomes,
        refused=rig.refused,
    )


def _waiting(rig: Rig, served: dict[Wire, int], seen: dict[Wire, int]) -> Wire | None:
    """Find a replica's connection on which a whole request waits for its answer."""
    for wire in rig.upstreams:
        if seen.get(wire) != len(wire.got):
            seen[wire] = len(wire.got)
            requests, readable = read_requests(wire.got)
            assert readable, wire.got
            if sum(request.whole for request in requests) > served.get(wire, 0):
                seen[wire] = -1
                return wire
    return None
