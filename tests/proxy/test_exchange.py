"""Exchanges: sessions, what is sent when, second tries, clients that leave, deadlines, and whose fault it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h11
import pytest
from tests.support.rig import HIGH_WATER, Rig, Wire
from tests.support.scripts import CHUNKS, OLD, answer, request
from tests.support.witness import SeenResponse, read_requests, read_response

from pypto_serving_router.errors import ConnectFailed, OutOfDescriptors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypto_serving_router.proxy.exchange import Exchange

ASKED = request(body=b"{}")
GET = b"GET /v1/models HTTP/1.1"
HEADED = b"X-Session-Id: s1"  # nothing need be looked for in the body
BEGUN = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


def got(client: Wire, *, method: bytes = b"POST") -> SeenResponse:
    """Read the one answer a client got since the last time."""
    seen = read_response(client.take(), method=method)
    assert (seen.whole, seen.rest) == (True, b"")
    return seen


def answered(rig: Rig, sent: bytes, client: Wire | None = None) -> SeenResponse:
    """Send a request, let the replica answer it, and give the answer."""
    client, upstream = rig.ask(sent, client)
    upstream.send(answer())
    rig.turns.run()
    return got(client)


def assert_told(seen: SeenResponse, record: Exchange) -> None:
    """An answer of the router's own says what the record of it does: the request's id, where it was placed and why."""
    lease = record.lease
    placed = [] if lease is None else [lease.replica.id.encode()]
    why = [] if lease is None else [lease.placement.encode()]
    assert seen.values(b"x-request-id") == [record.request_id] != [b""]
    assert (seen.values(b"x-router-replica"), seen.values(b"x-router-placement")) == (placed, why)


def warm(rig: Rig) -> Wire:
    """Leave an idle connection to the replica, and give it."""
    _, upstream = rig.ask(ASKED)
    upstream.send(answer())
    rig.turns.run()
    upstream.take()
    return upstream


# --- sessions -------------------------------------------------------------------------------

MINTED = "%032x"


@pytest.mark.parametrize(
    ("sent", "session"),
    [
        (request(HEADED, body=b'{"session_id": "other"}'), b"s1"),
        (request(body=b'{"session_id": "s2"}'), b"s2"),
        (request(b"Content-Type: text/plain", body=b'{"a": {"session_id": "x"}, "session_id": "s2"}'), b"s2"),
        (request(b"Transfer-Encoding: chunked") + b'a\r\n{"session_\r\n9\r\nid":"s3"}\r\n0\r\n\r\n', b"s3"),
        (request(HEADED, HEADED, body=b"{}"), b"s1"),
        (request(HEADED, b"X-Session-Id: s2", body=b'{"session_id": "x"}'), None),
        (request(b"X-Session-Id: not usable", body=b'{"session_id": "x"}'), None),
        (request(b"X-Session-Id:", body=b'{"session_id": "x"}'), None),
        (request(body=b'{"session_id": "not usable"}'), None),
        (request(body=b'{"session_id": 5}'), None),
        (request(body=b"not JSON"), None),
        (request(), None),
    ],
)
def test_where_the_session_comes_from(rig: Rig, sent: bytes, session: bytes | None) -> None:
    """spec 3.1, 3.2, 3.3: the header wins, then the body's id, else one is made; the answer carries it."""
    client, upstream = rig.ask(sent)
    upstream.send(answer(b"X-Session-Id: theirs", b"x-session-id: too"))
    rig.turns.run()

    (value,) = got(client).values(b"x-session-id")

    assert value == (session or b"%032x" % 1)
    (seen,), _ = read_requests(upstream.got)
    given, _ = read_requests(sent)
    assert seen.values(b"x-session-id") == given[0].values(b"x-session-id")
    assert seen.body == given[0].body


def test_a_session_stays_with_its_replica(make_rig: Callable[..., Rig]) -> None:
    """spec 3.5, M5: later turns go where the first went, and the answer says where that was and why."""
    rig = make_rig(replicas=3)
    first = answered(rig, request(HEADED))
    for _ in range(2):
        answered(rig, request())

    second = answered(rig, request(HEADED))

    assert first.values(b"x-router-placement") == [b"new"]
    assert second.values(b"x-router-placement") == [b"affinity"]
    assert second.values(b"x-router-replica") == first.values(b"x-router-replica")


