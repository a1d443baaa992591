"""What session affinity is worth, router by router. See README.md.

    python -m bench.affinity [--routers direct,ours,...] [--mixes even,skew] [--repeat 2]
    python -m bench.affinity --sim --servers 64 --conversations 384 --mixes long,longskew

The engines are real ones (`make test-engine` installs them) unless `--sim` is given. Every run starts its replicas and
its router anew, replays the same conversations, and ends both, so that no run finds another's cache.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bench.affinity.client import Turn, replay
from bench.affinity.figures import Figures, measure
from bench.affinity.report import table, verdicts, write_pictures
from bench.affinity.routers import ROUTERS, Router, Routing
from bench.affinity.servers import Servers, Setup, StartFailed
from bench.affinity.workload import MIXES, draw
from bench.catalogue import OUT, NotFound, Programs
from bench.machine import describe, raise_file_limit, require_linux

ROOT = Path(__file__).resolve().parents[2]
_REAL_WORDS, _SIM_WORDS = 0.86, 0.96
"""Words per token of the workload's text: by the tiny model's tokenizer, and at four bytes a token."""


def options() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", default=",".join(ROUTERS), help="of %(default)s")
    parser.add_argument("--router", action="append", default=[], metavar="NAME=COMMAND", help="one more, minting ids")
    parser.add_argument("--bin", action="append", default=[], metavar="NAME=PATH", help="where a program is")
    parser.add_argument("--mixes", default="even,skew", help=f"of {', '.join(MIXES)}")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--slots", type=int, default=4, help="conversations that an engine's cache holds")
    parser.add_argument("--share", type=float, help="of a core, for each engine; default: what leaves half a core free")
    parser.add_argument(
        "--engine", type=Path, default=os.environ.get("PYPTO_ENGINE_PYTHON", ROOT / ".venv-engine/bin/python")
    )
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the one that the tests made")
    parser.add_argument("--sim", action="store_true", help="simulated replicas")
    parser.add_argument("--prefill-rate", type=float, default=4000.0, help="tokens per second of a simulated replica")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--out", type=Path, default=OUT / "affinity" / time.strftime("%Y%m%d-%H%M%S"))
    return parser


def _setup(args: argparse.Namespace) -> Setup:
    if args.sim:
        return Setup(servers=args.servers, words_per_token=_SIM_WORDS, prefill_rate=args.prefill_rate)
    if not args.engine.exists():
        sys.exit(f"no engine at {args.engine}: `make test-engine` installs one, or give --sim")
    cores = len(os.sched_getaffinity(0))
    return Setup(
        servers=args.servers,
        words_per_token=_REAL_WORDS,
        engine=args.engine,
        model=args.model or args.engine.parent.parent / "tiny" / "tiny.gguf",
        slots=args.slots,
        share=args.share or min(1.0, (cores - 0.5) / args.servers),
    )


class Comparison:
    """Runs each router with each mix, several times, in rotated order."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._setup = _setup(args)
        self._programs = Programs(dict(pair.split("=", 1) for pair in args.bin))
        added = {name: Router(command, mint=True) for name, command in (pair.split("=", 1) for pair in args.router)}
        known = {**ROUTERS, **added}
        names = [name for name in args.routers.split(",") if name] + list(added)
        if unknown := [name for name in names if name not in known]:
            sys.exit(f"no router {unknown[0]!r}; there are {', '.join(known)}")
        self._routers = {name: known[name] for name in names}
        self._mixes = args.mixes.split(",")
        self.results: dict[str, dict[str, list[Figures]]] = {mix: {} for mix in self._mixes}
        self.left_out: dict[str, str] = {}

    async def run(self) -> None:
        """Run everything that can be run."""
        names = list(self._routers)
        for turn in range(self._args.repeat):
            shift = turn * (len(names) // self._args.repeat + 1) % len(names)
            for mix in self._mixes:
                for name in names[shift:] + names[:shift]:
                    if name not in self.left_out:
                        await self._try(name, mix, turn)
        for mix in self._mixes:  # in the order of the request, whatever the rotation
            runs = self.results[mix]
            self.results[mix] = {name: runs[name] for name in names if name in runs}

    async def _try(self, name: str, mix: str, turn: int) -> None:
        try:
            figures = await self._run(name, mix, turn)
        except (StartFailed, NotFound) as error:
            self.left_out[name] = str(error)
            print(f"! {name}: {error}", file=sys.stderr, flush=True)
            return
        self.results[mix].setdefault(name, []).append(figures)
        words = " ".join(f"{key}={value:.3g}" for key, value in asdict(figures).items())
        print(f"{mix:9}{name:20}{words}", file=sys.stderr, flush=True)

    async def _run(self, name: str, mix: str, turn: int) -> Figures:
        args = self._args
        folder = args.out / f"{name}-{mix}-{turn}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        conversations = draw(
            MIXES[mix],
            seed=f"{args.seed}-{mix}-{turn}",
            count=args.conversations,
            servers=args.servers,
            words_per_token=self._setup.words_per_token,
        )
        turns: list[Turn] = []
        servers = Servers(self._setup, folder)
        routing: Routing | None = None
        try:
            await servers.ready()
            routing = Routing(self._routers[name], self._programs, servers.ports, self._setup.request_model, folder)
            await routing.start()
            start = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for one in conversations:
                    port, mint = routing.port_for(one.home), self._routers[name].mint
                    model = self._setup.request_model
                    group.create_task(replay(one, port, model=model, mint=mint, start=start, note=turns))
            total = time.perf_counter() - start
        finally:
            if routing is not None:
                routing.stop()
            servers.stop()
        (folder / "turns.json").write_text(json.dumps([one.document() for one in turns]))
        return measure(turns, servers=args.servers, total=total)


def _report(args: argparse.Namespace, comparison: Comparison) -> str:
    what = "simulated replicas" if args.sim else f"engines of {args.slots} slots"
    title = f"{args.conversations} conversations, {args.servers} {what}"
    parts = [", ".join(f"{key}: {value}" for key, value in describe().items())]
    for mix, runs in comparison.results.items():
        if runs:
            parts += [f"### {mix}: {title}, median of {args.repeat}", table(runs), verdicts(mix, runs)]
    parts += [f"- {name} was left out: {why}" for name, why in comparison.left_out.items()]
    write_pictures(args.out, comparison.results, {mix: f"{mix}: {title}" for mix in comparison.results})
    return "\n\n".join(filter(None, parts)) + "\n"


def main() -> int:
    """Run from the command line."""
    args = options().parse_args()
    require_linux()
    raise_file_limit()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(args)
    asyncio.run(comparison.run())
    results = {
        mix: {name: [asdict(run) for run in each] for name, each in runs.items()}
        for mix, runs in comparison.results.items()
    }
    facts = {"machine": describe(), "options": {key: str(value) for key, value in vars(args).items()}}
    (args.out / "results.json").write_text(json.dumps({**facts, "results": results}, indent=1))
    text = _report(args, comparison)
    (args.out / "report.md").write_text(text)
    print(text)
    return 0 if any(comparison.results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
