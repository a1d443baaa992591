"""Ids that nobody can guess, for sessions and requests that came without."""

from __future__ import annotations

import os


class Mint:
    """Makes ids of 128 random bits from the operating system's generator, as 32 hex digits.

    They are drawn a page at a time: a system call for each would cost as much as choosing a replica.
    """

    __slots__ = ("_digits",)

    def __init__(self) -> None:
        self._digits: list[str] = []

    def __call__(self) -> str:
        """Return a new id."""
        if not self._digits:
            digits = os.urandom(4096).hex()
            self._digits = [digits[start : start + 32] for start in range(0, 8192, 32)]
        return self._digits.pop()
