"""Lets processes run for a share of the time, in turns: each is a device of fixed speed then.

    python bench/affinity/pacer.py SHARE PID...

Without it, engines that outnumber the cores would borrow from one another, and a busy one would get the time of idle
ones: an uneven placement would cost nothing.
"""

import os
import signal
import sys
import time

_PERIOD = 0.016
"""Seconds; short beside a prefill, long beside a change of processes."""


def timetable(share: float, pids: list[int]) -> list[tuple[float, int, int]]:
    """Return when in a period which process gets which signal; the turns are staggered."""
    events = []
    for index, pid in enumerate(pids):
        start = _PERIOD * index / len(pids)
        events.append((start, pid, int(signal.SIGCONT)))
        events.append(((start + share * _PERIOD) % _PERIOD, pid, int(signal.SIGSTOP)))
    return sorted(events)


def run(share: float, pids: list[int]) -> None:
    """Go on until a signal, or until one of the processes has ended; let them all run then."""
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    events = timetable(share, pids)
    begin = time.monotonic()
    turn = 0
    try:
        while not ended:
            for offset, pid, number in events:
                time.sleep(max(0.0, begin + turn * _PERIOD + offset - time.monotonic()))
                os.kill(pid, number)
            turn += 1
    except ProcessLookupError:
        pass
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    run(float(sys.argv[1]), [int(pid) for pid in sys.argv[2:]])
