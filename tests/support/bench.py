"""Short runs of the benchmarks that print their figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


def figures_of(module: str) -> dict[str, Any]:
    """Run a benchmark on a hundredth of its work, and return what it found."""
    ran = subprocess.run(
        [sys.executable, "-m", module, "--quick", "--json"],
        cwd=_ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures
