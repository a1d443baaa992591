"""Exchanges in a hostile world: clients, replicas and the clock do what they like, and the books must balance."""

from __future__ import annotations

import h11
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.rig import HIGH_WATER, Rig, Wire
from tests.support.witness import read_requests, read_response

from pypto_serving_router.errors import ConnectFailed

LARGE = 70_000  # more than is read while a replica is being connected to
_BOUND = HIGH_WATER + 64 * 1024 + 2 * LARGE + 4096  # a full transport, what was held while connecting, one read

POST = b"POST /v1/%b HTTP/1.1\r\nHost: a\r\n"
OLD = b"POST /v1/%b HTTP/1.0\r\nContent-Length: 2\r\n"
X = b"x" * LARGE
REQUESTS = [
    b"GET /v1/%b HTTP/1.1\r\nHost: a\r\n\r\n",
    POST + b'Content-Length: 20\r\n\r\n{"session_id": "s1"}',
    POST + b"X-Session-Id: s2\r\nContent-Length: 70000\r\n\r\n" + X,
    POST + b"Content-Length: 70000\r\n\r\n" + X,
    POST
    + b"X-Session-Id: s2\r\nTransfer-Encoding: chunked\r\n\r\n11170\r\n"
    + X
    + b"\r\n1;a\r\nz\r\n0\r\nA: b\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    POST + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}",
    POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    OLD + b"\r\n{}",
    OLD + b"Connection: keep-alive\r\n\r\n{}",
]
"""What clients ask for; `%b` is the request's number."""


def body_of(n: bytes, large: bool) -> bytes:
    """Give the body that answers request `n`, and no other."""
    return n + b":" + (n * LARGE)[: LARGE if large else 20]


ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: %(size)d\r\n\r\n%(body)b",
    b"HTTP/1.1 102 x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"%(size)x\r\n%(body)b\r\n0\r\nA: b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %(size)d\r\n\r\n%(body)b",
    b"HTTP/1.1 200 OK\r\n\r\n%(body)b",  # until the end
    b"HTTP/1.1 204 No Content\r\n\r\n",
]
UNTIL_THE_END = 3


class Client:
    """One client: what it has sent, and is about to send."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.unsent = b""
        self.numbers: list[bytes] = []
        self.left = False

    def send(self, count: int) -> None:
        piece, self.unsent = self.unsent[:count], self.unsent[count:]
        if piece and not self.left:
            self.wire.send(piece)


class Engine:
    """One connection to a replica: the answer it is giving."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.served = 0
        self.unsent = b""
        self.ends = False
        self.gone = False

    def numbers(self, *, whole: bool) -> list[bytes]:
        """Give the numbers of the requests that have come."""
        requests, readable = read_requests(self.wire.got)
        assert readable, self.wire.got[:500]
        return [request.target.removeprefix(b"/v1/") for request in requests if request.whole or not whole]

    def begin(self, kind: int, *, large: bool, early: bool) -> bool:
        numbers = self.numbers(whole=not early)
        if self.unsent or len(numbers) <= self.served:
            return False
        body = body_of(numbers[self.served], large)
        self.unsent = ANSWERS[kind] % {b"body": body, b"size": len(body)} if kind < len(ANSWERS) - 1 else ANSWERS[kind]
        self.ends = kind == UNTIL_THE_END
        self.served += 1
        return True

    def send(self, count: int) -> None:
        piece, self.unsent = self.unsent[:count], self.unsent[count:]
        if piece and not self.gone:
            self.wire.send(piece)
            if not self.unsent and self.ends:
                self.end()

    def end(self) -> None:
        self.gone = True
        self.unsent = b""
        self.wire.end()


