"""`python -m soak --seconds N --rate R --out DIR`: mixed traffic against a router whose replicas die and return."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.support.harness import Harness

from soak.run import Soak


def main() -> int:
    """Run, print the report, and return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long [60]")
    parser.add_argument("--rate", type=float, default=30.0, help="requests begun in a second, on average [30]")
    parser.add_argument("--calm", type=float, default=20.0, help="seconds between two disturbances, on average [20]")
    parser.add_argument("--seed", type=int, default=1, help="of the choices [1]")
    parser.add_argument("--out", type=Path, help="where logs, samples and findings go [a new temporary folder]")
    given = parser.parse_args()
    folder = given.out or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    harness = Harness(folder, patience=15)
    soak = None
    try:
        soak = Soak(harness, rate=given.rate, calm=given.calm, seed=given.seed)
        asyncio.run(soak.run(given.seconds))
    finally:
        for trouble in harness.end():
            if soak is None:
                print(trouble, file=sys.stderr)
            else:
                soak.ledger.finding(trouble)
    report = soak.report()
    (folder / "report.md").write_text(report)
    print(report)
    print(f"samples, findings and logs: {folder}")
    return 1 if soak.ledger.findings else 0


if __name__ == "__main__":
    sys.exit(main())
