"""The client of a router, against sockets that answer what the test says."""

from __future__ import annotations

import json
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from tests.support.ports import refusing_port
from tests.support.upstream import RawUpstream, then_close, then_reset, then_silence

from pypto_serving_router.admin import routes
from pypto_serving_router.errors import RouterRefused, RouterUnreachable
from pypto_serving_router.terminal import client as module
from pypto_serving_router.terminal.client import HINTS, Client, trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.sim import Sim

TOKEN = "s3cret-token"


EVERYTHING: dict[str, Any] = dict.fromkeys(
    ["replicas_ready", "replicas", "capacity", "slack", "decisions", "name", "url", "slot"]
)
"""What any document of a router's has, and more."""


def answer(body: Any = EVERYTHING, status: str = "200 OK") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(data), data)


def error(status: str, code: str, message: str) -> bytes:
    return answer({"error": {"message": message, "code": code}, "message": message}, status)


@pytest.mark.parametrize(
    ("ask", "line", "body"),
    [
        (lambda c: c.fleet(), b"GET /replicas HTTP/1.1", b""),
        (lambda c: c.fleet(8), b"GET /replicas?events=8 HTTP/1.1", b""),
        (lambda c: c.decisions(None, 5), b"GET /replicas/decisions?last=5 HTTP/1.1", b""),
        (lambda c: c.decisions("a&b c", 5), b"GET /replicas/decisions?last=5&session=a%26b+c HTTP/1.1", b""),
        (lambda c: c.launch({}), b"POST /replicas HTTP/1.1", b"{}"),
        (lambda c: c.launch({"slot": "n-d0"}), b"POST /replicas HTTP/1.1", b'{"slot":"n-d0"}'),
        (lambda c: c.retire("n-d0", force=False), b"DELETE /replicas/n-d0 HTTP/1.1", b""),
        (lambda c: c.retire("a/../b?", force=True), b"DELETE /replicas/a%2F..%2Fb%3F?force=true HTTP/1.1", b""),
        (lambda c: c.log("n-d0", 7), b"GET /replicas/n-d0/log?lines=7 HTTP/1.1", b""),
    ],
)
def test_questions(
    ask: Callable[[Client], Any], line: bytes, body: bytes, start_upstream: Callable[..., RawUpstream]
) -> None:
    """Each question is the request that it is documented to be, with the token (spec 6.2 to 6.6)."""
    router = start_upstream(answer())

    ask(Client(f"{router.url}/", TOKEN))

    (request,) = router.requests
    head, _, sent = request.partition(b"\r\n\r\n")
    assert head.splitlines()[0] == line
    assert b"Authorization: Bearer s3cret-token" in head.splitlines()
    assert sent == body


def test_without_a_token(start_upstream: Callable[..., RawUpstream]) -> None:
    """Who has no token sends none (spec 6.6)."""
    router = start_upstream(answer())

    Client(router.url).fleet()

    assert b"authorization" not in router.requests[0].lower()


def test_a_router_below_a_path(start_upstream: Callable[..., RawUpstream]) -> None:
    """A proxy may keep the router below a path of its own (spec 9)."""
    router = start_upstream(answer())

    Client(f"{router.url}/llm/").fleet()

    assert router.requests[0].startswith(b"GET /llm/replicas HTTP/1.1")


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
def test_health_is_an_answer_either_way(status: str, start_upstream: Callable[..., RawUpstream]) -> None:
    """A router that is down says so with a document, too (spec 6.1)."""
    router = start_upstream(health=answer(status=status))

    assert Client(router.url).health() == EVERYTHING


def test_a_log_is_bytes(start_upstream: Callable[..., RawUpstream]) -> None:
    """A log comes as it was written (spec 6.5)."""
    router = start_upstream(answer(b"a\xff\n"))

    assert Client(router.url).log("x", 1) == b"a\xff\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (then_close(b""), "the connection was closed without an answer"),
        (then_reset(), "Connection reset by peer"),
        (then_close(b"SSH-2.0-OpenSSH_9.2\r\n"), "it does not speak http"),
        (then_close(b"\x15\x03\x01\x00\x02\x02\x28"), "it speaks https, not http"),
        (then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), "the answer was cut off"),
        (answer(b"<html>"), "what answers there is not a router"),
        (answer(b"[]"), "what answers there is not a router"),
        (answer(b"<html>", "404 Not Found"), "what answers there is not a router (status 404)"),
        (answer({"detail": "Not Found"}, "404 Not Found"), "what answers there is not a router (status 404)"),
        (answer({"error": "x"}, "500 No"), "what answers there is not a router (status 500)"),
        (answer(b"", "302 Found"), "what answers there is not a router (status 302)"),
    ],
)
def test_what_is_not_a_router(script: Any, why: str, start_upstream: Callable[..., RawUpstream]) -> None:
    """Whatever answers in a router's place is one line: what, where, and what to do (spec 1.5)."""
    there = start_upstream(script)

    with pytest.raises(RouterUnreachable) as caught:
        Client(there.url).fleet()

    said = f"{there.url}: can't be asked: {why}; --url or PYPTO_ROUTER_URL says where the router is"
    assert str(caught.value) == said


