"""The replica's side: answers relayed as they come, wherever they are cut, and replicas that do something wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.conversation import Script, converse, cut
from tests.support.rig import HIGH_WATER, Rig, Wire
from tests.support.scripts import EVENTS, OLD, SCRIPTS, answer, request
from tests.support.witness import read_response

from pypto_serving_router.core.head import MAX_HEAD

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED = request(body=b"{}")
BEGUN = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\nhello"


def test_scripts_are_what_they_claim() -> None:
    """spec 4.8: of the exchanges used here, each comes to its end, and h11 reads every answer that a client gets."""
    for name, script in SCRIPTS.items():
        account = converse(script)
        assert [outcome for outcome, _ in account.outcomes if outcome != "refused"] == ["complete"] * len(
            script.answers
        )
        rest = account.client
        for _ in script.answers:
            method = script.sent.lstrip().split(b" ")[0] if name != "pipelined" else b"GET"
            seen = read_response(rest, method=method, ended=account.ending is not None)
            assert seen.whole, name
            rest = seen.rest


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_every_cut_of_what_the_replica_sends(script: Script) -> None:
    """spec 4.4: however an answer's bytes arrive, the client gets the same, and the connections end the same."""
    whole = converse(script)
    longest = max(map(len, script.answers), default=0)

    for place in range(1, longest):
        assert converse(script, [], [place]) == whole, f"cut at {place}"
    assert converse(script, [], range(longest)) == whole


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.sampled_from([b"", b";a=b"])), max_size=6),
    st.sampled_from([b"", b"A: b\r\n"]),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0"]),
    st.lists(st.integers(1, 300), max_size=10),
)
def test_any_chunked_answer_in_any_pieces(
    chunks: list[tuple[bytes, bytes]], trailer: bytes, version: bytes, places: list[int]
) -> None:
    """spec 4.4, 4.8: content arrives whole and in order, for clients that read chunks and for those that can't."""
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece, extension in chunks)
    sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"
    script = Script(request(start=b"POST /v1/x " + version, body=b"{}"), [sent])

    account = converse(script, [], places)

    seen = read_response(account.client, ended=account.ending is not None)
    assert seen.body == b"".join(piece for piece, _ in chunks)
    assert (seen.whole, seen.rest, account.kept) == (True, b"", {True})
    assert (account.ending, bool(seen.values(b"transfer-encoding"))) == (
        (None, True) if version == b"HTTP/1.1" else ("half", False)
    )


def test_what_one_read_gave_is_one_write(rig: Rig) -> None:
    """spec 4.4: bytes go on in the pieces they came in, each in the turn in which it came."""
    client, upstream = rig.ask(ASKED)
    upstream.send(STREAM)
    pieces = [b"3\r\nabc\r\n", b"5\r", b"\nhel", b"lo\r\n4\r\nabcd\r\n2\r\nab", b"\r\n"]

    for piece in pieces:
        before = len(client.writes)
        upstream.send(piece)
        assert client.writes[before:] == [piece]


def test_the_head_goes_with_what_came_with_it(rig: Rig) -> None:
    """spec 4.4: the beginning of a short answer is one write, not two."""
    client, upstream = rig.ask(ASKED)

    upstream.send(answer(body=b"fine"))

    assert len(client.writes) == 1


def test_the_bytes_of_a_body_are_not_touched(rig: Rig) -> None:
    """spec 4.4, H14: nothing is decoded, decompressed or cut short."""
    body = bytes(range(256)) * 500
    client, upstream = rig.ask(ASKED)

    for piece in cut(answer(b"Content-Encoding: gzip", body=body), [50, 70, 1000, 66_000]):
        upstream.send(piece)

    seen = read_response(client.got)
    assert (seen.body, seen.values(b"content-encoding")) == (body, [b"gzip"])


