"""`python -m fuzz [TARGET...] --seconds N`: campaigns against the router's readers, for as long as asked."""

from __future__ import annotations

import argparse
import sys

from fuzz.campaign import Campaign
from fuzz.targets import TARGETS


def main() -> int:
    """Run, print executions and findings, and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} [all]")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, shared by the targets [60]")
    parser.add_argument("--seed", type=int, default=None, help="of the choices [a new one]")
    given = parser.parse_args()
    unknown = [name for name in given.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target is called {unknown[0]}")
    names = given.targets or list(TARGETS)
    found = 0
    print("| Target | Executions | A second | Findings |\n|---|---:|---:|---:|", flush=True)
    for name in names:
        campaign = Campaign(TARGETS[name], seed=given.seed)
        campaign.run(given.seconds / len(names))
        speed = campaign.executions / max(campaign.seconds, 0.001)
        print(f"| {name} | {campaign.executions:,} | {speed:,.0f} | {len(campaign.findings)} |", flush=True)
        for finding in campaign.findings:
            print(finding, file=sys.stderr)
        found += len(campaign.findings)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
