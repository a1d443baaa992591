"""The page about what is on the wire: each exchange of the tests' table, told from its bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tests.contract import wire_answers, wire_connections, wire_framing, wire_requests
from tests.support.exchange_table import quoted

from pypto_serving_router.proxy.client import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.support.exchange_table import Case

CHAPTERS: Final[Mapping[str, tuple[str | None, Sequence[Case]]]] = {
    "Requests": (wire_requests.__doc__, wire_requests.CASES),
    "Requests that could be read in two ways": (wire_framing.__doc__, wire_framing.CASES),
    "Answers": (wire_answers.__doc__, wire_answers.CASES),
    "Connections": (wire_connections.__doc__, wire_connections.CASES),
}

LIMITS: Final = Limits()

_ENDINGS: Final = {"open": "open", "fin": "ended", "rst": "reset"}


def behaviour() -> str:
    """What the router does with the bytes of HTTP/1.1."""
    chapters = "\n".join(_chapter(title, *chapter) for title, chapter in CHAPTERS.items())
    total = sum(len(cases) for _, cases in CHAPTERS.values())
    return f"""# On the wire

<!-- Generated from the tables in tests/contract. -->

What the router does with the bytes of HTTP/1.1: first in short, then [exchange by exchange](#exchange-by-exchange).

## What crosses

| | |
|---|---|
| Method, path, query, body | as they came; nothing is decoded, re-encoded or normalised |
| Header fields | as they came, in order, duplicates kept |
| Fields for one hop (`Connection` and what it names, `Keep-Alive`, `Proxy-*`, `TE`, `Trailer`, `Transfer-Encoding`, \
`Upgrade`) | end here |
| `Host` | the replica's; what the client asked for goes on as `X-Forwarded-Host` |
| `X-Forwarded-For`, `X-Forwarded-Proto`, `X-Request-Id` | appended to, kept or added |
| Chunks of an answer | as the replica made them; trailers are dropped |
| An answer in chunks to an HTTP/1.0 client | without its chunks, ended by the end of the connection |
| `X-Session-Id` (of a POST), `X-Request-Id`, `X-Router-Replica`, `X-Router-Placement` | added to every answer; \
the router's own errors have the last two once a replica was chosen, and none where no request could be read |

## What is refused

With 400, and the end of the connection: two lengths, a length beside chunks, folded lines, bare CR or LF, control
characters, a malformed chunk, chunks in HTTP/1.0, a missing or second `Host`, a target with a fragment.
With 431: a head above 64 KiB or 128 fields; with 413: a body above the limit.
With 408: a head that is not whole {LIMITS.head_timeout:g} s after its first byte, however steadily it comes; and a \
body of which nothing comes for {LIMITS.body_timeout:g} s.
A body that trickles is not refused for its rate; `--request-timeout` bounds the whole exchange.
A connection on which no request begins is closed without an answer: a new one after {LIMITS.head_timeout:g} s, a kept \
one after {LIMITS.idle_timeout:g} s.

## Ends

| What happens | What the client sees |
|---|---|
| The replica breaks before its answer | 502 |
| It breaks in its answer | the connection ends without the end of the body; where that would look whole, it is reset |
| No answer in time | 504 |
| No replica is routable | 503 with `Retry-After` |

A client that closes its side has left: its replica's connection is closed at once.
While a client does not read, its replica is not read either.

## Exchange by exchange

These are the {total} exchanges of the tables in `tests/contract`, which have them byte for byte.
Each runs on every change, on recorded connections and through the installed router.
A source is a section of an RFC, a class of request smuggling, or one of the [numbered rules](clauses.md) (`spec`);
its exchanges stand together, those with the same outcome in one row.

Of a message that goes on, only what changes on its way is told.
Left out is what the router adds to every request (`Host`, `X-Forwarded-For`, `X-Forwarded-Proto`, `X-Forwarded-Host`,
`X-Request-Id`) and to every answer of a replica (`X-Request-Id`, `X-Router-Replica`, `X-Router-Placement: new`).
Its own errors are named by their code.
Last comes what becomes of the connections: the client's stays open, is ended or reset; the replica's is kept for the
next request, closed, or was unused.

{chapters}"""


def _chapter(title: str, intro: str | None, cases: Iterable[Case]) -> str:
    sources: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for case in cases:
        sources.setdefault(case.cites, {}).setdefault(outcome(case), []).append(case.name)
    heads = ("Source", "Exchange", "To the replica", "To the client", "Connections")
    rows = [heads, ("---",) * len(heads)]
    for cites, outcomes in sources.items():
        source = _linked(cites)
        for came, names in outcomes.items():
            rows.append((source, "<br>".join(names), *came))
            source = ""
    return "\n".join([f"### {title}", "", str(intro), "", *(f"| {' | '.join(cells)} |" for cells in rows), ""])


def _linked(cites: str) -> str:
    return re.sub(r"RFC (\d+) ([\d.]+)", r"[\g<0>](https://www.rfc-editor.org/rfc/rfc\1#section-\2)", cites)


# --- what came of an exchange -----------------------------------------------------------------


def outcome(case: Case) -> tuple[str, str, str]:
    """Tell what reaches the replica and the client, and what becomes of their connections."""
    forwarded = list(_messages(case.forwarded))
    connections = f"{_ENDINGS[case.ending]}, {case.replica}"
    return _to_replica(case, forwarded), _to_client(case, forwarded), connections


def _to_replica(case: Case, forwarded: Sequence[Message]) -> str:
    if not forwarded:
        return "nothing"
    sent = b"".join(step for step in case.steps if isinstance(step, bytes))
    changes: dict[str, None] = {}  # each once, in order
    for after in forwarded:
        before, sent = _read(sent)
        own = rb"%b|X-Forwarded-Host: %b" % (_OF_REQUESTS, re.escape(before.field(b"host")))
        changes |= dict.fromkeys(_changes(case, before, after, own))
    count = len(forwarded)
    subject = {1: "the first goes on" if sent else "goes on", 2: "both go on"}.get(count, f"all {count} go on")
    return ", ".join([subject, *changes])


def _to_client(case: Case, forwarded: Iterable[Message]) -> str:
    replies = (_final(reply.data) for reply in case.script)
    told = []
    for answer in _messages(case.answered, [message.start.partition(b" ")[0] for message in forwarded]):
        status = answer.start[9:12].decode()
        if answer.interim:
            told.append(status)
        elif error := re.fullmatch(rb"<(\w+)>", answer.body):
            changes = _changes(case, replace(answer, lines=[]), answer, _OF_ERRORS)
            told.append(", ".join([f"{status} `{error[1].decode()}`", *changes]))
        else:
            told.append(", ".join([status, *_changes(case, next(replies), answer, _OF_ANSWERS)]))
    return "; ".join(told)


def _changes(case: Case, before: Message, after: Message, own: bytes) -> Iterator[str]:
    """Say how a message differs after; `own` is a pattern of the lines that are not worth a word."""
    gone = _missing(before.lines, after.lines, own)
    added = _missing(after.lines, before.lines, own)
    if after.start != before.start:
        yield f"as {quoted(after.start)}"
    if gone:
        named = quoted(b"\r\n".join(gone)) in case.name
        yield "without it" if named else f"without {', '.join(map(quoted, gone))}"
    if added:
        yield f"with {', '.join(map(_added, added))}"
    if after.body != before.body:
        yield f"body {quoted(after.body)}" if after.body else "no body"


def _missing(lines: Sequence[bytes], others: Sequence[bytes], own: bytes) -> list[bytes]:
    """Find the lines that are not among the others; those that are must be in the same order there."""
    shared = [line for line in lines if line in others]
    moved = b"transfer-encoding:"  # to where the router writes it
    assert [line for line in shared if not line.lower().startswith(moved)] == [
        line for line in others if line in lines and not line.lower().startswith(moved)
    ]
    return [line for line in lines if line not in others and not re.fullmatch(own, line)]


def _added(line: bytes) -> str:
    name, _, value = line.partition(b": ")
    return f"a new {quoted(name)}" if re.fullmatch(rb"<\d>", value) else quoted(line)


# --- the messages in it ----------------------------------------------------------------------

# What the router adds to each message, as patterns of lines.
_OF_REQUESTS: Final = rb"(?i:host:.*)|X-Forwarded-For: 127\.0\.0\.1|X-Forwarded-Proto: http|X-Request-Id: <\d>"
_OF_ANSWERS: Final = rb"X-Request-Id: <\d>|X-Router-Replica: r1|X-Router-Placement: new"
_OF_ERRORS: Final = rb"Content-Length: <n>|Content-Type: application/json|Connection: close"

_CHUNKS: Final = re.compile(rb"(?:.*?\r\n)?0+(?:;[^\r]*)?\r\n(?:[^\r]+\r\n)*\r\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer."""

    start: bytes
    lines: list[bytes]
    body: bytes

    @property
    def interim(self) -> bool:
        """Whether the answer is still to come."""
        return self.start.startswith(b"HTTP/1.1 1")

    def field(self, name: bytes) -> bytes:
        """Return the first value of a field, or nothing."""
        values = (line[len(name) + 1 :].strip() for line in self.lines if line.lower().startswith(name + b":"))
        return next(values, b"")


def _messages(data: bytes, methods: Iterable[bytes] = ()) -> Iterator[Message]:
    """Take messages apart; answers, to requests with these methods."""
    asked = iter(methods)
    method = next(asked, b"")
    while data:
        message, data = _read(data, method)
        if not message.interim:
            method = next(asked, b"")
        yield message


def _read(data: bytes, method: bytes = b"") -> tuple[Message, bytes]:
    """Read a message whose head is sound, and return what follows it."""
    message = _head(data)
    size = 0 if method == b"HEAD" else _size(message)
    return replace(message, body=message.body[:size]), message.body[size:]


def _final(data: bytes) -> Message:
    """Read a replica's answer, with all that comes after its head."""
    while (message := _head(data)).interim:
        data = message.body
    return message


def _head(data: bytes) -> Message:
    head, _, rest = data.lstrip(b"\r\n").partition(b"\r\n\r\n")
    start, *lines = head.split(b"\r\n")
    return Message(start, lines, rest)


def _size(message: Message) -> int:
    """Tell how much of what follows its head is a message's body."""
    length = message.field(b"content-length")
    if message.interim or re.match(rb"HTTP/1.1 (204|304)", message.start):
        return 0
    if message.field(b"transfer-encoding"):
        chunks = _CHUNKS.match(message.body)
        return chunks.end() if chunks else len(message.body)
    if length == b"<n>":  # of an error, whose body is its code
        return message.body.index(b">") + 1
    if length:
        return int(length)
    return len(message.body) if message.start.startswith(b"HTTP/") else 0
