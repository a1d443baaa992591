"""The page about what is on the wire says what the table of exchanges says."""

from __future__ import annotations

import runpy
from collections import Counter
from dataclasses import replace

import pytest
from tests.contract.wire_requests import OK, POST, ask
from tests.support.exchange_table import Case, Reply, error, to_client, to_replica
from tests.support.markdown import ROOT

PAGE = runpy.run_path(str(ROOT / "docs/pages/wire.py"))

PLAIN = Case(
    "a request with a body",
    "RFC 9112 6",
    ask(b"A: b", b"TE: x", b"Content-Length: 2", start=POST, body=b"{}"),
    OK,
    to_replica(POST, b"A: b", b"Content-Length: 2", body=b"{}"),
    to_client(b"HTTP/1.1 200 OK", b"Content-Length: 2", body=b"ok"),
    replica="kept",
)
HEADS = Counter({"Exchange": 4, "---": 4})
ERROR = error(b"502 Bad Gateway", b"upstream_failed", session=b"mine", request=b"<1>", placement=b"new")
ASKED = "goes on, without `TE: x`"
ANSWERED = "200, with a new `X-Session-Id`"


def test_the_limits_of_slow_requests_are_on_the_page() -> None:
    """A head has its time as a whole, a body from one piece to the next (spec 4.10)."""
    page = PAGE["behaviour"]()

    assert "a head that is not whole 15 s after its first byte" in page
    assert "a body of which nothing comes for 30 s" in page


def test_every_exchange_is_on_the_page() -> None:
    """No table of exchanges and none of its exchanges is left out (spec 9)."""
    tables = {path.stem for path in (ROOT / "tests/contract").glob("wire_*.py")}
    cells = "<br>".join(line.split(" | ")[1] for line in PAGE["behaviour"]().splitlines() if line.count(" | ") == 4)
    cases = [case for _, cases in PAGE["CHAPTERS"].values() for case in cases]

    assert {name for name in PAGE if name.startswith("wire_")} == tables
    assert Counter(cells.split("<br>")) - HEADS == Counter(case.name for case in cases)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (PLAIN, (ASKED, ANSWERED, "open, kept")),
        (replace(PLAIN, name="`TE: x` ends here"), ("goes on, without it", ANSWERED, "open, kept")),
        (
            replace(PLAIN, forwarded=to_replica(POST, b"A: c", b"Content-Length: 2", body=b"[]")),
            ("goes on, without `A: b`, `TE: x`, with `A: c`, body `[]`", ANSWERED, "open, kept"),
        ),
        (replace(PLAIN, ending="rst", replica="closed"), (ASKED, ANSWERED, "reset, closed")),
        (
            replace(PLAIN, answered=to_client(b"HTTP/1.1 200 Fine", b"Content-Length: 2", session=b"mine")),
            (ASKED, "200, as `HTTP/1.1 200 Fine`, with `X-Session-Id: mine`, no body", "open, kept"),
        ),
        (
            replace(PLAIN, replies=[Reply(b"x", "rst")], answered=ERROR),
            (
                ASKED,
                "502 `upstream_failed`, with `X-Session-Id: mine`, a new `X-Request-Id`, `X-Router-Replica: r1`, "
                "`X-Router-Placement: new`",
                "open, kept",
            ),
        ),
        (
            Case("refused", "RFC 9112 3", b"GET\r\n\r\n", answered=error(b"400 Bad Request", b"x"), ending="fin"),
            ("nothing", "400 `x`", "ended, unused"),
        ),
        (replace(PLAIN, client=[PLAIN.steps[0], ask()]), ("the first " + ASKED, ANSWERED, "open, kept")),
    ],
)
def test_what_is_told_comes_from_the_bytes(case: Case, told: tuple[str, ...]) -> None:
    """Whatever is changed in an exchange changes what the page says of it (spec 9)."""
    assert PAGE["outcome"](case) == told


def test_fields_in_another_order_are_no_exchange_to_tell_of() -> None:
    """That fields keep their order is said once for all, so an exchange in which they don't is noticed (spec 4.2)."""
    turned = replace(PLAIN, forwarded=to_replica(POST, b"Content-Length: 2", b"A: b", body=b"{}"))

    with pytest.raises(AssertionError):
        PAGE["outcome"](turned)
