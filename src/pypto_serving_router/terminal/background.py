"""A question that is answered while something else is shown."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pypto_serving_router.errors import RouterError

if TYPE_CHECKING:
    from collections.abc import Callable


class Background:
    """Asks in a thread of its own, which does not keep the program from ending."""

    def __init__(self, question: Callable[[], None]) -> None:
        self._question = question
        self._error: RouterError | None = None
        self._answered = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def answered(self, patience: float) -> bool:
        """Wait for the answer, no longer than `patience` seconds; tell whether it is there.

        Raises:
            RouterError: the answer is an error.
        """
        there = self._answered.wait(patience)
        if self._error is not None:
            raise self._error
        return there

    def _run(self) -> None:
        try:
            self._question()
        except RouterError as error:
            self._error = error
        finally:
            self._answered.set()
