"""Every exception of the package, grouped by what the caller can do about it."""

from __future__ import annotations

from dataclasses import dataclass


class RouterError(Exception):
    """The root of everything raised by design."""


# --- the operator can mend it ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the fleet file or the options.

    `place` is an option (`--port`) or a path in the file (`hosts[1].devices[2]`); `message` says what was found
    and what is allowed.
    """

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class ConfigError(RouterError):
    """The fleet file or the options are wrong; every problem found is listed."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


class JournalError(RouterError):
    """The state file cannot be read, written or locked."""


# --- the operator asked for what can't be -----------------------------------------------------


class PoolFull(RouterError):
    """No slot is free, or the ceiling is reached."""


class UnknownSlot(RouterError):
    """No slot, host or launched replica goes by that name."""


class SlotBusy(RouterError):
    """The slot that was asked for is taken, or something answers at its address."""


class LaunchFailed(RouterError):
    """The launch was tried on the slot it names, and failed."""

    def __init__(self, slot: str, message: str) -> None:
        super().__init__(message)
        self.slot = slot


# --- the client can mend it ------------------------------------------------------------------


class RequestError(RouterError):
    """The client's request is refused: `status` and a machine-readable `code` say why."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


# --- trying later may help -------------------------------------------------------------------


class NoReplica(RouterError):
    """No replica is routable now."""

    def __init__(self, message: str = "no replica is routable", *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OutOfDescriptors(RouterError):
    """This process may open no more files or sockets."""


# --- the replica's side failed ---------------------------------------------------------------


class UpstreamError(RouterError):
    """An exchange failed on the replica's side.

    `sent` is False when nothing left this machine; `began` is True when the client has been given the answer's head.
    """

    sent = True
    began = False


class ConnectFailed(UpstreamError):
    """No connection to the replica was made; `refused` when it was refused, rather than timed out."""

    sent = False

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class UpstreamClosed(UpstreamError):
    """The connection broke before the answer was complete."""


class UpstreamTimeout(UpstreamError):
    """No answer began within the request timeout."""


class UpstreamProtocolError(UpstreamError):
    """The replica's bytes are not an HTTP/1.1 answer that every parser reads the same way."""


# --- a host could not be asked ---------------------------------------------------------------


class TransportError(RouterError):
    """A command did not demonstrably run to its end on a host. It means *unknown*, never *gone*."""


# --- a running router could not be asked, or would not ---------------------------------------


class RouterUnreachable(RouterError):
    """No router answered at the URL."""


class RouterRefused(RouterError):
    """The router answered with an error: its `status` and machine-readable `code` say which."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


# --- a fault in the router itself ------------------------------------------------------------


class IllegalTransition(AssertionError):
    """A decision was taken that the slot's state does not allow. Never caught."""
