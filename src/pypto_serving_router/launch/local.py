"""The router's own machine: a command is a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, cast

from pypto_serving_router.errors import TransportError
from pypto_serving_router.launch.transport import Completed

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTPUT_LIMIT = 16 * 1024 * 1024
"""Bytes. Ten times the longest answer; what prints more is not answering."""

_REAP = 5.0
"""Seconds for a killed child to end; only one that hangs in the kernel takes longer than no time."""


class LocalTransport:
    """Runs commands as children of the router."""

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float) -> Completed:  # noqa: ASYNC109 - the command is ended, too
        """Run a program; one that is not done in time is killed.

        Raises:
            TransportError: It could not be run, took too long, printed too much or was ended by a signal.
        """
        # A session of its own: Ctrl-C at the router's terminal is the router's business, not its commands'.
        # The router's settings may hold a token, and a user's ssh_config may send any variable to any host.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYPTO_ROUTER_")}
        spawn = asyncio.get_running_loop().subprocess_exec
        try:
            child, capture = await spawn(_Capture, *argv, env=environment, start_new_session=True)
        except OSError as problem:
            raise TransportError(f"cannot run {argv[0]}: {problem.strerror}") from problem
        try:
            capture.feed(stdin)
            async with asyncio.timeout(timeout):
                await capture.complete
        except TimeoutError:
            raise TransportError(f"{argv[0]} was not done after {timeout:g} s") from None
        finally:
            if child.get_returncode() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.get_pid(), signal.SIGKILL)
            await asyncio.wait([capture.exited], timeout=_REAP)
            child.close()
        status = child.get_returncode()
        if capture.overflowed or status is None or status < 0:
            reason = "printed too much" if capture.overflowed else f"was ended by signal {-(status or 0)}"
            raise TransportError(f"{argv[0]} {reason}")
        return Completed(status, bytes(capture.output[1]), bytes(capture.output[2]))


class _Capture(asyncio.SubprocessProtocol):
    """Feeds a child its input and collects its output."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.output = {1: bytearray(), 2: bytearray()}
        self.overflowed = False
        self.exited = loop.create_future()
        self.complete = loop.create_future()
        """It has exited and its output has ended, or there is too much of it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._child = cast("asyncio.SubprocessTransport", transport)  # uvloop's is one in all but name

    def feed(self, data: bytes) -> None:
        pipe = cast("asyncio.WriteTransport", self._child.get_pipe_transport(0))
        if not pipe.is_closing():  # else it has already ended without reading
            pipe.write(data)
            pipe.write_eof()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.output[fd] += data
        if len(self.output[fd]) > OUTPUT_LIMIT and not self.overflowed:
            self.overflowed = True
            self._end()

    def process_exited(self) -> None:
        self.exited.set_result(None)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.complete.done():
            self.complete.set_result(None)
