"""Hosts on one machine: each a network, process and mount namespace with its own sshd, on a bridge of the lab's own.

Root only. Nothing outside the namespaces and the lab's folder is changed, and every process ends with its namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.sshd import QUICK, SSHD, write_ssh_wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

AVAILABLE = os.getuid() == 0 and os.access(SSHD, os.X_OK) and all(map(shutil.which, ("ip", "unshare", "nsenter")))

# PID 1 of a host: it reaps orphans, as init does, and its folder for temporary files is its own.
_INIT = """
mount --make-rprivate /
ip link set lo up
mkdir -p /run/sshd
mount -t tmpfs -o mode=0755 tmpfs /run/sshd
mount -t tmpfs -o mode=0755 tmpfs "$3"
"$1" -D -e -f "$2" &
while :; do wait -n 2>/dev/null || sleep 0.2; done
"""


class Lab:
    """Some hosts and, in a namespace of its own, the place where the router would be.

    With `bin` first in PATH, `ssh` runs in that place. `disk` is a folder that every host has for itself.
    """

    def __init__(self, folder: Path, *hosts: str) -> None:
        self.bin = folder / "bin"
        self.disk = folder / "disk"
        self._folder = folder
        self._prefix = f"lab{os.getpid()}"
        self._center = f"{self._prefix}-center"
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses = {host: f"10.199.77.{index}" for index, host in enumerate(hosts, start=11)}
        self.disk.mkdir()
        for key in ("id", *hosts):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        self._write_files()
        _ip("netns", "add", self._center)
        self._center_ip("link", "set", "lo", "up")
        # Of its own accord a bridge takes a port's address, and would hear of that port even when it is taken away.
        self._center_ip("link", "add", "br0", "address", "02:00:00:00:00:01", "type", "bridge")
        self._center_ip("addr", "add", "10.199.77.1/24", "dev", "br0")
        self._center_ip("link", "set", "br0", "up")
        for host in hosts:
            self._wire(host)
            self.boot(host)

    def _write_files(self) -> None:
        known, config = [], []
        for host, address in self._addresses.items():
            known.append(f"{address} {(self._folder / f'{host}.pub').read_text()}")
            config.append(f"Host {host}\nHostName {address}\n")
            (self._folder / f"{host}.conf").write_text(
                f"Port 22\nHostKey {self._folder / host}\nPidFile none\nAuthorizedKeysFile {self._folder}/id.pub\n"
                "StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
                "KbdInteractiveAuthentication no\nUseDNS no\n" + QUICK
            )
        config.append(
            f"Host *\nUser root\nIdentityFile {self._folder}/id\nIdentitiesOnly yes\nStrictHostKeyChecking yes\n"
            f"UserKnownHostsFile {self._folder}/known_hosts\nGlobalKnownHostsFile /dev/null\n"
        )
        (self._folder / "known_hosts").write_text("".join(known))
        (self._folder / "ssh_config").write_text("".join(config))
        write_ssh_wrapper(
            self.bin, ["ip netns exec", self._center, shutil.which("ssh") or "ssh", f"-F {self._folder}/ssh_config"]
        )

    def _wire(self, host: str) -> None:
        _ip("netns", "add", self._namespace(host))
        self._center_ip("link", "add", f"to-{host}", "type", "veth", "peer", "eth0", "netns", self._namespace(host))
        self._center_ip("link", "set", f"to-{host}", "master", "br0", "up")
        self._host_ip(host, "addr", "add", f"{self._addresses[host]}/24", "dev", "eth0")
        self._host_ip(host, "link", "set", "eth0", "up")

    def boot(self, host: str) -> None:
        """Start the host's PID 1, and wait for its sshd."""
        enter = ["ip", "netns", "exec", self._namespace(host)]
        init = ["bash", "-c", _INIT, "init", SSHD, f"{self._folder / host}.conf", str(self.disk)]
        with (self._folder / f"{host}.log").open("ab") as log:
            self._hosts[host] = subprocess.Popen(
                # If this process dies, so does the host; and in any case after ten minutes.
                [*enter, "timeout", "--foreground", "-s", "KILL", "600",
                 "unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", *init],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        answers = [*enter, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/22"]
        give_up_at = time.monotonic() + 10
        while subprocess.run(answers, stderr=subprocess.DEVNULL, check=False).returncode:
            if time.monotonic() > give_up_at:
                raise TimeoutError((self._folder / f"{host}.log").read_text())
            time.sleep(0.02)

    def crash(self, host: str) -> None:
        """Kill every process of the host."""
        first = self._hosts.pop(host)
        for pid in self.pids(host):
            with contextlib.suppress(ProcessLookupError):  # the others end with the first of them
                os.kill(pid, signal.SIGKILL)
        first.wait()
        give_up_at = time.monotonic() + 10
        while self.pids(host) and time.monotonic() < give_up_at:
            time.sleep(0.02)

    def reboot(self, host: str) -> None:
        """Kill every process of the host and boot it again. Its pids start from 1; its `disk` is empty."""
        self.crash(host)
        self.boot(host)

    def run_on(self, host: str, argv: Sequence[str]) -> str:
        """Run a command on a host, be it cut off or not; what it prints is given."""
        return subprocess.run([*self.on(host), *argv], check=True, stdout=subprocess.PIPE, text=True).stdout

    def on(self, host: str) -> list[str]:
        """Return what to put in front of a command for it to run on a host."""
        return ["nsenter", "-t", str(self._init(host)), "-n", "-m", "-p", "--"]

    def router(self, program: str) -> str:
        """Write a program that runs another one, with the same arguments, in the place where the router would be."""
        path = self.bin / Path(program).name
        path.write_text(f'#!/bin/sh\nexec ip netns exec {self._center} {program} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def enter(self) -> None:
        """Move the calling thread to the place where the router would be, for good."""
        with Path("/run/netns", self._center).open("rb") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")

    def address(self, host: str) -> str:
        """Where the router reaches a host."""
        return self._addresses[host]

    def pids(self, host: str) -> list[int]:
        """Tell the host's processes by their pids outside of it."""
        return [int(pid) for pid in _ip("netns", "pids", self._namespace(host)).split()]

    def commands(self, host: str) -> list[str]:
        """Tell what runs on the host, whole: `ps` makes lines as short as the caller's terminal."""
        found = []
        for pid in self.pids(host):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                found.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip())
        return found

    def cut(self, host: str) -> None:
        """Pull the host's cable."""
        self._center_ip("link", "set", f"to-{host}", "down")

    def drop(self, host: str) -> None:
        """Let packets to the host vanish without any error: its address stays known, and nothing is connected to it."""
        mac = self._host_ip(host, "-br", "link", "show", "eth0").split()[2]
        self._center_ip("neigh", "replace", self._addresses[host], "lladdr", mac, "dev", "br0", "nud", "permanent")
        self._center_ip("link", "set", f"to-{host}", "nomaster")

    def heal(self, host: str) -> None:
        """Undo `cut` and `drop`."""
        self._center_ip("link", "set", f"to-{host}", "up", "master", "br0")
        self._center_ip("neigh", "flush", "to", self._addresses[host], "dev", "br0")

    def close(self) -> None:
        """Kill all hosts and delete the namespaces."""
        for host in list(self._hosts):
            self.crash(host)
        for namespace in (*map(self._namespace, self._addresses), self._center):
            subprocess.run(["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL, check=False)

    def _namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _init(self, host: str) -> int:
        for pid in self.pids(host):
            status = Path(f"/proc/{pid}/status").read_text()
            if any(line.startswith("NSpid:") and line.split()[2:] == ["1"] for line in status.splitlines()):
                return pid
        raise LookupError(f"{host} is not running")

    def _center_ip(self, *argv: str) -> str:
        return _ip("-n", self._center, *argv)

    def _host_ip(self, host: str, *argv: str) -> str:
        return _ip("-n", self._namespace(host), *argv)


def _ip(*argv: str) -> str:
    return subprocess.run(["ip", *argv], check=True, stdout=subprocess.PIPE, text=True).stdout
