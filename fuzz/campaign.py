"""One campaign: inputs are made and checked until the time is over; a failure is made small and kept."""

from __future__ import annotations

import random
import time
import traceback
from hashlib import blake2b
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.target import CORPUS, shrunk

if TYPE_CHECKING:
    from pathlib import Path

    from fuzz.target import Target

_ROUND = 200  # inputs of one random sequence
_SPOILED = 20  # of each: to make an input takes longer than to check ten
_SETTINGS = settings(
    max_examples=_ROUND,
    database=None,
    deadline=None,
    derandomize=False,
    print_blob=False,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


class _TimeIsOver(BaseException):
    """Ends a round, unlike a finding."""


class Campaign:
    """Works on one target; findings are kept in a folder of its name in `corpus`."""

    def __init__(self, target: Target, *, seed: int | None = None, corpus: Path = CORPUS) -> None:
        self._target = target
        self._folder = corpus / target.name
        self._random = random.Random(seed)
        self.executions = 0
        self.seconds = 0.0
        self.findings: list[str] = []

    def run(self, seconds: float, *, most: int = 5) -> None:
        """Run for that long, or until there are `most` findings."""
        began = time.monotonic()
        end = began + seconds
        for path in self._target.kept():
            self._try(path.read_bytes())
        while time.monotonic() < end and len(self.findings) < most:
            self._round(end)
        self.seconds = time.monotonic() - began

    def _round(self, end: float) -> None:
        last = b""
        failed = False

        @seed(self._random.getrandbits(64))
        @_SETTINGS
        @given(self._target.inputs)
        def check(data: bytes) -> None:
            nonlocal last, failed
            if not failed and time.monotonic() > end:
                raise _TimeIsOver
            for each in (data, *self._target.spoiled(data, _SPOILED)):
                self.executions += 1
                try:
                    self._target.check(each)
                except Exception:
                    last, failed = each, True
                    raise

        try:
            check()
        except _TimeIsOver:
            pass
        except Exception as error:  # noqa: BLE001 - whatever a check raises is a finding
            self._note(shrunk(last, self._fails), error)

    def _fails(self, data: bytes) -> bool:
        try:
            self._target.check(data)
        except Exception:  # noqa: BLE001 - whatever a check raises
            return True
        return False

    def _try(self, data: bytes) -> None:
        self.executions += 1
        try:
            self._target.check(data)
        except Exception as error:  # noqa: BLE001 - as above
            self._note(data, error)

    def _note(self, data: bytes, error: Exception) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{type(error).__name__.lower()}-{blake2b(data, digest_size=4).hexdigest()}"
        path.write_bytes(data)
        self.findings.append(f"{path}: {data!r}\n{''.join(traceback.format_exception(error))}")
