"""Asks a running router: its admin API, by the standard library's client, a connection for each question."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from pypto_serving_router.errors import RouterRefused, RouterUnreachable
from pypto_serving_router.telemetry.text import one_line
from pypto_serving_router.telemetry.tls import tls_trouble

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECT: Final = 5.0
"""Seconds for a connection."""
QUICK: Final = 10.0
"""Seconds for what the router knows by itself."""
BY_HOST: Final = 120.0
"""Seconds for what a host is asked for: a login over ssh may take half a minute, and others may be before us."""

WHERE: Final = "--url or PYPTO_ROUTER_URL says where the router is"

_TLS_ALERT: Final = "\x15\x03"
"""How TLS answers what is not TLS, as text."""

HINTS: Final = {
    "unknown_slot": "`status` shows the free ones",
    "unknown_replica": "`status` shows what there is",
    "unknown_session": "it was never here, or too long ago",
    "pool_full": "`status` shows what holds the slots",
    "slot_busy": "`status` shows the free ones",
    "not_owned": "who started it stops it, and has its log",
    "launch_failed": "`logs` shows what it said",
    "stop_unconfirmed": "`retire` tries again, and with --force frees it on your word that nothing holds its devices",
    "host_unreachable": "try again once the router's machine reaches it",
}
"""What to do about an error, by its code."""


class Client:
    """Asks the router at `url`, with its admin token if there is one. The token is shown nowhere."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._token = token

    @property
    def has_token(self) -> bool:
        """Whether there is a token."""
        return self._token is not None

    def health(self) -> dict[str, Any]:
        """Return the state of the whole table; the router gives it without a token."""
        return self._document(self._ask("GET", "/health", accept=(200, 503)), "replicas_ready", "replicas")

    def fleet(self, events: int = 0) -> dict[str, Any]:
        """Return every replica, what is left to launch on, and the last `events` if any."""
        answer = self._ask("GET", "/replicas" + (f"?events={events}" if events else ""))
        return self._document(answer, "replicas", "capacity")

    def decisions(self, session: str | None, last: int) -> dict[str, Any]:
        """Return the last choices of a replica, of one session if it is named."""
        query = {"last": str(last)} if session is None else {"last": str(last), "session": session}
        return self._document(self._ask("GET", f"/replicas/decisions?{urlencode(query)}"), "slack", "decisions")

    def launch(self, where: Mapping[str, str]) -> dict[str, Any]:
        """Launch a replica; return its row once the start is accepted."""
        answer = self._ask("POST", "/replicas", body=msgspec.json.encode(where), timeout=BY_HOST)
        return self._document(answer, "name", "url", "slot")

    def retire(self, name: str, *, force: bool) -> None:
        """Drain and stop a replica; return once the stop is confirmed, which may take many minutes."""
        query = "?force=true" if force else ""
        self._ask("DELETE", f"/replicas/{quote(name, safe='')}{query}", timeout=None)

    def log(self, name: str, lines: int) -> bytes:
        """Return the end of a startup log."""
        return self._ask("GET", f"/replicas/{quote(name, safe='')}/log?lines={lines}", timeout=BY_HOST)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        timeout: float | None = QUICK,
        accept: tuple[int, ...] = (200, 202),
    ) -> bytes:
        """Send one request and return the answer's body.

        Raises:
            RouterUnreachable: nobody answered, or not as a router does.
            RouterRefused: the router answered with an error.
        """
        connection = self._connection()
        try:
            connection.connect()
            connection.sock.settimeout(timeout)
            connection.request(method, self._prefix + path, body=body, headers=self._headers)
            with connection.getresponse() as response:
                status, answer = response.status, response.read()
        except TimeoutError as error:
            waited = CONNECT if connection.sock is None else timeout
            raise self._unreachable(f"no answer within {waited:g} s") from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise self._unreachable(_reason(error)) from error
        finally:
            connection.close()
        if status not in accept:
            raise self._refusal(status, answer)
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, parts.port, timeout=CONNECT)
        return http.client.HTTPConnection(host, parts.port, timeout=CONNECT)

    @property
    def _prefix(self) -> str:
        """The path that a proxy in front of the router keeps it under."""
        return urlsplit(self.url).path

    @property
    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    def _document(self, answer: bytes, *fields: str) -> dict[str, Any]:
        """Read a document that has these fields: a replica, asked by mistake, gives others."""
        try:
            document = msgspec.json.decode(answer, type=dict[str, Any])
        except msgspec.DecodeError:
            document = {}
        if document.keys() >= set(fields):
            return document
        raise self._unreachable("what answers there is not a router")

    def _unreachable(self, why: str) -> RouterUnreachable:
        return RouterUnreachable(f"{self.url}: can't be asked: {why}; {WHERE}")

    def _refusal(self, status: int, answer: bytes) -> RouterRefused | RouterUnreachable:
        try:
            error = msgspec.json.decode(answer, type=dict[str, Any])["error"]
            code, message = str(error["code"]), one_line(str(error["message"]))
        except (msgspec.DecodeError, KeyError, TypeError):
            return self._unreachable(f"what answers there is not a router (status {status})")
        if code == "unauthorized":
            message = "wants the admin token; set PYPTO_ROUTER_ADMIN_TOKEN in the environment"
            if self._token is not None:
                message = "does not accept the token in PYPTO_ROUTER_ADMIN_TOKEN"
        hint = f"; {HINTS[code]}" if code in HINTS else ""
        return RouterRefused(status, code, f"{self.url}: {message}{hint}")


def trouble(url: str) -> str | None:
    """Tell what is wrong with the URL of a router."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if "@" in url:
        return "no user name or password belongs here"
    if not usable or not url.isascii() or not url.isprintable() or not set(url).isdisjoint(" ?#"):
        return "allowed is http://HOST:PORT, or https"
    return None


def _reason(error: Exception) -> str:
    match error:
        case http.client.RemoteDisconnected() | ssl.SSLEOFError():
            return "the connection was closed without an answer"
        case ssl.SSLError():
            return tls_trouble(error)
        case UnicodeError():
            return "its name is none that can be looked up"
        case http.client.IncompleteRead():
            return "the answer was cut off"
        case http.client.HTTPException():
            return "it speaks https, not http" if str(error).startswith(_TLS_ALERT) else "it does not speak http"
        case socket.gaierror() | OSError(strerror=str()):
            return str(error.strerror)
        case _:
            return str(error) or type(error).__name__
