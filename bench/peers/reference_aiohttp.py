"""The same router as reference_httpx.py over aiohttp's server and client, on uvloop.

python reference_aiohttp.py --port N --replica http://127.0.0.1:9101 --replica http://127.0.0.1:9102
"""

import argparse
import json
from collections.abc import AsyncIterator

import aiohttp  # type: ignore[import-not-found,unused-ignore]  # not among the project's dependencies
import uvloop
from aiohttp import web  # type: ignore[import-not-found,unused-ignore]  # likewise

PER_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
    "content-length",
}


def build(replicas: list[str]) -> web.Application:
    """Return the application."""
    load = dict.fromkeys(replicas, 0)
    pins: dict[str, str] = {}
    client_key = web.AppKey("client", aiohttp.ClientSession)

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def relay(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        session = request.headers.get("X-Session-Id") or json.loads(body).get("session_id")
        replica = pins.get(session)
        if replica is None:
            replica = min(load, key=lambda r: load[r])
            if session:
                pins[session] = replica
        load[replica] += 1
        try:
            headers = [(k, v) for k, v in request.headers.items() if k.lower() not in PER_HOP]
            client = request.app[client_key]
            async with client.post(replica + request.path, data=body, headers=headers) as answer:
                out = web.StreamResponse(status=answer.status)
                for k, v in answer.headers.items():
                    if k.lower() not in PER_HOP or k.lower() == "content-length":
                        out.headers[k] = v
                if session:
                    out.headers["X-Session-Id"] = session
                await out.prepare(request)
                async for piece in answer.content.iter_any():
                    await out.write(piece)
                await out.write_eof()
                return out
        finally:
            load[replica] -= 1

    async def client(app: web.Application) -> AsyncIterator[None]:
        app[client_key] = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        yield
        await app[client_key].close()

    app = web.Application(client_max_size=64 << 20, handler_args={"access_log": None})
    app.cleanup_ctx.append(client)
    app.router.add_get("/health", health)
    app.router.add_post("/v1/chat/completions", relay)
    app.router.add_post("/v1/completions", relay)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replica", action="append", required=True)
    args = parser.parse_args()
    web.run_app(
        build(args.replica),
        host="127.0.0.1",
        port=args.port,
        print=None,
        access_log=None,
        backlog=4096,
        handler_cancellation=True,
        loop=uvloop.new_event_loop(),
    )
