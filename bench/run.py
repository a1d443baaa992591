"""Compares our router with nginx, HAProxy and the published routers on this machine. See README.md.

    python -m bench.run [--peers ours,nginx,...] [--tests req,sse,...] [--rounds 3] [--seconds 3]

This process holds the load generator and the stub replicas on one core; the proxies run on another, and are stopped
while they are not being measured. The report goes to stdout and, with the figures and plots, to the folder `--out`.
"""

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TypedDict

import uvloop
from bench.catalogue import COMMANDS, DEFAULT_PEERS, OUT, Programs
from bench.comparison import Comparison
from bench.machine import cores, describe, raise_file_limit, require_linux
from bench.measures.context import Context
from bench.measures.registry import MEASURES
from bench.plots import write_plots
from bench.proxy import Setting
from bench.stub import Stats, addresses_of, serve
from bench.summary import Results
from bench.tables import report

_SPARE_FILES = 600
"""Descriptors a process needs besides two for each open stream."""


RESULTS = "results.json"


class Document(TypedDict):
    """What is kept of a comparison."""

    machine: dict[str, str]
    options: dict[str, str]
    order: list[str]
    versions: dict[str, str]
    commands: dict[str, list[str]]
    not_run: dict[str, str]
    results: Results


def options() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(DEFAULT_PEERS), help=f"of {', '.join(['direct', *COMMANDS])}")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="one more proxy, or another command for a known one; {port}, {metrics_port}, {fleet_file}, {urls}, "
        "{replica_flags} and {folder} are filled in; leading VAR=value words go to its environment",
    )
    parser.add_argument("--bin", action="append", default=[], metavar="NAME=PATH", help="where a program is")
    parser.add_argument("--tests", default=",".join(MEASURES), help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run of a test, about")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--streams", type=int, default=2000, help="open streams of idle")
    parser.add_argument("--many-streams", type=int, default=10_000, help="open streams of idle10k")
    parser.add_argument(
        "--scheduling",
        choices=("turns", "normal"),
        default="turns",
        help="on a shared core: work off everything before the other has its turn, or as the kernel likes",
    )
    parser.add_argument("--generator-cpu", type=int, default=cores()[0])
    parser.add_argument("--proxy-cpu", type=int, default=cores()[1])
    parser.add_argument("--out", type=Path, default=OUT / "runs" / time.strftime("%Y%m%d-%H%M%S"))
    parser.add_argument("--from", dest="earlier", type=Path, metavar="RESULTS", help="report an earlier run again")
    return parser


def _names(text: str, known: set[str], kind: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            sys.exit(f"no {kind} {name!r}; there are {', '.join(sorted(known))}")
    return names


async def compare(args: argparse.Namespace) -> int:
    """Run the comparison, write and print the report; return the exit status."""
    commands = {**COMMANDS, **dict(peer.split("=", 1) for peer in args.peer)}
    added = [peer.partition("=")[0] for peer in args.peer]
    peers = _names(args.peers, {"direct", *commands}, "peer")
    peers += [name for name in added if name not in peers]
    measures = _names(args.tests, set(MEASURES), "test")
    files = raise_file_limit()
    most = (files - _SPARE_FILES) // 2
    args.out.mkdir(parents=True, exist_ok=True)
    machine = describe()
    os.sched_setaffinity(0, {args.generator_cpu})
    stats = Stats()
    servers = await serve([("127.0.0.1", 0)] * args.replicas, stats)
    programs = Programs(dict(pair.split("=", 1) for pair in args.bin))
    context = Context(
        seconds=args.seconds,
        streams=min(args.streams, most),
        many_streams=min(args.many_streams, most),
        turns=args.scheduling == "turns",
        generator_cpu=args.generator_cpu,
        proxy_cpu=args.proxy_cpu,
        programs=programs,
        folder=args.out.resolve(),
        stats=stats,
    )
    setting = Setting(commands, programs, args.out.resolve(), args.proxy_cpu, files)
    comparison = Comparison(
        context,
        setting,
        peers=peers,
        measures=measures,
        rounds=args.rounds,
        replicas=addresses_of(servers),
        keep=lambda: _write(args, comparison, machine),
    )
    if args.generator_cpu == args.proxy_cpu:
        comparison.not_run["two cores"] = "generator and proxies share one core: latencies and sat say little"
    if "idle10k" in measures and context.many_streams < args.many_streams:
        comparison.not_run[f"{args.many_streams} streams"] = (
            f"the hard limit of open files ({files}) allows {most}; idle10k was run with that many"
        )
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None
    loop.add_signal_handler(signal.SIGUSR1, _show_tasks)
    loop.add_signal_handler(signal.SIGTERM, this.cancel)  # so that no proxy outlives a run that is cut short
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        await comparison.run()
    finally:
        for server in servers:
            server.close()
        _write(args, comparison, machine)
    document: Document = json.loads((args.out / RESULTS).read_text())
    show_report(args.out, document)
    return 0 if any(comparison.results.values()) else 1


def _show_tasks() -> None:
    """Say what the comparison is waiting for."""
    for task in asyncio.all_tasks():
        task.print_stack()


def _write(args: argparse.Namespace, comparison: Comparison, machine: dict[str, str]) -> None:
    document = Document(
        machine=machine,
        options={key: str(value) for key, value in vars(args).items()},
        order=comparison.order,
        versions=comparison.versions,
        commands=comparison.commands,
        not_run=comparison.not_run,
        results=comparison.results,
    )
    (args.out / RESULTS).write_text(json.dumps(document, indent=1))


def show_report(folder: Path, document: Document) -> None:
    """Print the report, and leave it and the plots in the folder."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    chosen = document["options"]
    rounds = f"{chosen['rounds']}, {chosen['seconds']} s each; scheduling: {chosen['scheduling']}"
    facts = {**document["machine"], "proxies": versions, "rounds": rounds}
    text = report(document["results"], order=document["order"], machine=facts, not_run=document["not_run"])
    (folder / "report.md").write_text(text)
    write_plots(folder, document["results"], document["order"])
    print(text)
    print(f"In {folder}: {RESULTS}, report.md and the plots.", file=sys.stderr)


def main() -> int:
    """Run from the command line."""
    args = options().parse_args()
    if args.earlier:
        show_report(args.earlier.parent, json.loads(args.earlier.read_text()))
        return 0
    require_linux()
    return uvloop.run(compare(args))


if __name__ == "__main__":
    sys.exit(main())
