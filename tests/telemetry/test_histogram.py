"""Counts of values by size, against a plain count."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.telemetry.histogram import Histogram

BOUNDS = st.lists(st.floats(-10, 10), min_size=1, max_size=6, unique=True).map(sorted)


@given(BOUNDS, st.data())
def test_each_value_is_in_the_first_bucket_that_holds_it(bounds: list[float], data: st.DataObject) -> None:
    """Whatever came before it, and on a bound as well: the bound is in the bucket that it ends (spec 9)."""
    values = data.draw(st.lists(st.one_of(st.sampled_from(bounds), st.floats(-20, 20)), max_size=30))
    histogram = Histogram(tuple(bounds))
    for value in values:
        histogram.observe(value)

    below = [-math.inf, *bounds]
    up_to = [*bounds, math.inf]
    assert histogram.counts == [sum(a < value <= b for value in values) for a, b in zip(below, up_to, strict=True)]
    assert math.isclose(histogram.sum, sum(values), abs_tol=1e-9)


def test_a_histogram_shows_what_it_holds() -> None:
    """For whoever looks at it in a debugger."""
    histogram = Histogram((1.0,))
    histogram.observe(0.5)

    assert repr(histogram) == "<Histogram 1 values, sum 0.5>"
