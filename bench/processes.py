"""What the kernel has counted for a process and its descendants: CPU time and memory (Linux /proc)."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class Usage(NamedTuple):
    """CPU seconds so far."""

    exact: float
    """By the scheduler's own accounting, of the threads that live now."""
    ticks: float
    """User and system time as sampled by the clock tick; of ended threads, too."""
    user: float
    """The part of `ticks` outside the kernel."""

    def since(self, earlier: "Usage") -> float:
        """Return the seconds used since then."""
        exact, ticks = self.exact - earlier.exact, self.ticks - earlier.ticks
        # A thread that ended in between is missing from `exact`; then the ticks say more.
        return exact if exact > ticks - 0.05 else ticks

    def user_share(self, earlier: "Usage") -> float:
        """Return the share of it spent outside the kernel; sampled, so rough below a second of CPU."""
        return (self.user - earlier.user) / max(self.ticks - earlier.ticks, 1 / _TICK)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def process_tree(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir(_PROC):  # noqa: PTH208 - names are all that is needed, of every process
        if entry.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        found.append(current)
        waiting += children.get(current, [])
    return found


def cpu_usage(pids: Iterable[int]) -> Usage:
    """Return what the processes have used; those that are gone count nothing."""
    exact = ticks = user = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = _stat(pid)
            user += int(fields[11]) / _TICK
            ticks += (int(fields[11]) + int(fields[12])) / _TICK
            for thread in (_PROC / str(pid) / "task").iterdir():
                exact += int((thread / "schedstat").read_text().split()[0]) / 1e9
    return Usage(exact, ticks, user)


def machine_busy() -> float:
    """Return the CPU seconds that all cores have worked, or were withheld by the host of this machine."""
    first = (_PROC / "stat").read_text().partition("\n")[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICK


def resident_memory(pids: Iterable[int]) -> int:
    """Return the resident memory of the processes in KiB."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            status = (_PROC / str(pid) / "status").read_text()
            total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return total


def _threads(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        with contextlib.suppress(OSError):
            yield from [int(thread.name) for thread in (_PROC / str(pid) / "task").iterdir()]


def pin(pids: Iterable[int], cpu: int) -> None:
    """Move every thread of the processes to one core."""
    for thread in _threads(pids):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, {cpu})


@contextlib.contextmanager
def taking_turns(pids: Iterable[int]) -> Iterator[None]:
    """Keep the processes and this one from interrupting each other, or anybody, when they are woken.

    Each then works off all there is before the next has its turn, however busy the rest of the machine is.
    """
    threads = [0, *_threads(pids)]
    _schedule(threads, os.SCHED_BATCH)
    try:
        yield
    finally:
        _schedule(threads, os.SCHED_OTHER)


def _schedule(threads: Iterable[int], policy: int) -> None:
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(thread, policy, os.sched_param(0))


def send_signal(pids: Iterable[int], number: int) -> None:
    """Signal those of the processes that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