# --- whether the connection is used again ---------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (answer(body=b"fine"), True),
        (answer(), True),
        (EVENTS, True),
        (answer(b"Connection: close", body=b"fine"), False),
        (answer(b"Connection: keep-alive", start=b"HTTP/1.0 200 OK", body=b"fine"), True),
        (answer(start=b"HTTP/1.0 200 OK", body=b"fine"), False),
        (answer(body=b"fine") + b"x", False),
        (answer() + b"\r\n", False),
        (EVENTS + b"x", False),
        (answer(body=b"fine") + answer(body=b"more"), False),
        (b"HTTP/1.1 204 No Content\r\n\r\nx", False),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1\r\n\r\nx", False),
    ],
)
@pytest.mark.parametrize("late", [0, 1, 2, 4, 6])
def test_which_connections_are_used_again(rig: Rig, sent: bytes, kept: bool, late: int) -> None:
    """spec 4.6, 4.8: one that is to close, or on which more came than the answer, carries no second exchange."""
    client, upstream = rig.ask(ASKED)
    for piece in cut(sent, [len(sent) - late]):
        upstream.send(piece)
    rig.turns.run()

    _, again = rig.ask(ASKED, client)

    assert (again is upstream) is kept
    assert upstream.lost is not kept
    assert read_response(client.got).rest == b""


def test_a_replica_that_speaks_while_idle_is_not_listened_to(rig: Rig) -> None:
    """spec 4.8: bytes that nobody asked for cannot become the next client's answer."""
    client, upstream = rig.ask(ASKED)
    upstream.send(answer(body=b"mine"))
    upstream.send(answer(body=b"evil"))

    _, again = rig.ask(ASKED, client)
    again.send(answer(body=b"good"))

    assert upstream.lost
    first = read_response(client.got)
    assert (first.body, read_response(first.rest).body) == (b"mine", b"good")


@pytest.mark.parametrize("how", [Wire.end, Wire.reset])
def test_a_connection_that_closes_while_idle_is_forgotten(rig: Rig, how: Callable[[Wire], None]) -> None:
    """spec 4.6, P1: what a replica has closed is not handed out, and costs nobody anything."""
    client, upstream = rig.ask(ASKED)
    upstream.send(answer())
    how(upstream)
    rig.turns.run()
    assert (rig.pool.open, rig.pool.idle) == (0, 0)

    _, again = rig.ask(ASKED, client)
    again.send(answer())
    rig.turns.run()

    assert again is not upstream
    assert (rig.pool.open, rig.pool.idle, rig.faults) == (1, 1, [])


def test_a_connection_is_not_used_in_the_turn_of_its_end(rig: Rig) -> None:
    """spec 4.6, P1: once the replica's end was seen nothing more is sent there, lost though it is not yet."""
    client, upstream = rig.ask(ASKED)
    upstream.send(answer())
    upstream.take()

    upstream.end()
    client.send(ASKED)
    rig.turns.run()

    assert (upstream.got, upstream.wasted, len(rig.upstreams)) == (b"", 0, 2)


def test_a_connection_in_whose_buffers_a_request_is_stuck_is_not_used_again(rig: Rig) -> None:
    """spec 4.4: where the replica answered without taking the request's body, nothing more is put on top of it."""
    rig.stalling = True
    client, upstream = rig.ask(request(body=b"x" * (HIGH_WATER + 1)))

    upstream.send(answer(body=b"enough"))
    rig.turns.run()

    assert (upstream.lost, rig.pool.idle) == (True, 0)
    assert read_response(client.got).body == b"enough"


# --- interim answers ------------------------------------------------------------------------


def test_interim_answers_are_passed_on_to_those_who_can_read_them(rig: Rig) -> None:
    """spec 4.8: 1xx reach 1.1 clients, but for the 100 that the router answers itself; 1.0 clients get none."""
    for start, expected in ((b"POST /v1/x HTTP/1.1", [102, 103]), (OLD, [])):
        client, upstream = rig.ask(request(start=start, body=b"{}"))
        for status in (100, 102, 103):
            upstream.send(b"HTTP/1.1 %d x\r\nA: b\r\nConnection: keep-alive\r\n\r\n" % status)
        upstream.send(answer(body=b"fine"))
        rig.turns.run()

        seen = read_response(client.got)
        assert seen.interim == [(status, [(b"a", b"b")]) for status in expected]
        assert seen.body == b"fine"


