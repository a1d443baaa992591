"""A running router: the installed console script, its JSON log, and its own endpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.support.client import Answer, request
from tests.support.processes import Process
from tests.support.waiting import wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Router(Process):
    """A router that a test started.

    `may_leave_processes` is for tests that end it in a way in which replicas outlive it on purpose, other than
    by SIGKILL or with exit status 3.
    """

    def __init__(self, argv: list[str], *, env: Mapping[str, str], folder: Path, name: str) -> None:
        super().__init__(argv, env=env, folder=folder, name=name)
        self.url = ""
        self.port = 0
        self.may_leave_processes = False
        self._records: list[dict[str, Any]] = []
        self._parsed = 0

    def wait_listening(self, timeout: float = 60.0) -> None:
        """Wait for its address, which its log tells."""
        self.url = self.wait_log("listening", timeout=timeout)["url"]
        self.port = urlsplit(self.url).port or 0

    # --- its log ---

    def log_events(self, event: str | None = None, **fields: object) -> list[dict[str, Any]]:
        """Return the records so far, those of one event and with these fields if given.

        A thread writes them, so a record may come after the answer that tells of the same: what must be there is
        waited for (`wait_log`, `wait_logs`), and so is the last of what is read in order. What is read here is what
        must not be there, what a record waited for follows, and the log of a router that has ended.
        """
        with self.stderr_path.open("rb") as log:
            log.seek(self._parsed)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._parsed += len(whole + newline)
        self._records += [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
        return [
            record
            for record in self._records
            if (event is None or record["event"] == event)
            and all(record.get(name) == value for name, value in fields.items())
        ]

    def wait_log(self, event: str, *, timeout: float = 30.0, **fields: object) -> dict[str, Any]:
        """Return the first record of an event with these fields, once it is there."""
        return self.wait_logs(1, event, timeout=timeout, **fields)[0]

    def wait_logs(self, count: int, event: str, *, timeout: float = 30.0, **fields: object) -> list[dict[str, Any]]:
        """Return the records of an event with these fields, once there are `count` of them or more."""

        def seen() -> list[dict[str, Any]]:
            ended = self.status
            records = self.log_events(event, **fields)
            if len(records) >= count:
                return records
            if ended is not None:
                raise AssertionError(f"the router ended with {ended} before it logged {event!r}:\n{self.stderr}")
            return []

        return wait_until(seen, timeout=timeout, what=f"log record {event!r} {fields or ''}")

    # --- its endpoints ---

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Answer:
        """Send one request on a connection of its own."""
        return request(self.url + path, method, body=body, headers=headers, timeout=timeout)

    def connect(self, *, timeout: float = 30.0, receive_buffer: int | None = None) -> Wire:
        """Open a connection for bytes."""
        return Wire.connect(self.url, timeout=timeout, receive_buffer=receive_buffer)

    def health(self) -> dict[str, Any]:
        """Return the document of `GET /health`, whatever its status."""
        document: dict[str, Any] = self.request("GET", "/health").json()
        return document

    def replicas(self, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the document of `GET /replicas`."""
        answer = self.request("GET", "/replicas", headers=headers)
        assert answer.status == 200, answer.body
        document: dict[str, Any] = answer.json()
        return document

    def wait_ready(self, count: int, *, timeout: float = 30.0) -> dict[str, Any]:
        """Return the health document once that many replicas are ready."""

        def seen() -> dict[str, Any] | None:
            document = self.health()
            return document if document["replicas_ready"] == count else None

        document = wait_until(seen, timeout=timeout, what=f"{count} ready replicas")
        assert document
        return document
