"""The machine that figures were taken on: what they depend on besides the proxies, and its limits."""

import os
import platform
import resource
import sys
import time
from pathlib import Path


def require_linux() -> None:
    """End the program on systems without Linux's /proc."""
    if not sys.platform.startswith("linux"):
        sys.exit("the benchmark reads Linux's /proc; it runs on no other system")


def raise_file_limit() -> int:
    """Allow this process and its children as many descriptors as the hard limit does; return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def cores() -> tuple[int, int]:
    """Return the generator's core and the proxies'; the same where there is but one."""
    available = sorted(os.sched_getaffinity(0))
    return available[0], available[1] if len(available) > 1 else available[0]


def describe() -> dict[str, str]:
    """Return date, processor, system and Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": f"{models[0] if models else platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "system": f"Linux {platform.release()}",
        "python": platform.python_version(),
    }
