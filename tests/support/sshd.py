"""A real sshd on a loopback port, and an ssh_config with an alias for each way a connection to it can go."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import stat
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
AVAILABLE = os.access(SSHD, os.X_OK) and shutil.which("ssh") is not None

# Cheap for a test that makes many connections: the key exchange, and a bash that leaves ~/.bashrc unread.
QUICK = "KexAlgorithms curve25519-sha256\nSetEnv SHLVL=2\n"

# alias: what differs from a connection that works
ALIASES = {
    "node01": "IdentityFile {folder}/id",
    "no-key": "",
    "noisy": "IdentityFile {folder}/noisy",
    "self-willed": "IdentityFile {folder}/id\nRemoteCommand echo no\nRequestTTY force\nControlMaster auto\n"
    "ControlPath {folder}/control\nLocalForward {silent} 127.0.0.1:1\nExitOnForwardFailure yes\nForwardAgent yes",
    "key-refused": "IdentityFile {folder}/stranger",
    "host-unknown": "IdentityFile {folder}/id\nUserKnownHostsFile /dev/null",
    "host-changed": "IdentityFile {folder}/id\nUserKnownHostsFile {folder}/known_hosts_changed",
    "port-closed": "Port {closed}",
    "port-silent": "Port {silent}",
}


class Sshd:
    """What tests need to know of a running sshd: `bin` first in PATH makes `ssh` use its ssh_config."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"


@contextmanager
def run_sshd(folder: Path) -> Iterator[Sshd]:
    """Run an sshd that lets only its own user in; without root, too."""
    for name in ("host", "other_host", "id", "noisy", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    # A login that prints, as login files do, before and without the end of its line.
    noise = 'command="echo Welcome; printf %s MOTD; eval \\"$SSH_ORIGINAL_COMMAND\\""'
    keys = (folder / "id.pub").read_text() + f"{noise} {(folder / 'noisy.pub').read_text()}"
    (folder / "authorized_keys").write_text(keys)
    if os.getuid() == 0:  # as root it wants its folder for privilege separation
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but it does not listen
        server, port = _start(folder)
        try:
            _write_client_files(folder, port, closed=closed.getsockname()[1], silent=silent.getsockname()[1])
            yield Sshd(folder)
        finally:
            server.terminate()
            server.wait()


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(5):  # another process may take the port between our look and sshd's bind
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port: int = probe.getsockname()[1]
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\nPidFile none\nUseDNS no\n"
            f"{QUICK}AcceptEnv *\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
            # Without PAM, an ordinary user's sshd cannot read the shadow file and takes every account for locked.
            f"KbdInteractiveAuthentication no\nUsePAM {'no' if os.getuid() == 0 else 'yes'}\n"
        )
        with (folder / "sshd.log").open("wb") as log:
            server = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", folder / "sshd_config"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        give_up_at = time.monotonic() + 10
        while server.poll() is None and time.monotonic() < give_up_at:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    return server, port
            time.sleep(0.01)
        server.kill()
        server.wait()
    raise RuntimeError((folder / "sshd.log").read_text())


def _write_client_files(folder: Path, port: int, *, closed: int, silent: int) -> None:
    for file, key in (("known_hosts", "host.pub"), ("known_hosts_changed", "other_host.pub")):
        (folder / file).write_text(f"[127.0.0.1]:{port} {(folder / key).read_text()}")
    lines = []
    for alias, difference in ALIASES.items():  # of a setting given twice, ssh takes the first
        lines += [f"Host {alias}", difference.format(folder=folder, closed=closed, silent=silent)]
    lines += [
        "Host *", "HostName 127.0.0.1", f"Port {port}", f"User {getpass.getuser()}", "IdentitiesOnly yes",
        f"UserKnownHostsFile {folder}/known_hosts", "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes", "SendEnv *",
    ]  # fmt: skip
    (folder / "ssh_config").write_text("\n".join(lines) + "\n")
    write_ssh_wrapper(folder / "bin", [shutil.which("ssh") or "ssh", "-F", str(folder / "ssh_config")])


def write_ssh_wrapper(folder: Path, command: list[str]) -> None:
    """Write an `ssh` for the front of PATH: OpenSSH takes its configuration from no variable, not even HOME."""
    folder.mkdir()
    wrapper = folder / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
