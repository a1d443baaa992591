"""What affinity is for: a KV cache that is not ours, and by whose own count prompts are found in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.turns import Talk, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine import Engine
    from tests.support.router import Router

pytestmark = pytest.mark.engine

LONG = 1500
"""Words of a prompt whose prefill takes long enough to be seen."""


def test_a_second_turn_finds_its_prefix_in_the_cache(router: Router, engines: list[Engine]) -> None:
    """It goes to its replica, which computes the new text only, by the engine's own counters (spec 3.5)."""
    talk = Talk(router.url)
    first = talk.say(words(LONG))
    home = next(engine for engine in engines if engine.name == first.replica)
    before = home.counter("prompt_tokens_cached_total")
    second = talk.say("Go on.")

    assert first.cached_tokens < 50  # of the chat template at most
    assert second.replica == first.replica
    assert second.cached_tokens >= first.prompt_tokens
    assert home.counter("prompt_tokens_cached_total") - before == second.cached_tokens


def test_the_first_token_comes_sooner_on_its_own_replica(router: Router, engines: list[Engine]) -> None:
    """The same turn elsewhere pays for a whole prefill, in tokens and in time (spec 3.5)."""
    own, other = [], []
    for _ in range(3):
        talk = Talk(router.url)
        home = talk.say(words(LONG)).replica
        elsewhere = next(engine.url for engine in engines if engine.name != home)
        away = talk.say("Go on.", url=elsewhere)
        turn = talk.say("Go on.")

        assert turn.replica == home
        assert away.cached_tokens < 50 < turn.cached_tokens
        own.append(turn.first_token)
        other.append(away.first_token)

    assert min(own) * 2 < min(other), (own, other)


def test_as_many_conversations_as_the_caches_hold_all_find_their_prefix(
    start_router: Callable[..., Router], start_engine: Callable[..., Engine]
) -> None:
    """New sessions are spread by pins too: none is crowded out of its replica's cache (spec 3.4)."""
    router = start_router([engine.url for engine in (start_engine(wait=False), start_engine())])
    router.wait_ready(2)
    talks = [Talk(router.url) for _ in range(4)]
    for talk in talks:
        talk.say(words(300))
    for talk in talks:
        turn = talk.say("Go on.")

        assert turn.cached_tokens > 0.8 * turn.prompt_tokens, turn


def test_without_affinity_the_cache_is_lost(start_router: Callable[..., Router], engines: list[Engine]) -> None:
    """`--affinity-slack 0` sends each turn to the least loaded: the price that the engine counts (spec 3.5)."""
    router = start_router([engine.url for engine in engines], "--affinity-slack", "0")
    talk = Talk(router.url)
    first, second = talk.say(words(LONG)), talk.say("Go on.")

    assert second.replica != first.replica
    assert second.cached_tokens < 50
