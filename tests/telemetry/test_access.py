"""The record of an exchange."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from time import thread_time
from timeit import repeat
from typing import TYPE_CHECKING, Any

import pytest

from pypto_serving_router.telemetry.access import AccessLog, short_hash
from pypto_serving_router.telemetry.fields import COMMON, FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypto_serving_router.telemetry.log import Format

SESSION = "9f2c1b7e4a3d5061b8c2e7f04a1d9b63"
EXCHANGE: tuple[Any, ...] = (
    b"POST", b"/v1/chat/completions?key=secret", 200, "node0", "affinity", "complete", SESSION, b"10.0.0.9",
    120, 4096, 0.0425, 1.25, b"abc-1",
)  # fmt: skip


class Records:
    """Stands for the sink."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def put_later(self, record: bytes) -> None:
        self.records.append(record)


@pytest.fixture
def write() -> Callable[..., str]:
    def write(fmt: Format, *exchange: Any, at: float = 1_700_000_000.25) -> str:
        records = Records()
        AccessLog(records, fmt, lambda: at).write(*exchange)  # type: ignore[arg-type] # a stand-in
        (record,) = records.records
        return record.decode()

    return write


def test_colours_keep_the_columns() -> None:
    """On a terminal the records of exchanges are coloured like all others, and stand in the same columns (spec 9)."""
    lines = []
    for coloured in (False, True):
        records = Records()
        AccessLog(records, "text", lambda: 1_700_000_000.25, coloured=coloured).write(*EXCHANGE)  # type: ignore[arg-type] # a stand-in
        lines.append(records.records[0].decode())

    plain, coloured_line = lines
    assert coloured_line.startswith("\x1b[2m2023-11-14T22:13:20.250Z\x1b[0m \x1b[32minfo   \x1b[0m exchange ended  ")
    assert re.sub(r"\x1b\[\d+m", "", coloured_line) == plain


def test_json(write: Callable[..., str]) -> None:
    """With `--access-log` each routed request is one JSON object of documented fields (spec 1.2)."""
    record = json.loads(write("json", *EXCHANGE))

    assert record == {
        "timestamp": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "event": "exchange ended",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "replica": "node0",
        "placement": "affinity",
        "outcome": "complete",
        "session": short_hash(SESSION),
        "client": "10.0.0.9",
        "received": 120,
        "relayed": 4096,
        "ttfb_ms": 42.5,
        "total_ms": 1250.0,
        "request_id": "abc-1",
    }
    assert set(record) <= {*COMMON, *FIELDS}


def test_text(write: Callable[..., str]) -> None:
    """The text form has the same fields in the same order (spec 1.2)."""
    line = write("text", *EXCHANGE)

    names = re.findall(r"(\w+)=", line)
    assert names == list(json.loads(write("json", *EXCHANGE)))[3:]
    assert line.startswith("2023-11-14T22:13:20.250Z info    exchange ended ")
    assert "ttfb_ms=42.5 total_ms=1250.0" in line


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_nothing_secret(write: Callable[..., str], fmt: Format) -> None:
    """A query, which may hold a key, and a session's id are not logged (spec 9)."""
    line = write(fmt, *EXCHANGE)

    assert "secret" not in line
    assert SESSION not in line
    assert short_hash(SESSION) == blake2b(SESSION.encode(), digest_size=6).hexdigest()


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_no_forgery(write: Callable[..., str], fmt: Format) -> None:
    """A request id that a client chose cannot break out of its field (spec 9)."""
    line = write(fmt, *EXCHANGE[:-1], b'a" status=500 \x9b31m\xe2\x80\xae\t')

    assert line[:-1].isprintable()
    if fmt == "json":
        assert json.loads(line)["status"] == 200
    else:
        assert line.count(" status=") == 2
        assert line.rstrip().endswith('request_id="a\\" status=500 \\\\x9b31m\\\\xe2\\\\x80\\\\xae\\t"')


def test_nothing_known(write: Callable[..., str]) -> None:
    """A request that got no replica and no answer is recorded as such (spec 1.2)."""
    exchange = (b"GET", b"/v1/models", 0, "", "", "client_left", None, b"::1", 0, 0, -1.0, 0.0, b"")

    record = json.loads(write("json", *exchange))
    line = write("text", *exchange)

    assert (record["session"], record["ttfb_ms"], record["replica"]) == (None, None, "")
    assert "replica=- placement=- outcome=client_left session=- " in line


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_cost(fmt: Format) -> None:
    """A record costs microseconds, not the length of a chain of processors (spec 8)."""

    class Nowhere:
        def put_later(self, record: bytes) -> None:
            pass

    access = AccessLog(Nowhere(), fmt, lambda: 1.0)  # type: ignore[arg-type] # a stand-in

    best = min(repeat(lambda: access.write(*EXCHANGE), number=1000, repeat=20, timer=thread_time)) / 1000

    assert best < 20e-6