def test_an_exchange_leaves_nothing_to_the_next(rig: Rig) -> None:
    """spec 4.8: on one connection, chunks for a 1.0 client and for a 1.1 client, and ever more interim answers."""
    chunks = b"HTTP/1.1 102 x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    for number in range(40):
        version = b"1.0" if number % 2 else b"1.1"
        client, upstream = rig.ask(request(start=b"POST /v1/x HTTP/" + version, body=b"{}"))
        upstream.send(chunks)
        rig.turns.run()
        assert read_response(client.got, ended=client.half_closed).body == b"ok"

    assert len(rig.upstreams) == 1


@pytest.mark.parametrize(
    "sent",
    [b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", b"HTTP/1.1 102 x\r\n\r\n" * 17, b"HTTP/1.1 103 x\r\n\r\n" * 17],
)
def test_interim_answers_without_end(rig: Rig, sent: bytes) -> None:
    """spec 4.8: a switch of protocols that nobody asked for, or a flood of 1xx, is no answer."""
    client, upstream = rig.ask(ASKED)

    upstream.send(sent)
    rig.turns.run()

    assert read_response(client.got).status == 502
    assert upstream.ended == "fin"
    assert rig.faults == [("r1", "UpstreamProtocolError", False)]


# --- replicas that do something wrong -------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"\0",
        b"\r\n" + answer(),
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"a" * MAX_HEAD,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 129 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ],
)
def test_what_is_no_answer_becomes_502(rig: Rig, sent: bytes) -> None:
    """spec 4.7, 4.8: a malformed or ambiguous head does not reach the client, and the replica's fault is told."""
    client, upstream = rig.ask(ASKED)

    upstream.send(sent)
    rig.turns.run()

    seen = read_response(client.got)
    assert (seen.status, seen.whole, seen.rest) == (502, True, b"")
    assert len(seen.values(b"x-session-id")) == 1
    assert (upstream.lost, rig.faults) == (True, [("r1", "UpstreamProtocolError", False)])
    assert rig.outcomes == [("upstream_failed", 502)]
    assert client.ended is None


@pytest.mark.parametrize("how", [Wire.end, Wire.reset])
@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", b"HTTP/1.1 102 x\r\n\r\n"]
)
def test_a_replica_that_breaks_off_before_its_answer(rig: Rig, sent: bytes, how: Callable[[Wire], None]) -> None:
    """spec 4.7, 5.4: 502 with the session's id, and the replica is to be looked at."""
    client, upstream = rig.ask(ASKED)
    if sent:
        upstream.send(sent)

    how(upstream)
    rig.turns.run()

    seen = read_response(client.got)
    assert (seen.status, len(seen.values(b"x-session-id"))) == (502, 1)
    assert rig.faults == [("r1", "UpstreamClosed", False)]
    assert len(rig.attempts) == 1


@pytest.mark.parametrize("how", [Wire.end, Wire.reset])
@pytest.mark.parametrize(
    ("start", "sent", "ending"),
    [
        (b"POST /v1/x HTTP/1.1", BEGUN, "fin"),
        (b"POST /v1/x HTTP/1.1", STREAM, "fin"),
        (b"POST /v1/x HTTP/1.1", STREAM + b"5\r\nhel", "fin"),
        (b"POST /v1/x HTTP/1.1", STREAM + b"0\r\n", "fin"),
        (OLD, BEGUN, "fin"),
        (OLD, STREAM, "rst"),
    ],
)
def test_a_replica_that_breaks_off_in_its_answer(
    rig: Rig, start: bytes, sent: bytes, ending: str, how: Callable[[Wire], None]
) -> None:
    """spec 4.6, 5.4, S3, S6: the client can tell that its answer was cut: by the framing, or else by a reset."""
    client, upstream = rig.ask(request(start=start, body=b"{}"))
    upstream.send(sent)

    how(upstream)
    rig.turns.run()

    assert client.ended == ending
    if ending == "fin":
        with pytest.raises(h11.RemoteProtocolError):
            read_response(client.got, ended=True)
    assert rig.faults == [("r1", "UpstreamClosed", True)]
    assert rig.outcomes == [("upstream_cut", 200)]