def test_a_replica_is_not_a_router(start_sim: Callable[..., Sim]) -> None:
    """Who asks a replica by mistake is told that it is no router (spec 1.5)."""
    client = Client(start_sim().url)

    for ask in (client.health, client.fleet, lambda: client.retire("x", force=False)):
        with pytest.raises(RouterUnreachable, match="what answers there is not a router"):
            ask()


def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection and an unknown name are errors with their reasons (spec 1.5)."""
    with refusing_port() as port, pytest.raises(RouterUnreachable, match="can't be asked: Connection refused"):
        Client(f"http://127.0.0.1:{port}").health()
    with pytest.raises(RouterUnreachable, match="can't be asked: its name is none that can be looked up"):
        Client("http://router..example:1").health()

    def look_up(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(RouterUnreachable, match="can't be asked: Name or service not known"):
        Client("http://router.example:1").health()


def test_an_answer_that_does_not_come(
    start_upstream: Callable[..., RawUpstream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever for what the router knows by itself (spec 1.5)."""
    monkeypatch.setattr(module, "BY_HOST", 0.05)
    router = start_upstream(then_silence())

    with pytest.raises(RouterUnreachable, match=r"no answer within 0\.05 s"):
        Client(router.url).log("x", 1)


@pytest.mark.parametrize(
    ("status", "code", "message", "said"),
    [
        ("404 Not Found", "unknown_replica", "no slot x", "no slot x; `status` shows what there is"),
        ("409 Conflict", "other", "a\x1b[31mb\nc", "a\\x1b[31mb | c"),
        ("401 Unauthorized", "unauthorized", "…", "does not accept the token in PYPTO_ROUTER_ADMIN_TOKEN"),
    ],
)
def test_refusals(status: str, code: str, message: str, said: str, start_upstream: Callable[..., RawUpstream]) -> None:
    """An error of the router's is one line that says what to do; nothing in it drives a terminal (spec 1.5)."""
    router = start_upstream(error(status, code, message))

    with pytest.raises(RouterRefused) as caught:
        Client(router.url, TOKEN).fleet()

    assert str(caught.value) == f"{router.url}: {said}"
    assert (str(caught.value.status), caught.value.code) == (status[:3], code)
    assert TOKEN not in str(caught.value)


def test_a_token_is_wanted(start_upstream: Callable[..., RawUpstream]) -> None:
    """Who has no token is told where to put it (spec 6.6)."""
    router = start_upstream(error("401 Unauthorized", "unauthorized", "…"))

    with pytest.raises(RouterRefused, match="set PYPTO_ROUTER_ADMIN_TOKEN in the environment"):
        Client(router.url).fleet()


def test_hints_are_for_errors_that_there_are() -> None:
    """What to do is said of errors that a router answers with (spec 1.5)."""
    source = Path(str(routes.__file__)).read_text()
    assert [code for code in HINTS if f'"{code}"' not in source] == []


def test_https(start_upstream: Callable[..., RawUpstream], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Behind https the certificate is verified (spec 9)."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    router = start_upstream(answer(), tls=context)

    with pytest.raises(RouterUnreachable, match="its certificate is not good: "):
        Client(router.url).fleet()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert Client(router.url).fleet() == EVERYTHING


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it does not speak https"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "no TLS with it: .*handshake failure"),
        (b"", "the connection was closed without an answer"),
    ],
)
def test_what_is_not_https(first: bytes, why: str) -> None:
    """A server of another kind is told in words, not in those of a library (spec 1.5)."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        thread.submit(_answer_once, server, first)
        with pytest.raises(RouterUnreachable, match=f"can't be asked: {why}; --url"):
            Client(f"https://127.0.0.1:{server.getsockname()[1]}").fleet()


def _answer_once(server: socket.socket, data: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        assert connection.recv(65536)
        connection.sendall(data)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "https://[::1]:8443/", "http://router", "http://gate.example:80/llm"]
)
def test_urls(url: str) -> None:
    """A router may be anywhere that http reaches (spec 9)."""
    assert trouble(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "", "router", "router:8000", "ftp://router", "http://", "http://:8000", "http://router:x", "http://router:99999",
        "http://router:0", "http://user:pw@router", "http://router/?x", "http://router/#x", "http://ro uter",
        "http://r\nr", "http://[::1", "http://roüter",
    ],
)  # fmt: skip
def test_wrong_urls(url: str) -> None:
    """What is not the URL of a router is refused before anything is sent (spec 1.5)."""
    assert trouble(url)