def test_other_methods_open_no_session(make_rig: Callable[..., Rig]) -> None:
    """spec 3.3, 4.1: a GET gets no id and leaves no pin; a known id sends it to its replica."""
    rig = make_rig(replicas=3)
    home = answered(rig, request(HEADED)).values(b"x-router-replica")

    assert answered(rig, request(start=GET)).values(b"x-session-id") == []
    assert answered(rig, request(b"X-Session-Id: unknown", start=GET)).values(b"x-session-id") == []
    known = answered(rig, request(HEADED, start=GET))

    assert (known.values(b"x-router-replica"), known.values(b"x-session-id")) == (home, [])
    assert (len(rig.routing.sessions), rig.routing.balancer.routed) == (1, 1)


def test_models_are_asked_of_whoever_is_there(make_rig: Callable[..., Rig]) -> None:
    """spec 4.1, H15: a GET goes to each routable replica in turn, and to none that is out."""
    rig = make_rig(replicas=3)
    rig.routing.balancer.set_ready(rig.replicas[0], False, rig.time)

    asked = [answered(rig, request(start=GET)).values(b"x-router-replica")[0] for _ in range(6)]

    assert sorted(asked) == [b"r2"] * 3 + [b"r3"] * 3


@pytest.mark.parametrize(
    ("sent", "session"),
    [(ASKED, b"%032x" % 1), (request(HEADED), b"s1"), (request(b"X-Session-Id: ?"), b"%032x" % 1)],
)
def test_errors_of_the_routers_carry_the_session(rig: Rig, sent: bytes, session: bytes) -> None:
    """spec 3.3, 4.7: 502 has the id the answer would have had."""
    client, upstream = rig.ask(sent)
    upstream.end()
    rig.turns.run()

    seen = got(client)

    assert (seen.status, seen.values(b"x-session-id")) == (502, [session])


def test_errors_of_the_routers_say_who_and_why(rig: Rig) -> None:
    """spec 3.3, 4.2, 4.7: a replica's error names it, and every one has the request's id, the client's own if any."""
    answered(rig, request(HEADED))
    client, upstream = rig.ask(request(HEADED, b"X-Request-Id: mine"))
    upstream.send(b"nonsense\r\n\r\n")
    rig.turns.run()
    broken = got(client)
    rig.routing.balancer.set_ready(rig.replicas[0], False, rig.time)
    client = rig.connect()
    client.send(request(start=GET))
    rejected = got(client, method=b"GET")

    told = [b"x-request-id", b"x-router-replica", b"x-router-placement"]
    assert [broken.values(name) for name in told] == [[b"mine"], [b"r1"], [b"affinity"]]
    assert_told(rejected, rig.records[-1])
    assert (rejected.status, rejected.values(b"x-session-id"), rejected.values(b"x-router-replica")) == (503, [], [])


def test_the_request_id_goes_both_ways(rig: Rig) -> None:
    """spec 4.2, H9: one id for replica and client, the client's own if it has one."""
    for line, expected in ((b"A: b", None), (b"X-Request-Id: mine", b"mine")):
        client, upstream = rig.ask(request(line))
        (seen,), _ = read_requests(upstream.take())
        upstream.send(answer())
        rig.turns.run()
        (value,) = seen.values(b"x-request-id")
        assert got(client).values(b"x-request-id") == [value]
        assert expected in (None, value)


# --- what is sent, and when -----------------------------------------------------------------


def test_a_body_is_buffered_only_for_its_session(rig: Rig) -> None:
    """spec 4.3: with the id in the head the body streams through; without, it waits until it can be looked at."""
    for lines, streams in (((HEADED,), True), ((), False)):
        client = rig.connect()
        client.send(request(*lines, b"Content-Length: 20") + b'{"session_')
        rig.turns.run()
        assert len(rig.upstreams) == streams
        client.send(b'id": "x1"}')
        rig.turns.run()
        upstream = rig.upstreams[-1]
        (seen,), _ = read_requests(upstream.got)
        assert seen.body == b'{"session_id": "x1"}'
        upstream.send(answer(b"Connection: close"))
        rig.turns.run()
        assert got(client).status == 200
        rig.upstreams.clear()


def test_chunks_for_a_1_0_client_end_its_connection(rig: Rig) -> None:
    """spec 4.8: it gets their content, whose end only the connection's can show, although it asked to stay."""
    client, upstream = rig.ask(request(b"Connection: keep-alive", start=OLD, body=b"{}"))
    upstream.send(STREAM + b"0\r\n\r\n")
    rig.turns.run()

    seen = read_response(client.got, ended=True)
    assert (seen.body, seen.values(b"connection"), client.half_closed) == (b"hello", [b"close"], True)