def test_an_answer_until_the_end_that_is_reset(rig: Rig) -> None:
    """spec 4.6: where only the end of the connection ends the answer, a reset is passed on as one."""
    client, upstream = rig.ask(ASKED)
    upstream.send(ENDLESS)

    upstream.reset()
    rig.turns.run()

    assert (client.ended, rig.outcomes) == ("rst", [("upstream_cut", 200)])


@pytest.mark.parametrize(("start", "ending"), [(b"POST /v1/x HTTP/1.1", "fin"), (OLD, "rst")])
@pytest.mark.parametrize("sent", [b"x\r\n", b"5\r\nhello!\r\n", b"5\nhello", b"0\r\nA\r\n\r\n", b"0\r\n\n"])
def test_a_stream_that_is_malformed(rig: Rig, start: bytes, ending: str, sent: bytes) -> None:
    """spec 4.6, 4.8: what is no chunk ends the answer without its last chunk."""
    client, upstream = rig.ask(request(start=start, body=b"{}"))
    upstream.send(STREAM)

    upstream.send(sent)
    rig.turns.run()

    assert (client.ended, upstream.lost) == (ending, True)
    assert b"0\r\n\r\n" not in client.got
    assert rig.faults == [("r1", "UpstreamProtocolError", True)]


# --- backpressure ---------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [BEGUN.replace(b"10", b"900005"), ENDLESS, STREAM])
@pytest.mark.parametrize("start", [b"POST /v1/x HTTP/1.1", OLD])
def test_a_client_that_stops_reading_stops_its_replica(rig: Rig, begun: bytes, start: bytes) -> None:
    """spec 4.4: while the client takes nothing the replica is not read; what is held is bounded; then all arrives."""
    client, upstream = rig.ask(request(start=start, body=b"{}"))
    upstream.send(begun)
    client.stalled = True
    chunk = b"2328\r\n" + b"x" * 9000 + b"\r\n" if begun is STREAM else b"x" * 9000

    for _ in range(100):
        upstream.send(chunk)
    assert not upstream.is_reading()
    assert client.unsent <= HIGH_WATER + len(chunk)
    client.drain()
    rig.turns.run()

    assert (upstream.is_reading(), upstream.held) == (True, 0)
    if begun is STREAM:
        upstream.send(b"0\r\n\r\n")
    elif begun is ENDLESS:
        upstream.end()
    rig.turns.run()
    seen = read_response(client.got, ended=client.half_closed)
    assert (seen.whole, seen.body) == (True, b"hello" + b"x" * 900_000)


def test_a_connection_is_not_kept_paused(rig: Rig) -> None:
    """spec 4.4: an answer that fills a slow client's buffer to its end leaves a connection that is read."""
    client, upstream = rig.ask(ASKED)
    client.stalled = True
    upstream.send(answer(body=b"x" * (HIGH_WATER + 1)))
    rig.turns.run()

    assert (upstream.is_reading(), rig.pool.idle) == (True, 1)


def test_the_next_answer_for_a_full_client_waits(rig: Rig) -> None:
    """spec 4.4: a client still full from one answer holds back the replica of the next from its first byte."""
    client, upstream = rig.ask(ASKED + ASKED)
    client.stalled = True
    upstream.send(answer(body=b"x" * (HIGH_WATER + 1)))
    rig.turns.run()

    upstream.send(answer(body=b"y"))
    assert upstream.held > 0
    client.drain()
    rig.turns.run()

    first = read_response(client.got)
    assert (len(first.body), read_response(first.rest).body) == (HIGH_WATER + 1, b"y")
