"""How many instructions a proxy executes outside the kernel for a request or an event, as valgrind's callgrind counts.

python -m bench.instructions [--peers ours,nginx] [--tests req,reqbody,sse]

A count hardly depends on what else the machine does: it varies by two hundredths, where a CPU time varies by a tenth
and more. It knows neither the kernel nor the caches, so it says what a change of our own code has changed, and no more.
"""

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import uvloop
from bench.catalogue import COMMANDS, NotFound, Programs, version
from bench.load import Load, hold_streams, run_load
from bench.machine import raise_file_limit, require_linux
from bench.proxy import Address, Proxy, ProxyFailed, Setting
from bench.script import Script
from bench.stub import Stats, addresses_of, serve
from bench.tally import Tally
from bench.wire import Session

_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)
_VALGRIND = "valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file={folder}/callgrind.%p"
_FLAGS = {"nginx": ' -g "master_process off;"'}  # a worker is another user, who may not write where we look
_CLIENTS = 32
_WARM_UP = 400  # requests
_REQUESTS = 3200
_STREAMS = 200
_INTERVAL = 400  # ms: an event each, slow enough for a proxy that is fifty times slower than usual
_TURNS = 20  # events of each stream that are counted


def executed(folder: Path) -> int:
    """Return the instructions counted in all of callgrind's files in a folder."""
    return sum(int(total) for path in folder.glob("callgrind.*") for total in _TOTALS.findall(path.read_text()))


async def _control(proxy: Proxy, *words: str) -> None:
    for pid in proxy.pids():
        process = await asyncio.create_subprocess_exec(
            "callgrind_control", *words, str(pid), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        _, complaint = await process.communicate()
        if process.returncode:
            raise ProxyFailed(f"callgrind_control {' '.join(words)}: {complaint.decode().strip()}")


async def _requests(proxy: Proxy, session: Session) -> int:
    load = Load(port=proxy.port, script=Script(), connections=_CLIENTS, requests=_WARM_UP, session=session)
    await run_load(load)
    await _control(proxy, "-i", "on")
    report = await run_load(
        Load(port=proxy.port, script=Script(), connections=_CLIENTS, requests=_REQUESTS, session=session)
    )
    await _control(proxy, "-i", "off")
    return report.requests - report.bad


async def _events(proxy: Proxy) -> int:
    counted = 0

    async def look(tally: Tally) -> None:
        nonlocal counted
        await _control(proxy, "-i", "on")
        before = tally.reads
        await asyncio.sleep(_TURNS * _INTERVAL / 1000)
        await _control(proxy, "-i", "off")
        counted = tally.reads - before

    script = Script(stream=1, events=4 * _TURNS, interval=_INTERVAL, size=200, align=1, hold=1)
    await hold_streams(Load(port=proxy.port, script=script, connections=_STREAMS, requests=_STREAMS), look)
    return counted


WORK: Mapping[str, Callable[[Proxy], Awaitable[int]]] = {
    "req": lambda proxy: _requests(proxy, "header"),
    "reqbody": lambda proxy: _requests(proxy, "body"),
    "sse": _events,
}
"""What is counted, by the name that the comparison has for it."""


async def count(name: str, work: str, setting: Setting, replicas: Sequence[Address]) -> float:
    """Return the instructions that a proxy executes for one unit of work.

    Raises:
        NotFound: a program it needs is not on this machine.
        ProxyFailed: it did not start, or could not be counted.
    """
    proxy = Proxy(name, setting, replicas, work)
    await proxy.start()
    try:
        units = await WORK[work](proxy)
        await _control(proxy, "-d")
    finally:
        proxy.stop()
    found = executed(proxy.folder)
    if not units or not found:
        raise ProxyFailed(f"{found} instructions were counted for {units} units; see {proxy.folder}")
    return found / units


def _version(name: str, programs: Programs) -> str:
    """Return the version of a proxy's program."""
    found = re.search(r"{bin:(.+?)}", COMMANDS[name])
    try:
        return version(programs.find(found.group(1))) if found else ""
    except NotFound:
        return ""


async def compare(peers: Sequence[str], works: Sequence[str], folder: Path) -> int:
    """Print a line for each proxy; return the exit status."""
    servers = await serve([("127.0.0.1", 0)] * 2, Stats())
    commands = {name: f"{_VALGRIND} {command}{_FLAGS.get(name, '')}" for name, command in COMMANDS.items()}
    setting = Setting(commands, Programs({}), folder, 0, raise_file_limit())
    print(f"| instructions | {' | '.join(works)} |\n|---|{'---|' * len(works)}", flush=True)
    status = 0
    for name in peers:
        cells = []
        for work in works:
            try:
                cells.append(f"{await count(name, work, setting, addresses_of(servers)):,.0f}")
            except (NotFound, ProxyFailed) as problem:
                cells.append(f"failed: {problem}")
                status = 1
        print(f"| {name} {_version(name, setting.programs)} | {' | '.join(cells)} |", flush=True)
    print(f"\nBy function: callgrind_annotate {folder}/PROXY-TEST/callgrind.PID.1")
    return status


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="ours,nginx", help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--tests", default=",".join(WORK))
    parser.add_argument("--out", type=Path, help="where callgrind's files go; a new folder below /tmp")
    args = parser.parse_args()
    peers, works = args.peers.split(","), args.tests.split(",")
    if unknown := [*(p for p in peers if p not in COMMANDS), *(w for w in works if w not in WORK)]:
        parser.error(f"nothing is called {', '.join(unknown)}")
    require_linux()
    if shutil.which("valgrind") is None:
        sys.exit("instructions are counted by valgrind, which is not installed (Debian: valgrind)")
    folder = args.out or Path(tempfile.mkdtemp(prefix="instructions-"))
    return uvloop.run(compare(peers, works, folder.resolve()))


if __name__ == "__main__":
    sys.exit(main())
