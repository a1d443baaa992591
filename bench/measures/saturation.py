"""How many requests a second one core of a proxy carries."""

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.catalogue import HERE, NotFound
from bench.load import Load, run_load
from bench.measures.context import Context, Figures
from bench.processes import cpu_usage
from bench.proxy import Address, Proxy, free_port
from bench.script import Script
from bench.stub import completion
from bench.wire import PATH, conversation

_CONNECTIONS = 64
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def tools(context: Context) -> tuple[str, str] | None:
    """Return wrk and nginx, which load and answer without being the bottleneck; None where one is missing."""
    try:
        return context.programs.find("wrk"), context.programs.find("nginx")
    except NotFound:
        return None


@asynccontextmanager
async def cheap_replicas(context: Context, usual: Sequence[Address]) -> AsyncIterator[Sequence[Address]]:
    """Give as many replicas as usual, answered by nginx on the generator's core if it can be had."""
    found = tools(context)
    if found is None:
        yield usual
        return
    addresses = [("127.0.0.1", free_port()) for _ in usual]
    folder = context.folder / "nginx-stub"
    folder.mkdir(parents=True, exist_ok=True)
    text = (HERE / "peers" / "nginx_stub.conf.in").read_text()
    listens = "\n".join(f"        listen {host}:{port} backlog=4096;" for host, port in addresses)
    for key, value in {"FOLDER": str(folder), "LISTENS": listens, "BODY": completion(600).decode()}.items():
        text = text.replace(f"@{key}@", value)
    config = folder / "nginx.conf"
    config.write_text(text)
    process = await asyncio.create_subprocess_exec(
        found[1], "-e", str(folder / "nginx.err"), "-c", str(config), stdin=subprocess.DEVNULL
    )
    try:
        await asyncio.sleep(0.5)
        yield addresses
    finally:
        process.terminate()
        await process.wait()


def _script(context: Context) -> str:
    """Write the requests as wrk wants them; return the file's path."""
    head, _, body = conversation(1, script=Script(), body_bytes=2048, session="none").partition(b"\r\n\r\n")
    lines = ['wrk.method = "POST"', f"wrk.body = [==[{body.decode()}]==]"]
    for line in head.decode().split("\r\n")[1:]:
        name, _, value = line.partition(": ")
        if name not in {"Host", "Content-Length"}:
            lines.append(f'wrk.headers["{name}"] = "{value}"')
    lines += [
        "local n = 0",
        "function request()",
        "  n = (n + 1) % 1000",
        '  wrk.headers["X-Session-Id"] = "sess-" .. n',
        f'  return wrk.format(nil, "{PATH}")',
        "end",
    ]
    path = context.folder / "wrk.lua"
    path.write_text("\n".join(lines))
    return str(path)


def _milliseconds(text: str, label: str) -> float:
    found = re.search(rf"^\s+{label}\s+([\d.]+)(us|ms|s)", text, re.MULTILINE)
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def parse_wrk(text: str) -> Figures:
    """Return what wrk printed."""
    requests = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if requests is None or rate is None:
        raise ValueError(f"wrk said nothing of use: {text[:200]!r}")
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    sockets = re.search(r"Socket errors: (.*)", text)
    broken = sum(map(int, re.findall(r"\d+", sockets[1]))) if sockets else 0
    return {
        "requests": float(requests[1]),
        "rps": float(rate[1]),
        "lat_p50": _milliseconds(text, "50%"),
        "lat_p99": _milliseconds(text, "99%"),
        "bad": float(refused[1] if refused else 0) + broken,
    }


async def _wrk(context: Context, proxy: Proxy, wrk: str) -> Figures:
    seconds = max(1, round(context.seconds))
    process = await asyncio.create_subprocess_exec(
        wrk,
        "-t1",
        f"-c{_CONNECTIONS}",
        f"-d{seconds}s",
        "--latency",
        "-s",
        _script(context),
        f"http://127.0.0.1:{proxy.port}",
        stdout=subprocess.PIPE,
    )
    return parse_wrk((await process.communicate())[0].decode())


async def _own_generator(context: Context, proxy: Proxy) -> Figures:
    load = Load(port=proxy.port, script=Script(), connections=_CONNECTIONS, seconds=context.seconds)
    report = await run_load(load)
    return {
        "requests": report.requests,
        "rps": report.per_second,
        "lat_p50": report.latency.p50,
        "lat_p99": report.latency.p99,
        "bad": report.bad,
    }


async def saturation(context: Context, proxy: Proxy) -> Figures:
    """Load the proxy, alone on its core, by wrk, or where that is missing by our own slower generator."""
    found = tools(context)
    pids = proxy.pids()
    before = cpu_usage(pids)
    begun = os.times().elapsed
    if found is None:
        figures = await _own_generator(context, proxy)
    else:
        figures = await _wrk(context, proxy, found[0])
    took = os.times().elapsed - begun
    used = cpu_usage(pids).since(before)
    requests = float(figures.pop("requests"))
    return {
        **figures,
        "cpu_us": used * 1e6 / max(1.0, requests),
        "busy_pct": 100 * used / took,
        "by": "wrk" if found else "own generator",
    }
