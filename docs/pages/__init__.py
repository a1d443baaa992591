"""Pages of the documentation that come from the code."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # some are about what the tests hold
