"""The routers that are compared: their commands and files, their start, and the wait until they route."""

import asyncio
import http.client
import json
import os
import random
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.affinity.client import Link, request_body
from bench.affinity.servers import StartFailed, start, stop
from bench.catalogue import DIRECT, Programs
from bench.proxy import fleet_file, free_port

if TYPE_CHECKING:
    import subprocess

_OURS = "{bin:pypto-serving-router} --replicas {fleet_file} --host 127.0.0.1 --port {port}"
_VLLM = (
    "{bin:vllm-router} --host 127.0.0.1 --port {port} --worker-urls {urls} --prometheus-host 127.0.0.1"
    " --prometheus-port {metrics_port} --log-level error --worker-startup-check-interval 1 --policy "
)
_SMG = (
    "{bin:smg} launch --host 127.0.0.1 --port {port} --prometheus-host 127.0.0.1 --prometheus-port {metrics_port}"
    " --log-level error --disable-tokenizer-autoload --worker-startup-check-interval 1"
    " --routing-key-headers x-session-id --policy "
)


@dataclass(frozen=True, slots=True)
class Router:
    """One way to route. Filled in: {port}, {metrics_port}, {fleet_file}, {urls}, {nginx:...}, {haproxy:...}."""

    command: str
    mint: bool = False
    """It names the sessions: the client sends an id only after it was told one."""
    registers: bool = False
    """Its replicas are told to it after its start: it routes by model name, and each has one of its own here."""


ROUTERS: Mapping[str, Router] = {
    DIRECT: Router(""),
    "ours": Router(_OURS, mint=True),
    "ours-named": Router(_OURS),
    "ours-off": Router(f"{_OURS} --affinity-slack 0", mint=True),
    "nginx": Router("{bin:nginx} -e {folder}/nginx.err -c {nginx:}"),
    "nginx-hash": Router("{bin:nginx} -e {folder}/nginx.err -c {nginx:hash $http_x_session_id consistent;}"),
    "haproxy": Router("{bin:haproxy} -db -f {haproxy:}"),
    "haproxy-stick": Router(
        "{bin:haproxy} -db"
        " -f {haproxy:stick-table type string len 64 size 100k expire 30m|stick on req.hdr(x-session-id)}"
    ),
    "vllm-router-hash": Router(f"{_VLLM}consistent_hash"),
    "vllm-router-sticky": Router(f"{_VLLM}sticky_least_loaded"),
    "smg-hash": Router(f"{_SMG}consistent_hashing", registers=True),
    "smg-cache": Router(f"{_SMG}cache_aware", registers=True),
    "smg-manual": Router(f"{_SMG}manual --assignment-mode min_group", registers=True),
}

_NGINX = """master_process off; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.err warn;
events {{ worker_connections 4096; }}
http {{
    access_log off; client_max_body_size 64m; client_body_buffer_size 512k;
    client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    upstream replicas {{ {balance} {servers} }}
    server {{ listen 127.0.0.1:{port}; location / {{
        proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection close; proxy_buffering off;
        proxy_read_timeout 600s; proxy_next_upstream off; }} }}
}}
"""
_HAPROXY = """global
    maxconn 4000
    nbthread 1
    tune.bufsize 65536
defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    option http-keep-alive
    http-reuse always
    option http-no-delay
frontend fe
    bind 127.0.0.1:{port}
    default_backend replicas
backend replicas
    balance leastconn
{stick}
    option httpchk GET /health
{servers}
"""
_READY_WITHIN = 40.0
_MODEL = "tiny"


