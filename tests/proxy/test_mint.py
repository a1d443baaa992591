"""Ids for sessions and requests that came without."""

from __future__ import annotations

import re

from pypto_serving_router.proxy.mint import Mint


def test_ids_are_fresh_and_of_128_bits() -> None:
    """spec 3.2: 32 hex digits each, none twice, every digit anywhere."""
    mint = Mint()

    ids = [mint() for _ in range(10_000)]

    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)
    for place in range(32):
        assert {one[place] for one in ids} == set("0123456789abcdef")


def test_ids_of_two_routers_differ() -> None:
    """spec 3.2: ids are drawn from the operating system, not from a seed."""
    one, other = Mint(), Mint()

    assert not {one() for _ in range(1000)} & {other() for _ in range(1000)}
