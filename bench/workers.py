"""What a router of several processes would pay to share its pins and loads: a spike, not part of the router.

Run `python -m bench.workers`; `--json` prints the figures as one object, `--quick` only shows that the program works.
The plan that these figures are for is in docs/explanation/workers.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import multiprocessing
import os
import random
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Figures: TypeAlias = dict[str, float]

WAYS = 8  # places a pin can have
TAG_BITS, REPLICA_BITS, TIME_BITS = 36, 12, 16


def words(count: int) -> memoryview:
    """Return that many 64-bit words that forked processes share."""
    return memoryview(mmap.mmap(-1, count * 8)).cast("Q")


class SharedPins:
    """Pins as single words in shared memory, so that none is ever seen half written: tag, replica, time.

    A pin may stand in any of the places of its set; a new one takes the place of the oldest.
    """

    def __init__(self, capacity: int) -> None:
        self._sets = 1 << max(1, (4 * capacity // WAYS).bit_length() - 1)
        self._words = words(self._sets * WAYS)
        self._key = os.urandom(16)

    def _hash(self, session: str) -> int:
        return int.from_bytes(hashlib.blake2b(session.encode(), key=self._key, digest_size=8).digest())

    def find(self, session: str, now: int) -> int:
        """Return the replica's number and renew the pin; -1 if there is none."""
        digest = self._hash(session)
        start = (digest % self._sets) * WAYS
        tag = digest >> (64 - TAG_BITS)
        for place, word in enumerate(self._words[start : start + WAYS].tolist(), start):
            if word >> (64 - TAG_BITS) == tag:
                fresh = (word >> TIME_BITS) << TIME_BITS | now
                if fresh != word:
                    self._words[place] = fresh
                return int(word >> TIME_BITS) & ((1 << REPLICA_BITS) - 1)
        return -1

    def pin(self, session: str, replica: int, now: int) -> None:
        """Pin a session that has no pin."""
        digest = self._hash(session)
        start = (digest % self._sets) * WAYS
        row = self._words[start : start + WAYS].tolist()
        oldest = min(range(WAYS), key=lambda place: row[place] & ((1 << TIME_BITS) - 1))
        tag = digest >> (64 - TAG_BITS)
        self._words[start + oldest] = ((tag << REPLICA_BITS) | replica) << TIME_BITS | now


class SharedLoads:
    """Outstanding requests: a row for each worker, which it alone writes, and a column for each replica."""

    def __init__(self, workers: int, replicas: int, own: int) -> None:
        self._words = words(workers * replicas)
        self._replicas = replicas
        self._own = own * replicas

    def add(self, replica: int, count: int) -> None:
        """Count requests of this worker."""
        self._words[self._own + replica] += count

    def totals(self) -> list[int]:
        """Return what all workers have outstanding on each replica."""
        every = self._words.tolist()
        return list(map(sum, zip(*(every[i :: self._replicas] for i in range(self._replicas)), strict=True)))


def nanoseconds(call: Callable[[], object], count: int) -> float:
    """Return the least time of one call in five rounds."""
    best = float("inf")
    for _ in range(5):
        before = time.perf_counter_ns()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter_ns() - before) / count)
    return best


def shared_memory(sessions: int, count: int) -> Figures:
    """Nanoseconds of each step, and the bytes of a pin."""
    pins = SharedPins(sessions)
    names = [os.urandom(16).hex() for _ in range(sessions)]
    before = time.perf_counter_ns()
    for number, name in enumerate(names):
        pins.pin(name, number % 1000, 1)
    figures = {"pin, ns": (time.perf_counter_ns() - before) / sessions}
    figures["pins lost to full sets, %"] = 100 * sum(pins.find(name, 1) < 0 for name in names) / sessions
    source = iter(random.choices(names, k=5 * count))
    figures["find and renew, ns"] = nanoseconds(lambda: pins.find(next(source), 2), count)
    loads = SharedLoads(4, 10, 1)
    figures["count a request in or out, ns"] = nanoseconds(partial(loads.add, 3, 1), count)
    for workers, replicas in ((4, 10), (8, 100)):
        loads = SharedLoads(workers, replicas, 0)
        name = f"loads of {replicas} replicas from {workers} workers, ns"
        figures[name] = nanoseconds(loads.totals, max(1, count // replicas))
    return figures


def _hammer(pins: SharedPins, names: Sequence[str], own: int, rounds: int, wrong: memoryview) -> None:
    for now in range(rounds):
        for number, name in enumerate(names):
            found = pins.find(name, now & 0xFFFF)
            if found < 0:
                pins.pin(name, number % 7, now & 0xFFFF)
            elif found != number % 7:
                wrong[own] += 1


def contention(sessions: int, rounds: int, workers: int = 4) -> Figures:
    """Workers that pin and find the same sessions at the same time: how often one saw what nobody wrote."""
    pins, wrong = SharedPins(sessions), words(workers)
    names = [os.urandom(16).hex() for _ in range(sessions)]
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_hammer, args=(pins, names, own, rounds, wrong)) for own in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return {"look-ups": workers * sessions * rounds, "wrong answers": sum(wrong.tolist())}


def _echo(end: socket.socket) -> None:
    while data := end.recv(256):
        end.send(data)


def message(count: int) -> Figures:
    """Microseconds until another process has answered a question, were pins kept by one owner each."""
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = multiprocessing.get_context("fork").Process(target=_echo, args=(other,), daemon=True)
    process.start()
    question = os.urandom(48)
    took = nanoseconds(lambda: (mine.send(question), mine.recv(256)), count) / 1e3
    process.terminate()
    process.join()
    return {"round trip to the owner of a pin, µs": took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sessions, count, rounds = (1_000, 200, 2) if options.quick else (100_000, 20_000, 20)
    figures = {
        "shared memory": shared_memory(sessions, count),
        "four processes on the same words": contention(sessions // 10, rounds),
        "messages": message(count),
    }
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for section, rows in figures.items():
        print(section)
        for name, value in rows.items():
            print(f"  {name:50} {value:12,.2f}")


if __name__ == "__main__":
    main()
