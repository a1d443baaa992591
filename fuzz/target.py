"""What a campaign is: how inputs are made, and what must hold for any bytes whatever."""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hypothesis.strategies import SearchStrategy

CORPUS = Path(__file__).with_name("corpus")
"""A folder for each target; each file is an input."""


@dataclass(frozen=True, slots=True)
class Target:
    """`check` raises where an input does harm. An input is bytes alone, so that a finding is a file.

    `inputs` are well-formed or nearly; `scraps` are what to spoil them with.
    """

    name: str
    inputs: SearchStrategy[bytes]
    scraps: Sequence[bytes]
    check: Callable[[bytes], None]

    def spoiled(self, data: bytes, count: int) -> Iterator[bytes]:
        """Give spoiled ones of an input: always the same of the same."""
        choose = choices(data)
        for _ in range(count):
            yield spoil(data, self.scraps, choose)

    def kept(self) -> list[Path]:
        """Return the seeds and past findings, each a file."""
        return sorted(path for path in (CORPUS / self.name).glob("*") if path.is_file())


def choices(data: bytes) -> random.Random:
    """Return the choices that belong to an input: always the same for the same bytes."""
    return random.Random(blake2b(data, digest_size=8).digest())


def pieces(data: bytes, choose: random.Random) -> list[bytes]:
    """Cut data as a network might: whole, byte by byte, or anywhere."""
    way = choose.randrange(4)
    if way == 0 or len(data) < 2:
        return [data]
    if way == 1 and len(data) <= 400:
        return [data[index : index + 1] for index in range(len(data))]
    cuts = sorted(choose.randrange(len(data)) for _ in range(choose.randint(1, 6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


def spoil(data: bytes, scraps: Sequence[bytes], choose: random.Random) -> bytes:
    """Do one to four small things to it."""
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        at = choose.randint(0, len(data))
        to = min(len(data), at + choose.choice((0, 0, 1, 2, 8)))
        way = choose.randrange(6)
        if way <= 1:
            data = data[:at] + choose.choice(scraps) + data[to:]
        elif way == 2:
            data = data[:at] + choose.randbytes(choose.randint(1, 2)) + data[to:]
        elif way == 3:
            data = data[:at] + data[to:]
        elif way == 4:
            data = data[:to] + data[at:]
        else:
            data = data[:at]
    return data


def shrunk(data: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """Leave out of a failing input what it also fails without."""
    size = len(data) // 2
    while size:
        at = 0
        while at < len(data):
            less = data[:at] + data[at + size :]
            if fails(less):
                data = less
            else:
                at += size
        size //= 2
    return data
