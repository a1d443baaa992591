"""The chunked coding: however the bytes are cut, the scanner finds what h11 finds, and refuses what is malformed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.witness import read_requests

from pypto_serving_router.core.chunks import ChunkError, ChunkScanner, dechunk

BODY = b"5\r\nhello\r\n00A;x=y\r\n0123456789\r\n1\r\n\r\r\n2;\r\n\r\n\r\n0;last\r\nA: b\r\nC:\r\n\r\n"
RELAYED = b"5\r\nhello\r\n00A;x=y\r\n0123456789\r\n1\r\n\r\r\n2;\r\n\r\n\r\n0;last\r\n"
CONTENT = b"hello0123456789\r\r\n"

MALFORMED = {
    "no size": b"\r\n",
    "no size, extension": b";a\r\n",
    "not hexadecimal": b"g\r\n",
    "0x": b"0x5\r\nhello\r\n",
    "plus": b"+5\r\nhello\r\n",
    "minus": b"-5\r\nhello\r\n",
    "underscore": b"1_0\r\n",
    "space before": b" 5\r\nhello\r\n",
    "space after": b"5 \r\nhello\r\n",
    "tab after": b"5\t\r\nhello\r\n",
    "space before the extension": b"5 ;a\r\nhello\r\n",
    "size too long": b"0000000000000005\r\nhello\r\n",
    "huge size": b"fffffffffffffffff\r\n",
    "bare LF after the size": b"5\nhello\r\n",
    "bare CR after the size": b"5\rhello\r\n",
    "CR CR LF after the size": b"5\r\r\nhello\r\n",
    "bare LF in an extension": b"5;a\nhello\r\n",
    "bare CR in an extension": b"5;a\rb\r\nhello\r\n",
    "NUL in an extension": b"5;a\0\r\nhello\r\n",
    "quoted line end in an extension": b'5;a="\n"\r\nhello\r\n',
    "size line too long": b"5;" + b"a" * 2000 + b"\r\nhello\r\n",
    "size line that never ends": b"5;" + b"a" * 2000,
    "chunk too short": b"6\r\nhello\r\n0\r\n\r\n",
    "chunk too long": b"4\r\nhello\r\n0\r\n\r\n",
    "no CR after the chunk": b"5\r\nhello\n0\r\n\r\n",
    "CR and no LF after the chunk": b"5\r\nhello\r0\r\n\r\n",
    "LF CR after the chunk": b"5\r\nhello\n\r0\r\n\r\n",
    "empty line between chunks": b"5\r\nhello\r\n\r\n0\r\n\r\n",
    "bare LF after the last size": b"0\n\r\n",
    "bare LF at the end": b"0\r\n\n",
    "bare LF after a trailer": b"0\r\nA: b\n\r\n",
    "trailer without a colon": b"0\r\nA\r\n\r\n",
    "trailer without a name": b"0\r\n: b\r\n\r\n",
    "trailer with a space before the colon": b"0\r\nA : b\r\n\r\n",
    "length in a trailer": b"0\r\nContent-Length: 5\r\n\r\n",
    "coding in a trailer": b"0\r\nA: b\r\ntransfer-Encoding: chunked\r\n\r\n",
    "folded trailer": b"0\r\nA: b\r\n c\r\n\r\n",
    "trailer with NUL": b"0\r\nA: \0\r\n\r\n",
    "trailer with a bare CR": b"0\r\nA: b\rc\r\n\r\n",
    "trailers too long": b"0\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    "trailer that never ends": b"0\r\nA:" + b"b" * 70_000,
}


def scan(pieces: list[bytes]) -> tuple[bytes, bytes, bytes]:
    """Feed pieces as a connection does; give what is relayed, what the chunks hold, and what follows the body."""
    scanner = ChunkScanner()
    scanner.content = []
    relayed = b""
    for index, piece in enumerate(pieces):
        cut = scanner.feed(piece)
        assert 0 <= cut <= len(piece)
        relayed += piece[:cut]
        if scanner.end >= 0:
            return relayed + b"\r\n", b"".join(scanner.content), b"".join([piece[scanner.end :], *pieces[index + 1 :]])
    raise AssertionError("the end was not found")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes in pieces."""
    bounds = [0, *sorted(places), len(data)]
    return [data[start:stop] for start, stop in pairwise(bounds) if stop > start]


@pytest.mark.parametrize("rest", [b"", b"0\r\n\r\n", b"GET /", b"\r\n"])
def test_every_cut_in_two(rest: bytes) -> None:
    """spec 4.4, 4.8: wherever the bytes are cut, the same is relayed, and what follows begins at the same byte."""
    for place in range(len(BODY + rest)):
        assert scan(cut(BODY + rest, [place])) == (RELAYED + b"\r\n", CONTENT, rest)


def test_every_cut_in_three() -> None:
    """spec 4.4: as above, with two cuts."""
    for first in range(len(BODY)):
        for second in range(first, len(BODY)):
            assert scan(cut(BODY, [first, second]))[:2] == (RELAYED + b"\r\n", CONTENT)


def test_byte_by_byte() -> None:
    """spec 4.4: as above, with every possible cut."""
    assert scan([BODY[at : at + 1] for at in range(len(BODY))]) == (RELAYED + b"\r\n", CONTENT, b"")


