"""One real replica: llama.cpp's own HTTP server, out of the xllamacpp wheel.

    ENGINE_PYTHON bench/affinity/engine.py --model tiny.gguf --port 8001

It answers /health with 503 until the model is loaded. SIGTERM and SIGINT end it at once.
"""

import argparse
import os
import signal
from typing import NoReturn

import xllamacpp  # type: ignore[import-not-found] # runs in the engine's environment

_HTTP_THREADS = 64
"""The server gives a thread to each connection that is kept open; with few, a router's idle ones would stall it."""


def _leave(*_: object) -> NoReturn:
    os._exit(0)  # the server's own end may wait for streams


def options() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", default="tiny", help="the model's name in answers")
    parser.add_argument("--context", type=int, default=8192, help="tokens that a slot holds")
    parser.add_argument("--slots", type=int, default=2, help="sequences at once, each with its part of the KV cache")
    parser.add_argument("--cache-ram-mib", type=int, default=0, help="keeps the KV of evicted slots in memory")
    return parser


def serve(args: argparse.Namespace) -> None:
    """Serve until a signal ends the process."""
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.model_alias = {args.served_model_name}
    params.hostnames = [args.host]
    params.port = args.port
    params.n_ctx = args.context * args.slots
    params.n_parallel = args.slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_threads_http = _HTTP_THREADS
    params.cache_prompt = True
    params.cache_ram_mib = args.cache_ram_mib
    params.endpoint_metrics = params.endpoint_slots = params.warmup = params.offline = True
    params.ui = False
    params.verbosity = 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    serve(options().parse_args())
