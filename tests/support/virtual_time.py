"""An event loop whose clock jumps: minutes of back-off pass in microseconds, always in the same order."""

from __future__ import annotations

import asyncio
import selectors
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Instead of waiting, moves the loop's clock to the next timer."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will ever happen")
        self.now += max(timeout, 1e-6)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs what goes to a thread at once, so that nothing happens behind the clock's back."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(  # type: ignore[override]  # less general than the original: `to_thread` alone calls it
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        future.set_result(func(*args))
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test in virtual time."""

    @wraps(test)
    def in_virtual_time(*args: Any, **kwargs: Any) -> None:
        run(test(*args, **kwargs))

    return in_virtual_time


def now() -> float:
    """Return the loop's time, which is the fleet's clock."""
    return asyncio.get_running_loop().time()
