"""One proxy as a process: its files, its start, its sleep while others are measured, its end."""

import asyncio
import json
import os
import random
import shlex
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.catalogue import DIRECT, HERE, Programs
from bench.processes import process_tree, send_signal
from bench.script import Script
from bench.wire import chat, once, post

Address = tuple[str, int]
_READY_WITHIN = 30.0


class ProxyFailed(Exception):
    """The proxy ended, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where proxies run and what they get."""

    commands: dict[str, str]
    programs: Programs
    folder: Path
    cpu: int
    """The core of their own."""
    files: int
    """How many descriptors one process may open."""


def free_port() -> int:
    """Return a port nobody listens on, below the range that outgoing connections use."""
    while True:
        port = random.randint(10_000, 32_000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def fleet_file(folder: Path, replicas: Sequence[Address]) -> Path:
    """Write the file our own router reads."""
    rows = [{"name": f"r{i}", "host": host, "port": port} for i, (host, port) in enumerate(replicas)]
    path = folder / "fleet.json"
    path.write_text(json.dumps({"replicas": rows}, indent=1))
    return path


class Proxy:
    """A proxy, or nothing where its name is `direct`.

    Raises:
        NotFound: a program it needs is not on this machine.
    """

    def __init__(self, name: str, setting: Setting, replicas: Sequence[Address], tag: str) -> None:
        self.name = name
        self.port = replicas[0][1] if name == DIRECT else free_port()
        self.argv: list[str] = []
        self.folder = setting.folder / f"{name}-{tag}"
        self._cpu = setting.cpu
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        if name != DIRECT:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._environment, self.argv = self._command(setting, replicas)

    def _command(self, setting: Setting, replicas: Sequence[Address]) -> tuple[dict[str, str], list[str]]:
        urls = [f"http://{host}:{port}" for host, port in replicas]
        values = {
            "port": self.port,
            "metrics_port": free_port(),
            "folder": self.folder,
            "peers": HERE / "peers",
            "fleet_file": fleet_file(self.folder, replicas),
            "urls": " ".join(urls),
            "replica_flags": " ".join(f"--replica {url}" for url in urls),
            "nginx_conf": self._nginx(setting, replicas, buffering="on"),
            "nginx_streaming_conf": self._nginx(setting, replicas, buffering="off"),
            "haproxy_cfg": self._haproxy(setting, replicas),
        }
        text = setting.commands[self.name]
        for key, value in values.items():
            text = text.replace(f"{{{key}}}", str(value))
        words = shlex.split(text)
        environment = {k: v for k, v in os.environ.items() if k.lower() not in {"http_proxy", "all_proxy"}}
        while words and "=" in words[0] and not words[0].startswith(("/", ".", "{")):
            key, _, setting_of_it = words.pop(0).partition("=")
            environment[key] = setting_of_it
        argv = [
            setting.programs.find(w.removeprefix("{bin:").removesuffix("}")) if w.startswith("{bin:") else w
            for w in words
        ]
        return environment, argv

    def _fill(self, template: str, name: str, values: dict[str, object]) -> Path:
        text = (HERE / "peers" / template).read_text()
        for key, value in values.items():
            text = text.replace(f"@{key}@", str(value))
        path = self.folder / name
        path.write_text(text)
        return path

    def _nginx(self, setting: Setting, replicas: Sequence[Address], *, buffering: str) -> Path:
        servers = [f"        server {host}:{port} max_fails=0;" for host, port in replicas]
        values = {
            "PORT": self.port,
            "FOLDER": self.folder,
            "FILES": min(setting.files, 65_536),
            "SLOTS": min(setting.files, 65_536) * 5 // 4,
            "SERVERS": "\n".join(servers),
            "BUFFERING": buffering,
        }
        return self._fill("nginx.conf.in", f"nginx-{buffering}.conf", values)

    def _haproxy(self, setting: Setting, replicas: Sequence[Address]) -> Path:
        servers = [f"    server r{i} {host}:{port} check inter 2s" for i, (host, port) in enumerate(replicas)]
        values = {
            "PORT": self.port,
            # Two descriptors for each connection, and a few hundred for itself.
            "MAXCONN": min((setting.files - 400) // 2, 30_000),
            "SERVERS": "\n".join(servers),
        }
        return self._fill("haproxy.cfg.in", "haproxy.cfg", values)

    # --- its life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start it and wait until it answers with a replica's answer.

        Raises:
            ProxyFailed: it ended, or did not answer in time.
        """
        if self.name == DIRECT:
            return
        self._spawn()
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + _READY_WITHIN
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
            if self._process.poll() is not None:
                raise ProxyFailed(f"it ended with status {self._process.returncode}; see {self.folder}/log.txt")
            if await self.answers():
                await asyncio.sleep(0.3)  # some register their replicas one after the other
                return
        raise ProxyFailed(f"no answer within {_READY_WITHIN:.0f} s; see {self.folder}/log.txt")

    def _spawn(self) -> None:
        self._log = (self.folder / "log.txt").open("ab")
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._cpu})  # inherited, so that it counts one core when it sizes its pools
        try:
            self._process = subprocess.Popen(
                self.argv,
                stdout=self._log,
                stderr=self._log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )
        finally:
            os.sched_setaffinity(0, mine)

    async def answers(self) -> bool:
        """Return whether a request gets a replica's answer within 3 s."""
        try:
            answer = await asyncio.wait_for(once(self.port, post(chat(Script()))), 3)
        except (OSError, TimeoutError, EOFError, ValueError, IndexError):
            return False
        return answer.status == 200

    def pids(self) -> list[int]:
        """Return its processes."""
        return process_tree(self._process.pid) if self._process else []

    def sleep(self) -> None:
        """Keep it off the core until `wake`."""
        send_signal(self.pids(), signal.SIGSTOP)

    async def wake(self) -> None:
        """Let it run again, and wait until it has done what it missed (health checks above all)."""
        if self._process is None:
            return
        send_signal(self.pids(), signal.SIGCONT)
        await asyncio.sleep(0.3)
        in_a_row = 0
        for _ in range(20):
            in_a_row = in_a_row + 1 if await self.answers() else 0
            if in_a_row == 4:
                return
            if not in_a_row:
                await asyncio.sleep(0.5)
        raise ProxyFailed("it does not answer after its sleep")

    def stop(self) -> None:
        """End it and everything it started."""
        if self._process is None:
            return
        pids = self.pids()
        send_signal(pids, signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            send_signal(pids, signal.SIGKILL)
            self._process.wait(3)
        self._process = None
        if self._log is not None:
            self._log.close()