def call(port: int, path: str, document: object = None) -> dict[str, Any]:
    """Return the JSON answer of a router's own endpoint.

    Raises:
        OSError, ValueError: it has none.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3)
    try:
        body = None if document is None else json.dumps(document)
        connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            answer: dict[str, Any] = json.load(response)
            if response.status >= 400:
                raise ValueError(answer)
            return answer
    except http.client.HTTPException as error:
        raise ValueError(error) from error
    finally:
        connection.close()


class Routing:
    """A router at work, or none where its command is empty."""

    def __init__(self, router: Router, programs: Programs, ports: Sequence[int], model: str, folder: Path) -> None:
        """Write its files.

        Raises:
            NotFound: a program it needs is not on this machine.
        """
        self._router = router
        self._ports = ports
        self._model = model
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        words = [self._fill(word) for word in shlex.split(self._filled(router.command))]
        self._argv = [programs.find(w[5:-1]) if w.startswith("{bin:") else w for w in words]

    def _filled(self, text: str) -> str:
        """Fill in what a shell may split, and quote what it must not."""
        for kind in ("nginx", "haproxy"):
            before, found, rest = text.partition(f"{{{kind}:")
            if found:
                setting, _, after = rest.partition("}")
                text = before + shlex.quote(str(self._write(kind, setting))) + after
        urls = " ".join(f"http://127.0.0.1:{port}" for port in self._ports)
        return text.replace("{urls}", urls)

    def _fill(self, word: str) -> str:
        addresses = [("127.0.0.1", port) for port in self._ports]
        values: dict[str, object] = {"port": self.port, "metrics_port": free_port(), "folder": self._folder}
        if "{fleet_file}" in word:
            values["fleet_file"] = fleet_file(self._folder, addresses)
        for key, value in values.items():
            word = word.replace(f"{{{key}}}", str(value))
        return word

    def _write(self, kind: str, setting: str) -> Path:
        path = self._folder / f"{kind}.conf"
        if kind == "nginx":
            servers = " ".join(f"server 127.0.0.1:{port} max_fails=0;" for port in self._ports)
            path.write_text(_NGINX.format(folder=self._folder, port=self.port, servers=servers, balance=setting))
        else:
            rows = [f"    server e{i} 127.0.0.1:{port} check inter 2s" for i, port in enumerate(self._ports)]
            stick = "\n".join(f"    {line}" for line in setting.split("|") if line)
            path.write_text(_HAPROXY.format(port=self.port, servers="\n".join(rows), stick=stick))
        return path

    def port_for(self, home: int) -> int:
        """Return the port for a conversation: without a router, that of its best place."""
        return self.port if self._argv else self._ports[home]

    async def start(self) -> None:
        """Start it and wait until every replica has answered through it, or enough requests have gone in vain.

        Raises:
            StartFailed: it ended, or did not answer in time.
        """
        if not self._argv:
            return
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        self._process = start(self._argv, self._folder / "router.log", {**environment, "HF_HUB_OFFLINE": "1"})
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _READY_WITHIN
        if self._router.registers:
            await self._register(deadline)
        seen: set[str] = set()
        answered = 0
        while len(seen) < len(self._ports) and answered < 10 * len(self._ports):
            if self._process.poll() is not None:
                raise StartFailed(f"it ended with {self._process.returncode}; see {self._folder}")
            if loop.time() > deadline:
                raise StartFailed(f"no answer within {_READY_WITHIN:.0f} s; see {self._folder}")
            server = await self._try()
            if server is None:
                await asyncio.sleep(0.1)
            else:
                seen.add(server)
                answered += 1

    async def _try(self) -> str | None:
        """Send a short request without a session; return which replica answered, None for none."""
        text = f"{random.getrandbits(60):x} hello"
        body = request_body(self._model, [{"role": "user", "content": text}], 2)
        link = Link(self.port)
        try:
            stream, _ = await asyncio.wait_for(link.ask(body, None), 5)
        except (OSError, EOFError, ValueError, TimeoutError):
            return None
        finally:
            link.close()
        return stream.server

    async def _register(self, deadline: float) -> None:
        """Tell it its replicas under one model name, and wait until it finds them healthy."""
        loop = asyncio.get_running_loop()
        todo = list(self._ports)
        while loop.time() < deadline:
            try:
                while todo:
                    labels = {"served_model_name": _MODEL}
                    url = f"http://127.0.0.1:{todo[0]}"
                    worker = {"url": url, "model_id": _MODEL, "models": [{"id": _MODEL}], "labels": labels}
                    await asyncio.to_thread(call, self.port, "/workers", worker)
                    todo.pop(0)
                workers = (await asyncio.to_thread(call, self.port, "/workers"))["workers"]
                if sum(worker["is_healthy"] for worker in workers) == len(self._ports):
                    return
            except (OSError, ValueError):
                pass
            await asyncio.sleep(0.1)
        raise StartFailed(f"it did not take its replicas within {_READY_WITHIN:.0f} s; see {self._folder}")

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            stop(self._process)
