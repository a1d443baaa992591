"""An independent reader of HTTP/1.1: what h11, which is strict and not ours, finds in the same bytes."""

from __future__ import annotations

from dataclasses import dataclass

import h11

_MAX_HEAD = 1 << 20

Fields = list[tuple[bytes, bytes]]


@dataclass
class SeenRequest:
    """One request; `body` is what it holds, without its framing; `whole` is False where the bytes end within it."""

    method: bytes
    target: bytes
    version: bytes
    fields: Fields
    body: bytes = b""
    whole: bool = False

    def values(self, name: bytes) -> list[bytes]:
        """Give the values of a field, `name` in lower case."""
        return [value for found, value in self.fields if found == name]


@dataclass
class SeenResponse:
    """One response with its interim ones; `rest` is what follows it."""

    status: int
    version: bytes
    fields: Fields
    interim: list[tuple[int, Fields]]
    body: bytes = b""
    whole: bool = False
    rest: bytes = b""

    def values(self, name: bytes) -> list[bytes]:
        """Give the values of a field, `name` in lower case."""
        return [value for found, value in self.fields if found == name]


def read_requests(data: bytes) -> tuple[list[SeenRequest], bool]:
    """Find every request in what a client sent; tell also whether all of it was readable."""
    requests: list[SeenRequest] = []
    while data:
        while data.startswith(b"\r\n"):  # RFC 9112 2.2 allows a server to pass over them; h11 does not
            data = data[2:]
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        connection.receive_data(data)
        request: SeenRequest | None = None
        try:
            while True:
                event = connection.next_event()
                if isinstance(event, h11.Request):
                    version = event.http_version
                    request = SeenRequest(event.method, event.target, version, _lower(event.headers))
                    requests.append(request)
                elif isinstance(event, h11.Data) and request is not None:
                    request.body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage) and request is not None:
                    request.whole = True
                    break
                else:
                    return requests, True  # more would have to come
        except h11.RemoteProtocolError:
            return requests, False
        data = bytes(connection.trailing_data[0])
    return requests, True


def read_response(data: bytes, *, method: bytes = b"GET", ended: bool = False) -> SeenResponse:
    """Find the first response in what a client got for a request by `method`; `ended` where the connection was closed.

    Raises:
        h11.RemoteProtocolError: it is malformed, or `ended` before it was whole.
    """
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
    connection.send(h11.Request(method=method, target=b"/", headers=[(b"Host", b"x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    if ended:
        connection.receive_data(b"")
    interim: list[tuple[int, Fields]] = []
    response: SeenResponse | None = None
    while True:
        event = connection.next_event()
        if isinstance(event, h11.InformationalResponse):
            interim.append((event.status_code, _lower(event.headers)))
        elif isinstance(event, h11.Response):
            response = SeenResponse(event.status_code, event.http_version, _lower(event.headers), interim)
        elif isinstance(event, h11.Data):
            assert response is not None
            response.body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert response is not None
            response.whole = True
            response.rest = bytes(connection.trailing_data[0])
            return response
        else:
            assert response is not None, f"no whole head in {data!r}"
            return response


def _lower(headers: object) -> Fields:
    return [(bytes(name).lower(), bytes(value)) for name, value in headers]  # type: ignore[attr-defined]
