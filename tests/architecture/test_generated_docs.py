"""Pages that come from the code say what the code says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_pages_are_up_to_date() -> None:
    """Whoever changes an option or a field regenerates its page: `python docs/generate.py` (spec 1.2, 2.1)."""
    command = [sys.executable, "docs/generate.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