def test_nothing_is_held_back() -> None:
    """spec 4.4: what came of a chunk is relayed at once, not when it is whole."""
    scanner = ChunkScanner()

    for piece in cut(b"5\r\nhello\r\n5\r\nhel", [1, 2, 4, 8, 11]):
        assert scanner.feed(piece) == len(piece)


def test_it_starts_where_it_is_told() -> None:
    """spec 4.3: the body may begin in the middle of what a read gave."""
    scanner = ChunkScanner()

    assert scanner.feed(b"head" + BODY + b"rest", 4) == 4 + len(RELAYED)
    assert scanner.end == 4 + len(BODY)


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_bodies_are_refused_wherever_they_are_cut(body: bytes) -> None:
    """spec 4.8: a bad size, extension, chunk end or trailer is refused, in one piece and in any two."""
    places = range(len(body)) if len(body) < 100 else [0, 1, 2, 3, 1023, 1024, 1025, len(body) - 2]
    for place in places:
        with pytest.raises(ChunkError):
            scan(cut(body, [place]))


def test_sizes_up_to_the_limits_are_read() -> None:
    """spec 4.8: what is unusual and unambiguous passes: zeros, upper case, long extensions, many trailers."""
    plain = (
        b"000000000000005;" + b"a" * 900 + b"\r\nhello\r\n00A\r\n0123456789\r\n000\r\n" + b"A: b\r\n" * 9000 + b"\r\n"
    )

    assert scan([plain])[1:] == (b"hello0123456789", b"")


def test_a_refusal_does_not_depend_on_what_was_seen_before() -> None:
    """spec 4.8: sizes are remembered; malformed ones are not."""
    for body in (b"5 \r\n", b"5\n", b"5;\0\r\n"):
        for _ in range(2):
            scan([b"5\r\nhello\r\n0\r\n\r\n"])
            with pytest.raises(ChunkError):
                ChunkScanner().feed(body)


def test_trailers_are_dropped() -> None:
    """spec 4.8: trailer fields end at the router, those too that would mean something."""
    sent = b"0\r\nHost: elsewhere\r\nAuthorization: all\r\nX-Session-Id: s\r\n\r\n"

    for place in range(len(sent)):
        assert scan(cut(sent, [place])) == (b"0\r\n\r\n", b"", b"")


def test_dechunk_wants_the_whole_body() -> None:
    """spec 3.1: the content of a buffered body is that of all its chunks."""
    assert dechunk(RELAYED + b"\r\n") == CONTENT
    with pytest.raises(ChunkError):
        dechunk(RELAYED)
    with pytest.raises(ChunkError):
        dechunk(b"x")


extensions = st.sampled_from([b"", b";", b";a", b";a=b", b';a="b;c"'])
chunks = st.tuples(st.binary(min_size=1, max_size=40), extensions, st.sampled_from(["%x", "%X", "0%x", "000%X"]))
trailers = st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nC-d:\r\n"])


@given(st.lists(chunks, max_size=8), extensions, trailers, st.binary(max_size=20), st.data())
def test_whatever_the_cuts_it_finds_what_the_witness_finds(
    parts: list[tuple[bytes, bytes, str]], last: bytes, trailer: bytes, rest: bytes, data: st.DataObject
) -> None:
    """spec 4.8: content, end and remainder are those that h11 finds, and what is relayed h11 reads the same."""
    body = b"".join((form % len(piece)).encode() + ext + b"\r\n" + piece + b"\r\n" for piece, ext, form in parts)
    body += b"0" + last + b"\r\n" + trailer + b"\r\n"
    places = data.draw(st.lists(st.integers(0, len(body + rest)), max_size=12))

    relayed, content, follows = scan(cut(body + rest, places))

    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    (seen,), readable = read_requests(head + body)
    (again,), _ = read_requests(head + relayed)
    assert readable
    assert content == seen.body == again.body == b"".join(piece for piece, *_ in parts)
    assert (seen.whole, again.whole, follows) == (True, True, rest)


@given(st.data())
@example(None)
def test_of_any_bytes_what_is_accepted_the_witness_reads_in_the_same_way(data: st.DataObject | None) -> None:
    """spec 4.8: a changed body is refused, or h11 finds in it what the scanner found."""
    body = bytearray(BODY)
    for _ in range(0 if data is None else data.draw(st.integers(1, 4))):
        assert data is not None
        at = data.draw(st.integers(0, len(body)))
        gone = data.draw(st.sampled_from([0, 1, 2, 5]))
        body[at : at + gone] = data.draw(
            st.sampled_from([b"", b"\r", b"\n", b"\r\n", b"0", b"5", b"f", b";", b" ", b"\0", b"A: b", b"x", b'"'])
        )
    scanner = ChunkScanner()
    scanner.content = []
    try:
        relayed = bytes(body)[: scanner.feed(bytes(body))]
    except ChunkError:
        return

    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    sent = bytes(body) if scanner.end < 0 else bytes(body)[: scanner.end]
    (seen,), readable = read_requests(head + sent)
    (again,), _ = read_requests(head + relayed + (b"\r\n" if scanner.end >= 0 else b""))
    assert readable
    assert (seen.whole, again.whole) == (scanner.end >= 0,) * 2
    assert seen.body == again.body == b"".join(scanner.content)
