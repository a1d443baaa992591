"""The simulated engine: seats, a serial prefill, and decoding at a set rate."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pypto_serving_router.sim.cache import PrefixCache, count_tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Engine:
    """One engine core.

    A generation waits for a seat, then for its turn to prefill what the cache doesn't hold, then decodes beside the
    others. Cancelling it gives its seat and its turn back. Rates are in tokens per second; 0 means
    without any wait.
    """

    def __init__(self, *, cache: PrefixCache, seats: int, prefill_rate: float, decode_rate: float) -> None:
        self.cache = cache
        self.decode_rate = decode_rate
        self.prefill_rate = prefill_rate
        self._seats = asyncio.Semaphore(seats)
        self._prefill = asyncio.Lock()

        self.waiting = 0
        self.running = 0
        self.completed = 0
        self.aborted = 0
        self.cached_tokens = 0
        self.prefilled_tokens = 0
        self.generated_tokens = 0

    def __repr__(self) -> str:
        return f"<Engine {self.running} running, {self.waiting} waiting, {self.cache!r}>"

    @asynccontextmanager
    async def generation(self, prompt: bytes) -> AsyncIterator[int]:
        """Hold a seat for one generation; entered when its prefill ends, with the number of cached tokens."""
        try:
            await self._take_seat()
            try:
                yield await self._prefill_prompt(prompt)
            finally:
                self.running -= 1
                self._seats.release()
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        self.completed += 1

    async def decode(self, count: int) -> AsyncIterator[int]:
        """Yield the index of each token when it is due."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        for index in range(count):
            due = start + (index + 1) / self.decode_rate if self.decode_rate else 0.0
            # A sleep of 0 still lets every token leave in a write of its own.
            await asyncio.sleep(max(0.0, due - loop.time()))
            self.generated_tokens += 1
            yield index

    async def decode_all(self, count: int) -> None:
        """Return when the last of `count` tokens is due."""
        await asyncio.sleep(count / self.decode_rate if self.decode_rate else 0.0)
        self.generated_tokens += count

    async def _take_seat(self) -> None:
        self.waiting += 1
        try:
            await self._seats.acquire()
        finally:
            self.waiting -= 1
        self.running += 1

    async def _prefill_prompt(self, prompt: bytes) -> int:
        async with self._prefill:
            cached = self.cache.match(prompt)
            new = count_tokens(prompt) - cached
            if self.prefill_rate:
                await asyncio.sleep(new / self.prefill_rate)
            self.cache.publish(prompt)
        self.cached_tokens += cached
        self.prefilled_tokens += new
        return cached