def test_a_streamed_body_arrives_piece_by_piece(rig: Rig) -> None:
    """spec 4.3: chunks are passed on as they come, without their trailers."""
    client, upstream = rig.ask(request(HEADED, b"Transfer-Encoding: chunked"))
    upstream.take()
    sent = CHUNKS

    for place in range(len(sent)):
        client.send(sent[place : place + 1])
        rig.turns.run()
        assert CHUNKS.startswith(upstream.got) or upstream.got.endswith(b"\r\n\r\n")

    assert upstream.got == CHUNKS.replace(b"Trailing: a\r\n", b"")


@pytest.mark.parametrize("lines", [(HEADED,), ()])
def test_a_slow_replica_holds_back_its_client(rig: Rig, lines: tuple[bytes, ...]) -> None:
    """spec 4.3, 4.4: what a replica does not take is not read from the client beyond a bound; then all arrives."""
    rig.stalling = True
    client, upstream = rig.ask(request(HEADED, b"Content-Length: 1000000"))

    for _ in range(100):
        client.send(b"x" * 10_000)
    rig.turns.run()
    assert not client.is_reading()
    assert upstream.unsent <= HIGH_WATER + 10_000 + 1000
    upstream.drain()
    rig.turns.run()

    (seen,), _ = read_requests(upstream.got)
    assert (seen.whole, len(seen.body), client.is_reading()) == (True, 1_000_000, True)
    upstream.send(answer())


def test_a_client_whose_body_is_whole_is_read_on_although_its_replica_is_slow(rig: Rig) -> None:
    """spec 4.5: what the replica has not taken yet is no reason not to see the client leave."""
    rig.stalling = True
    client, upstream = rig.ask(request(body=b"x" * 200_000))
    assert upstream.unsent > HIGH_WATER

    assert client.is_reading()
    client.end()
    rig.turns.run()

    assert (upstream.lost, rig.outcomes) == (True, [("client_left", 0)])


def test_a_replica_slow_from_its_first_byte_holds_back_its_client(rig: Rig) -> None:
    """spec 4.4: also when it is the bytes held while connecting that fill its connection."""
    rig.holding = rig.stalling = True
    client = rig.connect()
    client.send(request(HEADED, b"Content-Length: 1000000") + b"x" * 50_000)
    for _ in range(95):
        client.send(b"x" * 10_000)
    rig.turns.run()
    assert not client.is_reading()
    assert client.held >= 800_000

    rig.attempts[0].open()
    rig.turns.run()

    upstream = rig.upstreams[0]
    assert upstream.unsent <= HIGH_WATER + 20_000
    assert not client.is_reading()
    upstream.drain()
    rig.turns.run()
    assert read_requests(upstream.got)[0][0].whole
    upstream.send(answer())


def test_a_body_too_long_to_be_held_while_connecting(rig: Rig) -> None:
    """spec 4.4: what is read while the replica is connected to is bounded; the rest is read once it is there."""
    rig.holding = True
    client = rig.connect()
    client.send(request(HEADED, b"Content-Length: 300000"))
    for _ in range(30):
        client.send(b"x" * 10_000)
    rig.turns.run()
    assert client.held >= 200_000

    rig.attempts[0].open()
    rig.turns.run()

    assert read_requests(rig.upstreams[0].got)[0][0].whole
    rig.upstreams[0].send(answer())


def test_pieces_held_while_connecting_go_out_in_order(rig: Rig) -> None:
    """spec 4.3: what arrives while the replica is connected to is sent once it is there, and the rest after it."""
    rig.holding = True
    client = rig.connect()
    client.send(request(HEADED, b"Content-Length: 9") + b"abc")
    client.send(b"def")
    rig.turns.run()
    rig.attempts[0].open()
    rig.turns.run()
    client.send(b"ghi")

    (seen,), _ = read_requests(rig.upstreams[0].got)
    assert seen.body == b"abcdefghi"
    rig.upstreams[0].send(answer())


def test_an_early_answer(rig: Rig) -> None:
    """spec 4.4: an answer may come before the body is whole; neither connection is used again."""
    client, upstream = rig.ask(request(HEADED, b"Content-Length: 100") + b"x")

    upstream.send(answer(start=b"HTTP/1.1 413 Too Large", body=b"no"))
    rig.turns.run()
    client.send(b"x" * 99 + ASKED)
    rig.turns.run()

    seen = got(client)
    assert (seen.status, seen.values(b"connection")) == (413, [b"close"])
    assert (client.half_closed, upstream.lost, len(rig.attempts)) == (True, True, 1)


