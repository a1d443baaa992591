"""What is set once for the whole process: streams, descriptors, memory, randomness."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import resource
import sys
from contextlib import suppress
from typing import Final

_RESERVED_DESCRIPTORS: Final = 128  # logs, the state file, ssh, probes

# glibc returns large blocks to the kernel at once and asks for them again with the next body: page faults then cost
# more than the copy. These values keep a few bodies' worth; a burst's memory above `top pad` goes back.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_MALLOC: Final = ((_M_MMAP_THRESHOLD, 64 << 20), (_M_TRIM_THRESHOLD, 256 << 20), (_M_TOP_PAD, 16 << 20))

_COLLECTIONS: Final = (700, 10, 100)  # the last is Python's times ten


def is_compiled() -> bool:
    """Tell whether the data path runs as machine code, or as Python (docs/explanation/compiled.md)."""
    spec = importlib.util.find_spec("pypto_serving_router.core.chunks")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def open_missing_streams() -> None:
    """Open what this process was started without: else its first pipe or socket would be taken for stdin or stderr."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(file, True)  # noqa: FBT003 - has no name
            setattr(sys, name, os.fdopen(file, mode))


def keep_memory() -> bool:
    """Let the C library keep freed blocks for the next body; return whether it can."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        taken = [mallopt(option, value) for option, value in _MALLOC]
        return all(taken)
    return False


def collect_rarely() -> None:
    """Walk what lives as long as the process no more, and all the rest only after it has grown by 700,000 objects.

    Reference counting frees what requests leave behind. The collector's walk through everything would find nothing
    and hold up ten thousand streams for 60 ms, each time their number has grown by a quarter.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


def raise_descriptor_limit() -> int:
    """Allow as many open files as this process may; return how many clients that serves, with a replica each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return max(16, (soft - _RESERVED_DESCRIPTORS) // 2)
