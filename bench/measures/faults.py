"""How a proxy behaves under faults, told in words rather than figures."""

import asyncio
import json
import time
from dataclasses import replace
from functools import partial

from bench.load import Load, run_load
from bench.measures.context import Context, Figures
from bench.proxy import Proxy
from bench.script import Script
from bench.wire import chat, once, post, read_head

_SENT = (
    "X-Session-Id: s1",
    "X-Custom: c",
    "Authorization: Bearer k",
    "traceparent: 00-0-0-00",
    "X-Request-Id: client-rid",
    "User-Agent: ua",
)
_EXPECTED_BACK = {"content-type", "cache-control", "x-request-id", "transfer-encoding", "connection"}
_TROUBLE = (OSError, EOFError, TimeoutError, ValueError)


async def _death_midway(proxy: Proxy, script: Script) -> str:
    """Tell what a client sees of a replica that dies in the middle of a stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        writer.write(post(chat(script), ["X-Session-Id: fault"]))
        status, _ = await asyncio.wait_for(read_head(reader), 5)
        data, end = b"", "left open without an end"
        deadline = time.monotonic() + 2
        while end == "left open without an end":
            try:
                piece = await asyncio.wait_for(reader.read(65536), max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                break
            except OSError:
                end = "reset"
                break
            data += piece
            if not piece:
                end = "closed without the last chunk"
            elif data.endswith(b"0\r\n\r\n"):
                end = "A CLEAN END: the truncation is hidden"
    finally:
        writer.close()
    events = data.count(b'"t":')
    said = "; an error event was added" if b'"error' in data else ""
    return f"{status}, {events} events, {end}{said}"


async def _death_before_the_head(context: Context, proxy: Proxy) -> str:
    context.stats.reset()
    try:
        answer = await asyncio.wait_for(once(proxy.port, post(chat(Script(die_head=1)))), 8)
        outcome = str(answer.status)
    except _TROUBLE as exc:
        outcome = type(exc).__name__
    return f"{outcome} after {context.stats.requests} tries"


async def _flushing(proxy: Proxy) -> str:
    script = Script(stream=1, events=5, interval=100, size=200)
    report = await run_load(Load(port=proxy.port, script=script, connections=1, requests=1, timeout=10))
    return f"{report.reads} reads for 6 events, first body byte after {report.first_byte.p50:.1f} ms"


async def _headers(context: Context, proxy: Proxy) -> str:
    answer = await once(proxy.port, post(chat(Script(stream=1, events=1, interval=1)), _SENT))
    arrived = {name.decode("latin1").lower() for name, _ in context.stats.headers}
    lost = [name for name, _, _ in (line.partition(":") for line in _SENT) if name.lower() not in arrived]
    if answer.headers.get("x-request-id") != "stub-req":
        lost.append("the answer's x-request-id")
    if "charset" not in answer.headers.get("content-type", ""):
        lost.append("the answer's charset")
    added = sorted(set(answer.headers) - _EXPECTED_BACK)
    return f"lost: {', '.join(lost) or 'none'}; added: {', '.join(added) or 'none'}"


async def _unknown_fields(context: Context, proxy: Proxy) -> str:
    body = chat(Script(), session_id="s9", zzz_unknown={"a": [1.0, 1e2]})
    await once(proxy.port, post(body))
    arrived = b"".join(context.stats.body)
    if arrived == body:
        return "identical"
    lost = sorted(set(json.loads(body)) - set(json.loads(arrived)))
    return f"serialised anew; lost fields: {', '.join(lost) or 'none'}"


async def faults(context: Context, proxy: Proxy) -> Figures:
    closes = Script(stream=1, events=9, interval=5, die=4)
    probes = {
        "a replica closes midway": partial(_death_midway, proxy, closes),
        "a replica resets midway": partial(_death_midway, proxy, replace(closes, rst=1)),
        "a replica dies before its head": partial(_death_before_the_head, context, proxy),
        "events passed on at once": partial(_flushing, proxy),
        "headers": partial(_headers, context, proxy),
        "body": partial(_unknown_fields, context, proxy),
    }
    told: Figures = {}
    for name, probe in probes.items():
        try:
            told[name] = await probe()
        except _TROUBLE as exc:
            told[name] = f"failed: {exc!r}"
        await asyncio.sleep(0.2)  # a proxy that took the replica out of rotation gets to see it again
    return told
