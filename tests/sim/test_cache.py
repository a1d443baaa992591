"""The simulated replica's prefix cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.sim.cache import TOKEN_BYTES, PrefixCache, count_tokens


def prompt(*blocks: int, rest: int = 1) -> bytes:
    """A prompt of whole blocks of two tokens, told apart by number, and some bytes more."""
    return b"".join(block.to_bytes(2 * TOKEN_BYTES, "big") for block in blocks) + b"." * rest


def test_tokens_are_counted_with_the_short_last_one() -> None:
    """A text's tokens are its bytes by four, rounded up (spec 10)."""
    assert [count_tokens(b"x" * n) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_next_turn_finds_the_blocks_of_the_last() -> None:
    """A published prompt's full blocks are found by a longer prompt that begins with it (spec 10)."""
    cache = PrefixCache(block_size=2, capacity=8)

    cache.publish(prompt(1, 2, rest=5))

    assert cache.match(prompt(1, 2, 3)) == 4
    assert cache.match(prompt(1, 9, 3)) == 2
    assert cache.match(prompt(9, 2, 3)) == 0, "a block counts only behind the same prefix"


def test_the_last_token_is_always_computed() -> None:
    """The same prompt again is cached but for its last block, if that is full (spec 10)."""
    cache = PrefixCache(block_size=2, capacity=8)

    cache.publish(prompt(1, 2, rest=0))

    assert cache.match(prompt(1, 2, rest=0)) == 2


def test_the_least_recently_used_are_evicted_tail_first() -> None:
    """Beyond its capacity the cache forgets what was used longest ago, a chain from its end (spec 10)."""
    cache = PrefixCache(block_size=2, capacity=4)
    cache.publish(prompt(1, 2, rest=1))
    cache.publish(prompt(3, rest=1))
    cache.match(prompt(1, 2, rest=1))

    cache.publish(prompt(4, 5, rest=1))

    assert cache.match(prompt(3, rest=1)) == 0
    assert cache.match(prompt(1, 2, rest=1)) == 4
    assert cache.evicted == 1

    cache.publish(prompt(6, 7, 8, rest=1))

    assert cache.match(prompt(1, 2, rest=1)) in (0, 2), "never a tail without its head"


def test_capacity_0_switches_it_off() -> None:
    """Without prefix caching nothing is ever found or kept (spec 10)."""
    cache = PrefixCache(block_size=2, capacity=0)

    cache.publish(prompt(1, 2))

    assert cache.match(prompt(1, 2)) == 0
    assert repr(cache) == "<PrefixCache 0/0 blocks of 2, 0 evicted>"


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 8)), max_size=12),
)
def test_agrees_with_a_naive_model(capacity: int, prompts: list[tuple[list[int], int]]) -> None:
    """Matches are block-wise common prefixes of what was published, and memory is bounded (spec 10)."""
    cache = PrefixCache(block_size=2, capacity=capacity)
    published: list[bytes] = []
    for blocks, rest in prompts:
        text = prompt(*blocks, rest=rest)
        step = 2 * TOKEN_BYTES
        common = max(
            (
                next(
                    (i for i in range(len(text) // step) if old[i * step :][:step] != text[i * step :][:step]),
                    len(text) // step,
                )
                for old in published
            ),
            default=0,
        )

        found = cache.match(text)

        assert found % 2 == 0
        assert found <= 2 * common
        assert found < max(1, count_tokens(text))
        cache.publish(text)
        published.append(text)
        assert len(cache) <= capacity
        usable = min((count_tokens(text) - 1) // 2, capacity)
        assert cache.match(text) >= 2 * max(0, usable), "what was just published is found, as far as it fits"
