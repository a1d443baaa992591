"""What a request asks of the stub replica, as words that survive inside a message's text.

They stand in a message because gateways which re-serialise the JSON drop fields they do not know.
"""

import re
from dataclasses import dataclass, fields
from functools import lru_cache

_END = "end=0"
# Without the end, a script that is cut in two by a proxy would be read as a shorter one.
_WORDS = re.compile(rb"bench ([a-z_0-9=\- ]*)end=0")


@dataclass(frozen=True, slots=True)
class Script:
    """One answer of the stub: its shape, its timing and its faults."""

    stream: int = 0
    """1: server-sent events, chunked; 0: one JSON object."""
    events: int = 10
    """Events of a stream; a `[DONE]` event follows."""
    interval: int = 0
    """Milliseconds between events; 0 lets the loop turn in between, -1 writes all in one burst."""
    size: int = 0
    """Bytes of one event, framing of the event stream included, or of the JSON body; 0: the usual size."""
    align: int = 0
    """1: events fall on multiples of the interval for all streams at once, as an engine's steps do."""
    delay: int = 0
    """Milliseconds before the head of the answer."""
    hold: int = 0
    """1: after the events the stream stays open until the client leaves."""
    die: int = -1
    """Close the connection after that many events."""
    rst: int = 0
    """1: die by a reset instead."""
    die_head: int = 0
    """1: close before a byte of the answer."""

    def text(self) -> str:
        """Return the words for a message; defaults are left out."""
        words = [f"{f.name}={value}" for f in fields(self) if (value := getattr(self, f.name)) != f.default]
        return " ".join(["bench", *words, _END])


@lru_cache(maxsize=256)
def _parse(words: bytes) -> Script:
    pairs = (word.partition(b"=") for word in words.split())
    return Script(**{name.decode(): int(value) for name, _, value in pairs})


def find(body: list[bytes]) -> Script:
    """Return the script in a body that arrived in these pieces, or the default one."""
    match = _WORDS.search(body[0]) if body else None
    if match is None and len(body) > 1:
        match = _WORDS.search(b"".join(body))
    return _parse(match.group(1)) if match else Script()
