"""Byte-exact exchanges, on recording transports and against a real router; and bytes that nobody wrote down."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.contract import wire_answers, wire_connections, wire_framing, wire_requests
from tests.support.exchange_table import Bench, Case, run_on_rig
from tests.support.fleet import replica
from tests.support.harness import Harness
from tests.support.witness import SeenRequest, read_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = {
    f"{area}: {case.name[:70]}": case
    for area, cases in {
        "request": wire_requests.CASES,
        "framing": wire_framing.CASES,
        "answer": wire_answers.CASES,
        "connection": wire_connections.CASES,
    }.items()
    for case in cases
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One router and one replica for the whole table."""
    harness = Harness(tmp_path_factory.mktemp("wire"))
    upstream = harness.start_upstream()
    router = harness.start_router({"replicas": [replica(upstream.url, name="r1")]}, "--health-interval", "0.2")
    yield Bench(router, upstream)
    wrong = harness.end()
    if wrong:
        pytest.fail("\n".join(wrong))


def test_no_case_hides_another() -> None:
    """spec 4.8: every exchange of the table is run."""
    tables = (wire_requests, wire_framing, wire_answers, wire_connections)

    assert len(CASES) == sum(len(table.CASES) for table in tables) >= 250


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_on_recording_transports(case: Case) -> None:
    """spec 4.1, 4.2, 4.8: the protocol classes turn these bytes into those."""
    assert run_on_rig(case) == case.expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_on_sockets(bench: Bench, case: Case) -> None:
    """spec 4.1, 4.2, 4.8: so does the installed router."""
    assert bench.run(case) == case.expected


# --- bytes that nobody wrote down -----------------------------------------------------------

SEEDS = [b"".join(step for step in case.steps if isinstance(step, bytes)) for case in CASES.values()]
TWO = wire_requests.ask() + wire_requests.ask(b"Content-Length: 2", start=wire_requests.POST, body=b"{}")
PIECES = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b",",
        b";",
        b"0\r\n\r\n",
        b"1",
        b"5\r\n",
        b"\x0b",
        b"\xa0",
        b"\x80",
    ),
    *(
        b"Content-Length: 5\r\n",
        b"Content-Length:",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding",
        b"chunked",
    ),
    *(
        b"Connection: close\r\n",
        b"Connection: content-length\r\n",
        b"Host: a\r\n",
        b"Expect: 100-continue\r\n",
        b"HTTP/1.0",
    ),
    *(
        b"GET /v1/x HTTP/1.1\r\nHost: b\r\n\r\n",
        b"GET",
        b"POST",
        b"HEAD",
        b"/",
        b"http://a/",
        b"\r\n ",
        b"\r\n\t",
        b"Accept\r\n",
    ),
]


@st.composite
def sent(draw: st.DrawFn) -> bytes:
    """Change what clients send here and there, and put it together."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=2))))
    data = data[:3000]
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        gone = draw(st.sampled_from([0, 0, 0, 1, 2, 5, 30]))
        data[at : at + gone] = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=2)))
    return bytes(data)


def comparable(request: SeenRequest) -> tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]:
    """Reduce a request to what must be the same on both sides of the router."""
    target = request.target
    if not target.startswith(b"/"):
        rest = target.partition(b"://")[2]
        at = min((rest.find(mark) for mark in (b"/", b"?") if mark in rest), default=len(rest))
        target = rest[at:] if rest[at : at + 1] == b"/" else b"/" + rest[at:]
    named = {o.strip(b" \t").lower() for v in request.values(b"connection") for o in v.split(b",")} - {
        b"content-length"
    }
    gone = named | {
        *(b"host", b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"expect", b"x-request-id"),
        *(b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"),
    }
    fields = [(n, v.lower()) for n, v in request.fields if n not in gone and not n.startswith(b"proxy-")]
    return request.method, target, sorted(fields), request.body


def case_of(data: bytes) -> Case:
    """Describe what the protocol classes make of bytes, whose every request is answered."""
    case = Case("any bytes", "spec 4.8", data, [wire_requests.OK] * 40)
    seen = run_on_rig(case)
    return Case(case.name, case.cites, data, case.replies, seen.forwarded, seen.answered, seen.ending, seen.replica)  # type: ignore[arg-type]


@settings(max_examples=150)
@given(sent())
@example(TWO)
def test_a_replica_gets_the_requests_that_the_witness_finds(data: bytes) -> None:
    """spec 4.8: whatever a client sends, a replica gets the first of the requests that h11 finds in it, or nothing."""
    observed = run_on_rig(Case("any bytes", "spec 4.8", data, [wire_requests.OK] * 40))

    theirs, _ = read_requests(data)
    ours, readable = read_requests(observed.forwarded)
    assert readable
    assert len(ours) <= len(theirs)
    for our, their in zip(ours, theirs, strict=False):
        if our.whole:
            assert comparable(our) == comparable(their)
        else:  # the body was not forwarded to its end, and nothing after it
            assert our is ours[-1]
            assert comparable(our)[:3] == comparable(their)[:3]
            assert their.body.startswith(our.body)


@settings(max_examples=40)
@given(sent())
@example(TWO)
def test_the_router_does_as_the_protocol_classes_do(bench: Bench, data: bytes) -> None:
    """spec 4.8: over sockets the same bytes have the same effect, so that what holds for one holds for both."""
    case = case_of(data)
    assume(case.ending != "open" or _is_at_rest(data))
    assume(all(comparable(request)[1].startswith(b"/v1/") for request in read_requests(data)[0]))

    observed = bench.run(case)

    placement = rb"X-Router-Placement: [a-z-]+"  # sessions of earlier examples are remembered
    assert re.sub(placement, b"", observed.answered) == re.sub(placement, b"", case.answered)
    assert observed == replace(case.expected, answered=observed.answered)


def _is_at_rest(data: bytes) -> bool:
    """Tell whether what is sent behind these bytes is a request of its own."""
    requests, readable = read_requests(data + b"GET /behind HTTP/1.1\r\nHost: a\r\n\r\n")
    return readable and requests[-1].target == b"/behind"
