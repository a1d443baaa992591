"""The prefix cache: a bounded set of blocks, each named by everything that comes before it."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN_BYTES = 4
"""A token is this many bytes of the prompt: about what a tokenizer makes of English."""


def count_tokens(text: bytes) -> int:
    """Return how many tokens a text has, a short last one included."""
    return -(-len(text) // TOKEN_BYTES)


class PrefixCache:
    """Blocks of prompts, least recently used first; a capacity of 0 switches the cache off.

    A block's name is a hash over its predecessor's name and its own tokens, so that one name vouches for the
    whole prefix. Only full blocks are kept, and the last token of a prompt is never taken from the cache:
    an engine has to compute something to have a next token.
    """

    def __init__(self, *, block_size: int, capacity: int) -> None:
        self.block_size = block_size
        self.capacity = capacity
        self.evicted = 0
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __repr__(self) -> str:
        return f"<PrefixCache {len(self)}/{self.capacity} blocks of {self.block_size}, {self.evicted} evicted>"

    def match(self, prompt: bytes) -> int:
        """Return how many of the prompt's tokens are cached, and mark their blocks as used."""
        usable = (count_tokens(prompt) - 1) // self.block_size
        found = 0
        for name in self._names(prompt):
            if found == usable or name not in self._blocks:
                break
            self._blocks.move_to_end(name)
            found += 1
        return found * self.block_size

    def publish(self, prompt: bytes) -> None:
        """Keep the prompt's full blocks, evicting the least recently used ones of others."""
        # From the last to the first: of one chain the tail must go first, since a block without its
        # predecessors can never be matched.
        for name in reversed(list(self._names(prompt))):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)
            self.evicted += 1

    def _names(self, prompt: bytes) -> Iterator[bytes]:
        if not self.capacity:
            return
        step = self.block_size * TOKEN_BYTES
        name = b""
        for start in range(0, len(prompt) - step + 1, step):
            name = blake2b(name + prompt[start : start + step], digest_size=16).digest()
            yield name