def test_an_early_answer_for_a_client_that_is_held_back(rig: Rig) -> None:
    """spec 4.8: it is read again, so that its end is seen, and what it still sends cannot destroy its answer."""
    rig.stalling = True
    client, upstream = rig.ask(request(HEADED, b"Content-Length: 1000000"))
    for _ in range(20):
        client.send(b"x" * 10_000)
    assert not client.is_reading()

    upstream.send(answer(start=b"HTTP/1.1 413 Too Large", body=b"no"))
    rig.turns.run()

    assert (got(client).status, client.is_reading(), client.held) == (413, True, 0)
    client.end()
    rig.turns.run()
    assert client.ended == "fin"


def test_a_body_goes_on_during_an_early_answer(rig: Rig) -> None:
    """spec 4.4: an answer that has begun does not stop the body that it answers."""
    client, upstream = rig.ask(request(HEADED, b"Content-Length: 4") + b"ab")
    upstream.send(STREAM)
    client.send(b"cd")
    upstream.send(b"0\r\n\r\n")
    rig.turns.run()

    (seen,), _ = read_requests(upstream.got)
    assert (seen.body, got(client).body, client.half_closed) == (b"abcd", b"hello", True)


# --- too large ------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [(HEADED,), ()])
@pytest.mark.parametrize(
    ("framing", "pieces"),
    [
        (b"Content-Length: 1001", [b""]),
        (b"Content-Length: 1001", [b"x" * 1001]),
        (b"Content-Length: 999999999999999999", [b""]),
        (b"Transfer-Encoding: chunked", [b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n"]),
        (b"Transfer-Encoding: chunked", [b"800\r\n", b"x" * 600, b"x" * 600]),
    ],
)
def test_a_body_that_is_too_large(
    make_rig: Callable[..., Rig], lines: tuple[bytes, ...], framing: bytes, pieces: list[bytes]
) -> None:
    """spec 1.2, 3.3, 4.7: 413, with the session's id, as soon as it shows; the replica's connection is closed."""
    rig = make_rig(max_body_size=1000)
    client = rig.connect()
    client.send(request(*lines, framing) + pieces[0])
    rig.turns.run()
    for piece in pieces[1:]:
        client.send(piece)
        rig.turns.run()

    seen = got(client)
    assert (seen.status, seen.values(b"x-session-id")) == (413, [b"s1" if lines else b"%032x" % 1])
    assert json.loads(seen.body)["error"]["code"] == "body_too_large"
    assert_told(seen, rig.records[-1])
    assert all(wire.lost for wire in rig.upstreams)
    assert rig.outcomes == [("refused", 413)]
    assert rig.faults == []


def test_a_body_of_the_largest_size(make_rig: Callable[..., Rig]) -> None:
    """spec 1.2: exactly `--max-body-size` bytes pass."""
    rig = make_rig(max_body_size=1000)

    assert answered(rig, request(body=b"x" * 1000)).status == 200


def test_too_large_during_an_early_answer(make_rig: Callable[..., Rig]) -> None:
    """spec 4.6, 4.7: once an answer has begun no other can be given: the connection is cut."""
    rig = make_rig(max_body_size=1000)
    client, upstream = rig.ask(request(HEADED, b"Transfer-Encoding: chunked"))
    upstream.send(STREAM)

    client.send(b"400\r\n" + b"x" * 1020)
    rig.turns.run()

    assert (client.ended, upstream.lost, rig.outcomes) == ("fin", True, [("refused", 200)])
    with pytest.raises(h11.RemoteProtocolError):
        read_response(client.got, ended=True)


# --- no replica -----------------------------------------------------------------------------


def test_no_replica_is_routable(make_rig: Callable[..., Rig]) -> None:
    """spec 3.3, 4.7, H16: 503 with Retry-After and the session's id, and no pin is left."""
    rig = make_rig(replicas=0)
    client = rig.connect()
    client.send(ASKED)

    seen = got(client)

    assert (seen.status, seen.values(b"retry-after")) == (503, [b"1"])
    assert seen.values(b"x-session-id") == [b"%032x" % 1]
    assert (len(rig.routing.sessions), rig.routing.balancer.rejected) == (0, 1)
    assert client.ended is None


@pytest.mark.parametrize("refused", [True, False])
def test_a_replica_that_cannot_be_connected_to(make_rig: Callable[..., Rig], refused: bool) -> None:
    """spec 4.6, 4.7, 5.4: 502 without another try, and the replica is to be looked at."""
    rig = make_rig(replicas=2)
    rig.holding = True
    client = rig.connect()
    client.send(ASKED)
    rig.turns.run()
    rig.attempts[0].fail(ConnectFailed("no connection", refused=refused))
    rig.turns.run()

    seen = got(client)

    assert (seen.status, len(seen.values(b"x-session-id")), client.ended) == (502, 1, None)
    assert json.loads(seen.body)["error"]["code"] == "upstream_unreachable"
    assert (len(rig.attempts), rig.faults) == (1, [("r1", "ConnectFailed", False)])
    assert rig.outcomes == [("upstream_failed", 502)]


@pytest.mark.parametrize(
    ("retries", "refusals", "expected"), [(0, 1, 502), (1, 1, 200), (1, 2, 502), (2, 2, 200), (5, 3, 502)]
)
def test_where_connects_are_refused_others_are_tried(
    make_rig: Callable[..., Rig], retries: int, refusals: int, expected: int
) -> None:
    """spec 4.6, F17: up to `--connect-retries` other replicas, each once; the session is pinned where it ends up."""
    rig = make_rig(replicas=3, connect_retries=retries)
    rig.holding = True
    client = rig.connect()
    client.send(request(HEADED, body=b"{}"))
    for number in range(refusals):
        rig.turns.run()
        rig.attempts[number].fail(ConnectFailed("no", refused=True))
    rig.turns.run()
    if expected == 200:
        rig.attempts[-1].open()
        rig.turns.run()
        (seen,), _ = read_requests(rig.upstreams[0].got)
        assert seen.body == b"{}"
        rig.upstreams[0].send(answer())
        rig.turns.run()

    assert got(client).status == expected
    tried = [attempt.replica.id for attempt in rig.attempts]
    assert len(set(tried)) == len(tried) == min(retries + 1, refusals + 1, 3)
    assert [fault for fault, *_ in rig.faults] == tried[:refusals]
    pinned = rig.routing.sessions.get("s1", rig.time)
    assert pinned is not None
    assert pinned.id == tried[-1]


def test_a_connect_that_times_out_is_not_tried_elsewhere(make_rig: Callable[..., Rig]) -> None:
    """spec 4.6: only a refusal proves that nothing was sent, and only that is worth another wait."""
    rig = make_rig(replicas=2, connect_retries=1)
    rig.holding = True
    client = rig.connect()
    client.send(ASKED)
    rig.turns.run()
    rig.attempts[0].fail(ConnectFailed("timed out"))
    rig.turns.run()

    assert (got(client).status, len(rig.attempts)) == (502, 1)


def test_no_descriptor_left(rig: Rig) -> None:
    """spec 4.10: 503 with Retry-After; the replica is not to blame."""
    rig.holding = True
    client = rig.connect()
    client.send(ASKED)
    rig.turns.run()
    rig.attempts[0].fail(OutOfDescriptors("none left"))
    rig.turns.run()

    seen = got(client)

    assert (seen.status, seen.values(b"retry-after"), rig.faults) == (503, [b"1"], [])


def test_a_fault_of_the_routers_own(rig: Rig) -> None:
    """spec 4.7: what nobody foresaw becomes 500, not a client that waits for ever, and is not hidden."""
    rig.holding = True
    client = rig.connect()
    client.send(ASKED)
    rig.turns.run()
    rig.attempts[0].fail(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        rig.turns.run()

    assert (got(client).status, rig.faults, rig.outcomes) == (500, [], [("refused", 500)])


# --- the second try -------------------------------------------------------------------------


@pytest.mark.parametrize("how", [Wire.end, Wire.reset])
@pytest.mark.parametrize("sent", [ASKED, request(HEADED, body=b"{}"), request(start=GET)])
def test_a_kept_connection_that_turns_out_to_be_closed(rig: Rig, sent: bytes, how: Callable[[Wire], None]) -> None:
    """spec 4.6, P1: the request is sent once more, to the same replica on a fresh connection; nobody is blamed."""
    stale = warm(rig)
    client, upstream = rig.ask(sent)
    assert upstream is stale

    how(stale)
    rig.turns.run()
    fresh = rig.upstreams[-1]
    assert fresh is not stale
    assert fresh.got == stale.got
    fresh.send(answer())
    rig.turns.run()

    assert (got(client).status, rig.faults, len(rig.attempts)) == (200, [], 2)
    assert rig.routing.balancer.routed == (1 if sent.startswith(b"GET") else 2)


def test_a_body_still_coming_is_sent_again_whole(rig: Rig) -> None:
    """spec 4.6: what was sent of a held body goes out again with what came meanwhile, in order."""
    stale = warm(rig)
    rig.holding = True
    client = rig.connect()
    client.send(request(HEADED, b"Content-Length: 6") + b"ab")
    client.send(b"cd")
    assert read_requests(stale.got)[0][0].body == b"abcd"
    stale.end()
    rig.turns.run()
    client.send(b"ef")
    rig.attempts[-1].open()
    rig.turns.run()

    (seen,), _ = read_requests(rig.upstreams[-1].got)
    assert (seen.body, seen.whole) == (b"abcdef", True)
    rig.upstreams[-1].send(answer())


def test_a_second_try_is_the_last(rig: Rig) -> None:
    """spec 4.6: a fresh connection that closes is a failed replica."""
    stale = warm(rig)
    client, _ = rig.ask(ASKED)
    stale.end()
    rig.turns.run()
    rig.upstreams[-1].end()
    rig.turns.run()

    assert (got(client).status, len(rig.attempts)) == (502, 2)
    assert rig.faults == [("r1", "UpstreamClosed", False)]


def test_a_second_try_that_cannot_connect(rig: Rig) -> None:
    """spec 4.6, 5.4: the replica went away between two requests: 502, and it is to be looked at."""
    stale = warm(rig)
    rig.holding = True
    client, _ = rig.ask(ASKED)
    stale.end()
    rig.turns.run()
    rig.attempts[-1].fail(ConnectFailed("refused", refused=True))
    rig.turns.run()

    assert (got(client).status, rig.faults) == (502, [("r1", "ConnectFailed", False)])


@pytest.mark.parametrize("why", ["a byte came", "102 came", "a second passed", "it was never kept", "nonsense came"])
def test_when_there_is_no_second_try(rig: Rig, why: str) -> None:
    """spec 4.6: what may have been worked on is not sent again."""
    if why != "it was never kept":
        warm(rig)
    client, upstream = rig.ask(ASKED)
    if why == "a byte came":
        upstream.send(b"H")
    elif why == "102 came":
        upstream.send(b"HTTP/1.1 102 Processing\r\n\r\n")
    elif why == "a second passed":
        rig.pass_time(1.01)
    elif why == "nonsense came":
        upstream.send(b"x")
    upstream.end()
    rig.turns.run()

    seen = read_response(client.got)
    assert (seen.status, len(rig.attempts), len(rig.faults)) == (502, 1, 1)


@pytest.mark.parametrize(
    "sent",
    [
        request(HEADED, b"Transfer-Encoding: chunked"),
        request(HEADED, b"Content-Length: 1048577"),
        request(HEADED, body=b"x" * 1_048_577),
        request(body=b"x" * 1_048_577),
    ],
)
def test_a_body_that_is_not_held_goes_out_on_a_fresh_connection(make_rig: Callable[..., Rig], sent: bytes) -> None:
    """spec 4.6: what is not kept for a second try, lest it fill the memory, is not risked on a kept connection."""
    rig = make_rig(max_body_size=1 << 30)
    kept = warm(rig)

    _, upstream = rig.ask(sent)

    assert upstream is not kept
    upstream.send(answer())
    rig.turns.run()


def test_a_second_try_for_a_full_client_is_held_back(rig: Rig) -> None:
    """spec 4.4: the fresh connection of a second try is paused and read again like any other."""
    warm(rig)
    client, upstream = rig.ask(ASKED + ASKED)
    client.stalled = True
    upstream.send(answer(body=b"x" * (HIGH_WATER + 1)))
    rig.turns.run()
    upstream.reset()
    rig.turns.run()
    fresh = rig.upstreams[-1]
    assert fresh is not upstream
    fresh.send(answer(body=b"y"))
    assert fresh.held > 0

    client.drain()
    rig.turns.run()

    first = read_response(client.got)
    assert read_response(first.rest).body == b"y"


# --- clients that leave ---------------------------------------------------------------------


@pytest.mark.parametrize("how", [Wire.end, Wire.reset])
@pytest.mark.parametrize(
    ("phase", "status"),
    [
        ("buffering", 0),
        ("connecting", 0),
        ("connecting with a body to come", 0),
        ("sending", 0),
        ("waiting", 0),
        ("waiting after 102", 0),
        ("waiting on a kept connection", 0),
        ("connecting again", 0),
        ("streaming", 200),
        ("silent", 200),
        ("full", 200),
        ("early answer", 200),
    ],
)
def test_a_client_that_leaves(rig: Rig, phase: str, status: int, how: Callable[[Wire], None]) -> None:
    """spec 4.5, D1, D2, D3, D7: in every phase its replica's connection closes at once, and its load is given back."""
    client = reach(rig, phase)

    how(client)
    rig.turns.run()

    assert client.lost
    assert all(wire.lost for wire in rig.upstreams)
    assert rig.outcomes[-1] == ("client_left", status)
    assert (rig.faults, rig.replicas[0].outstanding) == ([], 0)
    rig.holding = False
    assert answered(rig, ASKED).status == 200


def reach(rig: Rig, phase: str) -> Wire:
    """Bring an exchange to a phase, and give its client."""
    rest = request(HEADED, b"Content-Length: 10") + b"abc"
    if "kept" in phase or "again" in phase:
        warm(rig)
    rig.holding = phase.startswith("connecting")
    match phase:
        case "buffering":
            client = rig.connect()
            client.send(request(b"Content-Length: 10") + b"abc")
            return client
        case "connecting" | "waiting" | "waiting on a kept connection" | "connecting again":
            client = rig.connect()
            client.send(ASKED)
        case "connecting with a body to come" | "sending":
            client = rig.connect()
            client.send(rest)
        case "early answer":
            client, upstream = rig.ask(rest)
            upstream.send(STREAM)
        case _:
            client, upstream = rig.ask(ASKED)
            if phase == "waiting after 102":
                upstream.send(b"HTTP/1.1 102 Processing\r\n\r\n")
            elif phase == "silent":
                upstream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            else:
                client.stalled = phase == "full"
                upstream.send(STREAM)
                if phase == "full":
                    for _ in range(10):
                        upstream.send(b"3e80\r\n" + b"x" * 16_000 + b"\r\n")
                    assert not upstream.is_reading()
    if phase == "connecting again":
        rig.upstreams[-1].end()
    rig.turns.run()
    return client


def test_a_client_that_leaves_early_cancels_its_connect(rig: Rig) -> None:
    """spec 4.5: nothing is sent to a replica that is connected to only after the client has gone."""
    rig.holding = True
    client = rig.connect()
    client.send(ASKED)
    rig.turns.run()
    client.end()
    rig.turns.run()

    rig.attempts[0].open()
    rig.turns.run()

    assert rig.upstreams == []


def test_a_client_that_leaves_takes_what_it_pipelined_along(rig: Rig) -> None:
    """spec 4.5: requests that were held back are not started for somebody who has gone."""
    client, upstream = rig.ask(ASKED + ASKED)
    client.end()
    rig.turns.run()

    assert (len(rig.records), len(rig.attempts), upstream.lost) == (1, 1, True)


# --- deadlines ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "expected", "faults"),
    [
        ("buffering", 408, []),
        ("connecting", 504, ["UpstreamTimeout"]),
        ("sending", 504, ["UpstreamTimeout"]),
        ("waiting", 504, ["UpstreamTimeout"]),
        ("waiting after 102", 504, ["UpstreamTimeout"]),
        ("connecting again", 504, ["UpstreamTimeout"]),
    ],
)
def test_no_answer_in_time(make_rig: Callable[..., Rig], phase: str, expected: int, faults: list[str]) -> None:
    """spec 3.3, 4.7: 504 where no answer began within `--request-timeout`, 408 where the request took that long."""
    rig = make_rig(request_timeout=20.0)
    client = reach(rig, phase)
    before = len(rig.records)
    rig.pass_time(19.9)
    assert len(rig.records) == before

    rig.pass_time(0.2)

    seen = read_response(client.got)
    assert (seen.status, len(seen.values(b"x-session-id"))) == (expected, 1)
    assert_told(seen, rig.records[-1])
    assert [name for _, name, _ in rig.faults] == faults
    assert all(wire.lost for wire in rig.upstreams)
    assert rig.outcomes[-1] == ("refused" if expected == 408 else "timeout", expected)


@pytest.mark.parametrize(
    ("start", "sent", "ending"),
    [
        (b"POST /v1/x HTTP/1.1", BEGUN, "fin"),
        (b"POST /v1/x HTTP/1.1", STREAM, "fin"),
        (b"POST /v1/x HTTP/1.1", b"HTTP/1.1 200 OK\r\n\r\nhello", "rst"),
        (OLD, BEGUN, "fin"),
        (OLD, STREAM, "rst"),
    ],
)
def test_an_answer_that_takes_too_long(make_rig: Callable[..., Rig], start: bytes, sent: bytes, ending: str) -> None:
    """spec 4.6, 4.7: mid-stream the timeout cuts the answer, so that the client can tell; the replica isn't blamed."""
    rig = make_rig(request_timeout=20.0)
    client, upstream = rig.ask(request(start=start, body=b"{}"))
    upstream.send(sent)

    rig.pass_time(20.1)

    assert (client.ended, upstream.lost) == (ending, True)
    assert (rig.outcomes, rig.faults) == ([("timeout", 200)], [])


def test_a_cut_that_the_client_does_not_take_is_forced(make_rig: Callable[..., Rig]) -> None:
    """spec 4.10: a client that reads nothing cannot keep a cut connection open for ever."""
    rig = make_rig(request_timeout=20.0)
    client, upstream = rig.ask(ASKED)
    client.stalled = True
    upstream.send(STREAM)
    rig.pass_time(20.1)
    assert not client.lost

    rig.pass_time(5.1)  # it may be slow: it is given the time of an idle connection once
    rig.pass_time(75.1)

    assert client.lost


def test_a_steady_stream_is_not_cut(make_rig: Callable[..., Rig]) -> None:
    """spec 4.10: no other deadline runs during an answer: an engine may be silent for long between two tokens."""
    rig = make_rig(request_timeout=3600.0)
    client, upstream = rig.ask(ASKED)
    upstream.send(STREAM)
    for _ in range(30):
        rig.pass_time(100)
        upstream.send(b"1\r\nx\r\n")
    upstream.send(b"0\r\n\r\n")
    rig.turns.run()

    assert got(client).body == b"hello" + b"x" * 30
    assert (sum(rig.gaps.counts), rig.gaps.sum) == (31, 3000.0)


# --- a replica that is being stopped --------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("connecting", 502), ("sending", 502), ("waiting", 502), ("streaming", 0), ("buffering", None)],
)
def test_a_replica_that_is_stopped_under_an_exchange(rig: Rig, phase: str, expected: int | None) -> None:
    """spec 7.8: what still waits for a replica when it is stopped ends at once; others go on."""
    client = reach(rig, phase)
    for handler in rig.frontend.handlers():
        handler.replica_gone(rig.replicas[0])  # type: ignore[attr-defined] # all are exchanges
    rig.turns.run()

    if expected is None:
        assert (client.got, rig.records) == (b"", [])
    elif expected:
        seen = read_response(client.got)
        assert seen.status == expected
        assert_told(seen, rig.records[-1])
    else:
        assert (client.ended, rig.outcomes) == ("fin", [("upstream_cut", 200)])
    assert rig.faults == []


def test_a_replica_that_is_stopped_leaves_others_exchanges_alone(make_rig: Callable[..., Rig]) -> None:
    """spec 7.8: only what waits for that replica ends."""
    rig = make_rig(replicas=2)
    client, upstream = rig.ask(ASKED)
    (handler,) = rig.frontend.handlers()
    gone = next(replica for replica in rig.replicas if not replica.outstanding)

    handler.replica_gone(gone)  # type: ignore[attr-defined] # it is an exchange
    upstream.send(answer())
    rig.turns.run()

    assert got(client).status == 200


# --- the record -----------------------------------------------------------------------------


def test_the_record_of_an_exchange(rig: Rig) -> None:
    """spec 9: times, bytes and outcome are those of the exchange."""
    rig.holding = True
    client = rig.connect()
    client.send(request(HEADED, b"Content-Length: 4") + b"ab")
    rig.turns.run()
    rig.time += 1
    rig.attempts[0].open()
    rig.turns.run()
    rig.time += 1
    client.send(b"cd")
    rig.upstreams[0].send(STREAM)
    rig.time += 1
    rig.upstreams[0].send(b"0\r\n\r\n")
    rig.turns.run()

    (record,) = rig.records
    found: dict[str, Any] = {name: getattr(record, name) for name in ("outcome", "status", "received", "session")}
    assert found == {"outcome": "complete", "status": 200, "received": 4, "session": "s1"}
    assert record.relayed == len(b"5\r\nhello\r\n0\r\n\r\n")
    times = (record.started, record.placed, record.sent, record.first_byte, record.ended)
    assert times == (1000.0, 1000.0, 1001.0, 1002.0, 1003.0)
    assert "s1" not in repr(record)
