"""Forms: a head read by one is what it is line by line, and nothing of a client's secrets stays in them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pypto_serving_router.core.forms import Form, judge_request
from pypto_serving_router.core.head import MAX_HEAD, RequestHead, forward_request, parse_request
from pypto_serving_router.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

START = b"POST /v1/chat/completions HTTP/1.1"
USUAL = [b"Host: router", b"Accept: */*", b"Content-Type: application/json", b"Connection: keep-alive", b"TE: trailers"]
SHOWN = (
    "method", "target", "minor", "length", "chunked", "host", "keep_alive", "expect", "plain", "sessions",
    "forwarded_for", "request_id", "size", "lines",
)  # fmt: skip


def block(*lines: bytes, start: bytes = START, usual: Sequence[bytes] = USUAL) -> bytes:
    return b"\r\n".join([start, *usual, *lines])


def received(*lines: bytes) -> bytes:
    """Make a head as it comes: with its end, and more."""
    return block(*lines) + b"\r\n\r\nmore\r\n\r\n"


def shown(head: RequestHead) -> dict[str, object]:
    """Tell all that a head says, and what the replica gets of it."""
    forwarded = forward_request(head, host=b"replica:8001", peer=b"192.0.2.7", request_id=b"made")
    return {name: getattr(head, name) for name in SHOWN} | {"forwarded": forwarded}


def judged(text: bytes) -> object:
    """Read a head line by line."""
    try:
        return shown(parse_request(text))
    except RequestError as error:
        return error.status, error.code, str(error)


def learned(text: bytes) -> Form:
    """Return the form of a head, which is made once its fixed lines have been seen."""
    judge_request(text, None)
    form = judge_request(text, None)[1]
    assert form is not None
    return form


def filled(form: Form | None, text: bytes, last: RequestHead | None) -> tuple[RequestHead, Form | None]:
    """Read a connection's next head as the connection does."""
    head = None if form is None else form.fill(text + b"\r\n\r\nmore", last)
    return judge_request(text, form) if head is None else (head, form)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([b"Content-Length: 5", b"X-Session-Id: a"], [b"Content-Length: 12", b"X-Session-Id: b-2"]),
        ([b"x-session-id:a", b"content-length:   5"], [b"x-session-id:b", b"content-length:   0"]),
        ([b"Authorization: Bearer one"], [b"Authorization: \tBearer 100% two"]),
        ([b"Cookie: a", b"X-Api-Key: k"], [b"Cookie:", b"X-Api-Key: \xe4"]),
        ([], []),
    ],
)
def test_a_head_of_a_known_kind_is_filled_in(first: list[bytes], second: list[bytes]) -> None:
    """Only the values differ, and those are the second head's (spec 4.2)."""
    form = learned(block(*first))

    head = form.fill(received(*second))

    assert head is not None
    assert shown(head) == judged(block(*second))
    again = form.fill(received(*second), head)
    assert again is not None
    assert shown(again) == judged(block(*second))


@pytest.mark.parametrize("second", [b"ab", b"abcd", b"abd", b"a", b"x", b"ab\tc", b"ab:c"])
def test_a_value_of_the_last_head_is_no_other(second: bytes) -> None:
    """What begins or ends alike is not taken for the same value."""
    form = learned(block(b"X-Session-Id: s", b"Authorization: s", b"Content-Length: 1"))
    last = form.fill(received(b"X-Session-Id: abc", b"Authorization: abc", b"Content-Length: 10"))
    assert last is not None

    for length in (b"1", b"10", b"100"):
        session = second.replace(b"\t", b"")
        lines = [b"X-Session-Id: " + session, b"Authorization: " + second, b"Content-Length: " + length]
        head = form.fill(received(*lines), last)
        assert head is not None
        assert shown(head) == judged(block(*lines))


def test_a_head_that_is_not_whole_fits_no_form() -> None:
    """However much of it is there, nothing is taken for granted of what is to come."""
    form = learned(block(b"X-Session-Id: abc", b"Content-Length: 1"))
    whole = block(b"X-Session-Id: abc", b"Content-Length: 1") + b"\r\n\r\n"
    last = form.fill(whole)
    assert last is not None

    for size in range(len(whole)):
        assert form.fill(whole[:size]) is None
        assert form.fill(whole[:size], last) is None


def test_a_head_that_is_too_large_fits_no_form() -> None:
    """The limit of a head holds for whatever its values are (spec 4.10)."""
    form = learned(block(b"Authorization: a"))
    room = MAX_HEAD - len(block(b"Authorization: ") + b"\r\n\r\n")

    assert form.fill(received(b"Authorization: " + b"a" * room)) is not None
    assert form.fill(received(b"Authorization: " + b"a" * (room + 1))) is None