class World(RuleBasedStateMachine):
    """Anything may happen to any connection at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(replicas=2, request_timeout=120.0, connect_retries=1)
        self.clients: list[Client] = []
        self.engines: list[Engine] = []
        self.number = 0

    def settle(self) -> None:
        self.rig.turns.run()
        for wire in self.rig.upstreams[len(self.engines) :]:
            self.engines.append(Engine(wire))

    # --- clients ---

    @rule()
    @precondition(lambda self: len(self.clients) < 4)
    def connect(self) -> None:
        self.clients.append(Client(self.rig.connect()))

    @rule(which=st.integers(0, 3), kind=st.integers(0, len(REQUESTS) - 1))
    def ask(self, which: int, kind: int) -> None:
        if which < len(self.clients):
            self.number += 1
            client, number = self.clients[which], b"%d" % self.number
            client.numbers.append(number)
            client.unsent += REQUESTS[kind] % number

    @rule(which=st.integers(0, 3), count=st.sampled_from([1, 30, 90, 5000, 200_000, 200_000]))
    def client_sends(self, which: int, count: int) -> None:
        if which < len(self.clients):
            self.clients[which].send(count)
            self.settle()

    @rule(which=st.integers(0, 3), how=st.sampled_from(["end", "reset", "stall", "drain", "trickle"]))
    def client_does(self, which: int, how: str) -> None:
        if which < len(self.clients) and not self.clients[which].left:
            self._do(self.clients[which].wire, how)
            self.clients[which].left = how in ("end", "reset")

    # --- replicas ---

    @rule(which=st.integers(0, 9), kind=st.integers(0, len(ANSWERS) - 1), large=st.booleans(), early=st.booleans())
    def replica_begins(self, which: int, kind: int, large: bool, early: bool) -> None:
        if which < len(self.engines):
            self.engines[which].begin(kind, large=large, early=early)

    @rule(which=st.integers(0, 9), count=st.sampled_from([1, 20, 90, 5000, 200_000, 200_000]))
    def replica_sends(self, which: int, count: int) -> None:
        if which < len(self.engines):
            self.engines[which].send(count)
            self.settle()

    @rule(which=st.integers(0, 9), how=st.sampled_from(["end", "reset", "stall", "drain", "trickle", "garbage"]))
    def replica_does(self, which: int, how: str) -> None:
        if which < len(self.engines) and not self.engines[which].gone:
            engine = self.engines[which]
            if how == "garbage":
                engine.wire.send(b"garbage")
            else:
                self._do(engine.wire, how)
            if how in ("end", "reset", "garbage"):
                engine.gone, engine.unsent = True, b""
            self.settle()

    @rule(which=st.integers(0, 1), ready=st.booleans())
    def replica_is_found(self, which: int, ready: bool) -> None:
        self.rig.routing.balancer.set_ready(self.rig.replicas[which], ready, self.rig.time)

    @rule(holding=st.booleans(), stalling=st.booleans())
    def connects_will(self, holding: bool, stalling: bool) -> None:
        self.rig.holding, self.rig.stalling = holding, stalling

    @rule(which=st.integers(0, 20), fails=st.sampled_from([None, None, True, False]))
    def connect_ends(self, which: int, fails: bool | None) -> None:
        if which < len(self.rig.attempts):
            attempt = self.rig.attempts[which]
            if fails is not None and attempt.error is None:
                attempt.error = ConnectFailed("no", refused=fails)
            attempt.open()
            self.settle()

    # --- the clock ---

    @rule(seconds=st.sampled_from([0.2, 0.9, 5.1, 16.0, 31.0, 76.0, 121.0]))
    def time_passes(self, seconds: float) -> None:
        self.rig.pass_time(seconds)
        self.settle()

    # --- what must always hold ---

    @invariant()
    def the_books_balance(self) -> None:
        self.rig.check()

    @invariant()
    def memory_is_bounded(self) -> None:
        for wire in (*self.rig.clients, *self.rig.upstreams):
            assert wire.unsent <= _BOUND, wire.unsent

    @invariant()
    def nobody_gets_anothers_answer(self) -> None:
        for client in self.clients:
            self._read(client)

    def teardown(self) -> None:
        """Let everybody behave, and see that every request comes to its end."""
        rig = self.rig
        rig.holding = rig.stalling = False
        for replica in rig.replicas:
            rig.routing.balancer.set_ready(replica, True, rig.time)
        for _ in range(400):
            for attempt in rig.attempts:
                attempt.open()
            for wire in (*rig.clients, *rig.upstreams):
                wire.drain()
            for client in self.clients:
                client.send(len(client.unsent))
            self.settle()
            for engine in self.engines:
                engine.begin(0, large=False, early=False)
                engine.send(len(engine.unsent))
                if engine.gone and not engine.wire.lost:
                    engine.wire.end()
            self.settle()
            if not rig.frontend.handlers() and not any(c.unsent and c.wire.is_reading() for c in self.clients):
                break
        self.the_books_balance()
        assert not rig.frontend.handlers(), "an exchange hangs"
        for _ in range(6):
            rig.pass_time(121.0)
        for client in self.clients:
            assert client.wire.lost, "a connection outlives every deadline"
            self._read(client)

    # --- inside ---

    def _do(self, wire: Wire, how: str) -> None:
        match how:
            case "end":
                wire.end()
            case "reset":
                wire.reset()
            case "stall":
                wire.stalled = True
            case "drain":
                wire.drain()
            case "trickle":
                wire.trickle(3000)
        self.settle()

    def _read(self, client: Client) -> None:
        wire = client.wire
        rest = wire.got
        ended = wire.ended is not None or wire.half_closed
        for number in client.numbers:
            if not rest:
                return
            try:
                seen = read_response(rest, ended=ended)
            except h11.RemoteProtocolError:
                assert ended, "malformed bytes on a connection that goes on"
                return
            except AssertionError:
                return  # no whole head yet
            if seen.status == 200:
                bodies = body_of(number, large=False), body_of(number, large=True)
                assert any(body.startswith(seen.body) for body in bodies), (number, seen.body[:50])
                # Of an answer until the end of the connection, only how that ended tells whether it is whole.
                assert seen.body in bodies or not seen.whole or wire.ended in ("rst", "lost", "cut")
            else:
                assert seen.status in (204, 408, 502, 503, 504), seen
            if not seen.whole:
                return
            rest = seen.rest
        if rest and not client.unsent:
            seen = read_response(rest, ended=ended)
            assert seen.status == 408, "an answer that nobody asked for"


World.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestWorld = World.TestCase
