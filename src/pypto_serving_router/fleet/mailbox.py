"""Work for the one task that owns the slots, and the answers it owes to those who wait."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pypto_serving_router.errors import RouterError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Mailbox:
    """Anybody posts; one task works it off, pass by pass.

    Answers are held back until the end of the pass: what they tell of is durable and visible by then.
    """

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()
        self._answers: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self._closed = False

    # --- for anybody ---

    def post(self, work: Callable[[], None]) -> None:
        """Have some work done in the next pass."""
        self._work.append(work)
        self._wake.set()

    async def call(self, work: Callable[[asyncio.Future[T]], None]) -> T:
        """Have some work done in the next pass, and return what the future that it is given is answered.

        Raises:
            RouterError: what it was answered, or that nobody will.
        """
        if self._closed:
            raise RouterError("the fleet has shut down")
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.post(partial(work, waiter))
        return await waiter

    async def do(self, work: Callable[[], T]) -> T:
        """Have some work done in the next pass, and return its result when the pass is over."""
        return await self.call(lambda waiter: self.answer(waiter, work()))

    # --- for the one task ---

    async def wait(self) -> None:
        """Wait until there may be something to do."""
        await self._wake.wait()
        self._wake.clear()

    def wake(self) -> None:
        """End the wait, though there may be no work."""
        self._wake.set()

    @property
    def empty(self) -> bool:
        """Whether all work is done."""
        return not self._work

    def work_off(self) -> None:
        """Do what there is to do, what it posts itself included."""
        while self._work:
            self._work.popleft()()

    def answer(self, waiter: asyncio.Future[T] | None, outcome: T | RouterError) -> None:
        """Tell someone who waits, if anyone does, at the end of the pass."""
        if waiter is not None:
            self._answers.append(partial(_resolve, waiter, outcome))

    def send_answers(self) -> None:
        """End the pass: those who wait may go on."""
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()

    def close(self) -> None:
        """Let nobody wait here any more."""
        self._closed = True


def _resolve(waiter: asyncio.Future[T], outcome: T | RouterError) -> None:
    if waiter.done():  # whoever asked has left
        return
    if isinstance(outcome, RouterError):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)