def test_a_field_that_changes_becomes_a_blank() -> None:
    """A tracing header differs each time; after its second value it no longer keeps a head from fitting."""
    form: Form | None = None
    for _ in range(2):
        form = judge_request(block(b"traceparent: " + uuid4().hex.encode()), None)[1]

    assert form is not None
    assert form.fill(received(b"traceparent: 100 %")) is not None


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 5 ", b"X-Session-Id: a"],
        [b"Content-Length: +5", b"X-Session-Id: a"],
        [b"Content-Length: 5\n", b"X-Session-Id: a"],
        [b"Content-Length: 1234567890123456789", b"X-Session-Id: a"],
        [b"Content-Length:", b"X-Session-Id: a"],
        [b"Content-Length: 5", b"X-Session-Id: a\rb"],
        [b"Content-Length: 5", b"X-Session-Id: "],
        [b"Content-Length: 5", b"X-Session-Id: a", b"X-Session-Id: b"],
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"X-Session-Id: a", b"Content-Length: 5"],
        [b"Content-Length: 5"],
    ],
)
def test_what_does_not_fit_is_judged_line_by_line(lines: list[bytes]) -> None:
    """A form neither refuses nor repairs (RFC 9112 2.2, 6.3)."""
    form = learned(block(b"Content-Length: 5", b"X-Session-Id: a"))

    assert form.fill(received(*lines)) is None
    try:
        read: object = shown(filled(form, block(*lines), None)[0])
    except RequestError as error:
        read = error.status, error.code, str(error)
    assert read == judged(block(*lines))


@pytest.mark.parametrize(
    "lines",
    [
        [b"Transfer-Encoding: chunked"],
        [b"Expect: 100-continue", b"Content-Length: 5"],
        [b"Connection: X-Hop", b"X-Hop: 1"],
        [b"X-Forwarded-For: 192.0.2.1"],
        [b"X-Request-Id: one"],
        [b"X-Session-Id: a", b"X-Session-Id: a"],
        [b"X-Long: " + b"x" * 2048],
    ],
)
def test_heads_that_take_judgement_have_no_form(lines: list[bytes]) -> None:
    """What depends on more than its own line is read line by line each time."""
    form: Form | None = None
    for _ in range(3):
        form = judge_request(block(*lines), None)[1]

    assert form is None


def test_the_lines_are_let_go() -> None:
    """An open stream keeps neither its head's lines nor its form's values."""
    form = learned(block(b"Authorization: one"))
    head = form.fill(received(b"Authorization: secret"))
    assert head is not None
    filled_in = head.form

    head.let_go()

    assert filled_in is form
    assert head.form is None
    assert not head.values
    assert not head.lines


def test_connections_share_forms() -> None:
    """Ten thousand clients of one kind cost one form."""
    assert learned(block(b"Content-Length: 5")) is learned(block(b"Content-Length: 6"))


@pytest.mark.interpreted
def test_no_secret_stays_in_a_form() -> None:
    """A token is nowhere in what is kept of a connection's heads."""
    secret = b"Bearer a-token-of-somebody"
    form = learned(block(b"Authorization: " + secret, b"Content-Length: 1"))

    kept = repr([getattr(form, name) for name in Form.__slots__]).encode()
    assert b"Authorization" in kept
    assert secret not in kept


LINES = st.sampled_from(
    [
        b"Host: router", b"Host: other:1", b"Accept: */*", b"Accept: text/plain", b"Content-Length: 3",
        b"Content-Length: 0", b"content-length: 77", b"Content-Length: 3,3", b"X-Session-Id: a", b"X-Session-Id: b%s",
        b"X-Session-Id: c", b"x-session-id:\td", b"Authorization: one", b"Authorization: two %b", b"Connection: close",
        b"Connection: Accept", b"Keep-Alive: 5", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"X-A: %",
        b"X-B: \x01", b"X-Request-Id: r", b"X-Forwarded-Host: f", b"no field", b"traceparent: 1", b"traceparent: 2",
    ]
)  # fmt: skip
STARTS = st.sampled_from(
    [START, START, START, b"GET /v1/models?%b HTTP/1.1", b"GET http://a/b HTTP/1.1", b"GET / HTTP/1.0"]
)
HEADS = st.lists(st.tuples(STARTS, st.lists(LINES, max_size=5)), min_size=2, max_size=8)


@given(HEADS, st.booleans())
@example([(START, [b"X-Session-Id: a", b"Content-Length: 3"])] * 3, True)
def test_a_connections_heads_are_what_each_is_alone(heads: list[tuple[bytes, list[bytes]]], repeat: bool) -> None:
    """Whatever came before on the connection, a head says and sends on what it does line by line (spec 4.2)."""
    form: Form | None = None
    head: RequestHead | None = None
    for start, lines in heads * (3 if repeat else 1):
        text = block(*lines, start=start, usual=[] if b"Host: router" in lines else USUAL)
        try:
            head, form = filled(form, text, head)
            read: object = shown(head)
        except RequestError as error:
            read = error.status, error.code, str(error)
        assert read == judged(text)
