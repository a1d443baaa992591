"""The simulated engine."""

from __future__ import annotations

import asyncio

from pypto_serving_router.sim.cache import PrefixCache
from pypto_serving_router.sim.engine import Engine


def engine(*, seats: int = 2, prefill_rate: float = 0.0, decode_rate: float = 0.0) -> Engine:
    return Engine(
        cache=PrefixCache(block_size=2, capacity=1024),
        seats=seats,
        prefill_rate=prefill_rate,
        decode_rate=decode_rate,
    )


async def hold(engine: Engine, prompt: bytes, until: asyncio.Event) -> int:
    async with engine.generation(prompt) as cached:
        await until.wait()
        return cached


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_requests_beyond_the_seats_wait() -> None:
    """At most so many generations run; the next one waits for a seat (spec 10)."""

    async def scenario() -> None:
        core, done = engine(seats=2), asyncio.Event()
        tasks = [asyncio.ensure_future(hold(core, b"%d" % i, done)) for i in range(3)]
        await settle()
        assert (core.running, core.waiting) == (2, 1)
        done.set()
        await asyncio.gather(*tasks)
        assert (core.running, core.waiting, core.completed, core.aborted) == (0, 0, 3, 0)

    asyncio.run(scenario())


def test_cancelling_gives_the_seat_to_the_next() -> None:
    """A cancelled generation frees its seat, and one that waits for a seat leaves the queue (spec 10)."""

    async def scenario() -> None:
        core, done = engine(seats=1), asyncio.Event()
        first, second, third = (asyncio.ensure_future(hold(core, b"%d" % i, done)) for i in range(3))
        await settle()
        assert (core.running, core.waiting) == (1, 2)
        second.cancel()
        first.cancel()
        await settle()
        assert (core.running, core.waiting, core.aborted) == (1, 0, 2)
        done.set()
        assert await third == 0

    asyncio.run(scenario())


def test_prefills_take_turns_and_cost_what_is_not_cached() -> None:
    """Prompts are prefilled one after the other, at the rate of their uncached tokens (spec 10)."""

    async def scenario() -> None:
        core = engine(seats=4, prefill_rate=1000)
        loop = asyncio.get_running_loop()
        finished: list[tuple[str, float]] = []

        async def run(name: str, prompt: bytes) -> None:
            async with core.generation(prompt):
                finished.append((name, loop.time() - begin))

        begin = loop.time()
        await asyncio.gather(run("a", b"a" * 400), run("b", b"b" * 400))
        assert [name for name, _ in finished] == ["a", "b"]
        assert finished[0][1] >= 0.099
        assert finished[1][1] >= 0.198, "the second waits for the first"
        assert (core.prefilled_tokens, core.cached_tokens) == (200, 0)

        await run("again", b"a" * 400 + b"!")
        assert (core.prefilled_tokens, core.cached_tokens) == (201, 100)

    asyncio.run(scenario())


def test_a_prompt_enters_the_cache_when_its_prefill_ends() -> None:
    """Blocks are published by the end of a prefill, not by its start or by the answer (spec 10)."""

    async def scenario() -> None:
        core = engine(prefill_rate=100)
        begun = asyncio.ensure_future(hold(core, b"y" * 40, asyncio.Event()))
        await settle()
        assert len(core.cache) == 0
        async with core.generation(b"x" * 40):
            assert len(core.cache) == 10, "both prefills have ended, the answers are still to come"
        begun.cancel()

    asyncio.run(scenario())


def test_a_cancelled_prefill_publishes_nothing_and_ends_its_turn() -> None:
    """A client that leaves during the prefill leaves no blocks and no lock behind (spec 10)."""

    async def scenario() -> None:
        core, done = engine(seats=2, prefill_rate=1), asyncio.Event()
        slow = asyncio.ensure_future(hold(core, b"x" * 4000, done))
        await settle()
        slow.cancel()
        await settle()
        core.prefill_rate = 0
        done.set()
        assert await asyncio.wait_for(hold(core, b"y" * 40, done), 5) == 0
        assert (core.prefilled_tokens, core.aborted) == (10, 1)

    asyncio.run(scenario())


def test_tokens_are_due_at_the_rate() -> None:
    """Decoding takes tokens/rate seconds, streamed or not, and generations decode beside each other (spec 10)."""

    async def scenario() -> None:
        core = engine(decode_rate=100)
        loop = asyncio.get_running_loop()

        async def stream() -> list[int]:
            return [index async for index in core.decode(10)]

        begin = loop.time()
        streamed, _ = await asyncio.gather(stream(), core.decode_all(10))
        assert 0.099 <= loop.time() - begin < 2
        assert streamed == list(range(10))
        assert core.generated_tokens == 20
        assert repr(core).startswith("<Engine 0 running, 0 waiting, <PrefixCache")

    asyncio.run(scenario())
