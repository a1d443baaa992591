"""Another machine: a command is run by the system's OpenSSH client."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from pypto_serving_router.errors import TransportError
from pypto_serving_router.launch.local import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pypto_serving_router.launch.transport import Completed

_CLIENT_FAILED = 255
"""ssh's own failures, and a remote exit of that number: which of the two is not to be told."""

_OPTIONS = {
    "BatchMode": "yes",  # never ask for a password or a host key
    "ConnectionAttempts": "1",
    "ServerAliveCountMax": "3",
    # One connection for each command: a shared one that was cut makes every later command hang.
    "ControlMaster": "no",
    "ControlPath": "none",
    # Whatever the user's ssh_config wants of a session by hand.
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
}


class SshTransport:
    """Runs commands on a host that ssh reaches; all else about the connection is ssh_config's.

    `connect_timeout` bounds the connecting. A host that does not answer for three times `alive_interval` seconds is
    given up on: what it was told to run may run on.
    """

    def __init__(
        self, destination: str, *, identity_file: str | None = None, connect_timeout: float, alive_interval: float
    ) -> None:
        self._destination = destination
        self._local = LocalTransport()
        options = {
            **_OPTIONS,
            "ConnectTimeout": str(math.ceil(connect_timeout)),
            "ServerAliveInterval": str(math.ceil(alive_interval)),
        }
        if identity_file is not None:
            options |= {"IdentitiesOnly": "yes", "IdentityFile": _quote(identity_file)}
        self._client = ["ssh", *(f"-o{name}={value}" for name, value in options.items()), "--", destination]

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float) -> Completed:  # noqa: ASYNC109 - the command is ended, too
        """Run a program on the host; the client is killed if it is not done in time.

        Raises:
            TransportError: The client failed, in its own words, or the program exited with 255.
        """
        completed = await self._local.run([*self._client, shlex.join(argv)], stdin=stdin, timeout=timeout)
        if completed.exit == _CLIENT_FAILED:
            raise TransportError(f"ssh {self._destination}: {completed.words or 'failed without a word'}")
        return completed


def _quote(path: str) -> str:
    """Write a path for ssh_config, where `%` begins a placeholder. The option `-i` takes no such path."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
