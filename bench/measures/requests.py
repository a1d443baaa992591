"""What a request that is not streamed costs, and how much later its answer comes."""

from bench.load import Load
from bench.measures.context import Context, Figures, Measured, measured
from bench.proxy import Proxy
from bench.script import Script
from bench.wire import Session


def _figures(result: Measured) -> Figures:
    report = result.report
    return {
        **result.microseconds(report.requests),
        "rps": report.per_second,
        "lat_p50": report.latency.p50,
        "lat_p99": report.latency.p99,
        "bad": report.bad,
    }


async def _closed_loop(context: Context, proxy: Proxy, *, connections: int, kib: int, session: Session) -> Figures:
    load = Load(
        port=proxy.port,
        script=Script(),
        connections=connections,
        seconds=context.seconds,
        body_bytes=kib * 1024,
        session=session,
    )
    return _figures(await measured(context, proxy, load, same_core=True))


async def request(context: Context, proxy: Proxy) -> Figures:
    return await _closed_loop(context, proxy, connections=32, kib=2, session="header")


async def request_body(context: Context, proxy: Proxy) -> Figures:
    return await _closed_loop(context, proxy, connections=32, kib=2, session="body")


async def big(context: Context, proxy: Proxy) -> Figures:
    return await _closed_loop(context, proxy, connections=8, kib=200, session="header")


async def big_body(context: Context, proxy: Proxy) -> Figures:
    return await _closed_loop(context, proxy, connections=8, kib=200, session="body")


async def latency(context: Context, proxy: Proxy) -> Figures:
    rate = 200
    load = Load(
        port=proxy.port,
        script=Script(),
        connections=4,
        rate=rate,
        requests=max(20, int(rate * context.seconds)),
    )
    return _figures(await measured(context, proxy, load))
