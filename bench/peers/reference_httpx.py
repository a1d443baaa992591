"""The obvious router, as a yardstick: FastAPI, httpx and uvicorn (on uvloop and httptools).

    python reference_httpx.py --port N --replica http://127.0.0.1:9101 --replica http://127.0.0.1:9102

It reads the body, finds the session in X-Session-Id or a top-level session_id, pins it to the replica with the fewest
requests, and relays the answer as raw bytes. It runs in an environment of its own.
"""

import argparse
import json

import httpx
import uvicorn  # type: ignore[import-not-found,unused-ignore]  # not among the project's dependencies
from fastapi import FastAPI, Request  # type: ignore[import-not-found,unused-ignore]  # likewise
from fastapi.responses import StreamingResponse  # type: ignore[import-not-found,unused-ignore]  # likewise
from starlette.background import BackgroundTask  # type: ignore[import-not-found,unused-ignore]  # likewise

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


def build(replicas: list[str]) -> FastAPI:
    """Return the application."""
    app = FastAPI()
    load = dict.fromkeys(replicas, 0)
    pins: dict[str, str] = {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(limits=limits, timeout=None, trust_env=False)

    async def health() -> dict[str, str]:
        return {"status": "ok"}

    async def relay(request: Request) -> StreamingResponse:
        body = await request.body()
        session = request.headers.get("x-session-id") or json.loads(body).get("session_id")
        replica = pins.get(session)
        if replica is None:
            replica = min(load, key=lambda r: load[r])
            if session:
                pins[session] = replica
        load[replica] += 1
        headers = [(k, v) for k, v in request.headers.items() if k not in PER_HOP]
        upstream = client.build_request("POST", replica + request.url.path, headers=headers, content=body)
        response = await client.send(upstream, stream=True)

        async def done() -> None:
            load[replica] -= 1
            await response.aclose()

        out = {k: v for k, v in response.headers.items() if k not in PER_HOP or k == "content-length"}
        if session:
            out["x-session-id"] = session
        return StreamingResponse(response.aiter_raw(), response.status_code, out, background=BackgroundTask(done))

    app.add_api_route("/health", health)
    for path in ("/v1/chat/completions", "/v1/completions"):
        app.add_api_route(path, relay, methods=["POST"], response_model=None)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replica", action="append", required=True)
    args = parser.parse_args()
    uvicorn.run(
        build(args.replica),
        host="127.0.0.1",
        port=args.port,
        log_level="warning",
        access_log=False,
        loop="uvloop",
        http="httptools",
        backlog=4096,
    )
