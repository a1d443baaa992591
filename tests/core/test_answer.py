"""The router's own answers: their heads, and error bodies that every client can read."""

from __future__ import annotations

import json

import pytest
from tests.support.witness import read_response

from pypto_serving_router.core.answer import Answer, document, error


def write(answer: Answer, *, connection: str | None = None, more: bytes = b"") -> bytes:
    """Write an answer whole."""
    return answer.head(connection=connection, more=more) + answer.body


@pytest.mark.parametrize("status", [200, 202, 400, 401, 403, 404, 405, 408, 409, 413, 431, 500, 501, 502, 503, 504])
def test_an_answer_says_how_long_it_is(status: int) -> None:
    """spec 4.7, H4: a strict reader finds status, length and body, and nothing after it."""
    seen = read_response(write(error(status, "some_code", "What happened."), connection="close"))

    assert (seen.status, seen.whole, seen.rest) == (status, True, b"")
    assert seen.values(b"content-type") == [b"application/json"]
    assert seen.values(b"connection") == [b"close"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "conflict_error"),
        (413, "invalid_request_error"),
        (502, "server_error"),
        (503, "server_error"),
        (504, "server_error"),
    ],
)
def test_errors_are_read_by_clients_of_both_kinds(status: int, kind: str) -> None:
    """spec 4.7: the body has OpenAI's nested error, and pypto-serving's flat one beside it."""
    body = json.loads(error(status, "some_code", "Größer, 更大.", more={"capacity": {"ceiling": 2}}).body)

    assert body == {
        "error": {"message": "Größer, 更大.", "type": kind, "param": None, "code": "some_code"},
        "object": "error",
        "message": "Größer, 更大.",
        "capacity": {"ceiling": 2},
    }


def test_fields_are_written_in_order() -> None:
    """spec 3.3, 4.7: an answer's own fields and those given for this exchange are all there."""
    answer = error(503, "no_replica", "None.", headers={"Retry-After": "7", "X-Other": "a"})

    seen = read_response(write(answer, more=b"X-Session-Id: s\r\n"))

    assert seen.fields[-3:] == [(b"retry-after", b"7"), (b"x-other", b"a"), (b"x-session-id", b"s")]


@pytest.mark.parametrize("connection", [None, "close", "keep-alive"])
def test_connection_is_named_where_asked(connection: str | None) -> None:
    """spec 4.8: whether the connection goes on is said where the client could not know."""
    seen = read_response(write(document({}), connection=connection))

    assert seen.values(b"connection") == ([] if connection is None else [connection.encode()])


def test_an_empty_answer_has_a_length_and_no_type() -> None:
    """spec 4.8, H4: nothing is nothing, explicitly."""
    seen = read_response(write(Answer(404)))

    assert (seen.values(b"content-length"), seen.values(b"content-type"), seen.body) == ([b"0"], [], b"")


def test_a_document_is_json_with_a_line_end() -> None:
    """spec 6.1: documents are JSON, UTF-8 and printable at a terminal."""
    assert document({"status": "ok", "name": "ä"}).body.decode() == '{"status":"ok","name":"ä"}\n'
