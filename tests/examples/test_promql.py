"""What reads the expressions of rules and dashboards misses nothing in them."""

from __future__ import annotations

import pytest
from tests.support.promql import Selector, read


@pytest.mark.parametrize(
    ("expression", "selectors", "grouped"),
    [
        ("a", [Selector("a")], set()),
        ('a{x="1", y=~"b|c"}', [Selector("a", (("x", "=", "1"), ("y", "=~", "b|c")))], set()),
        ("sum by (x, y) (rate(a[5m])) / 2", [Selector("a")], {"x", "y"}),
        ("a > 0 or b unless b offset 15m", [Selector("a"), Selector("b"), Selector("b")], set()),
        ("a / b > 0.8 and on (job) c", [Selector("a"), Selector("b"), Selector("c")], {"job"}),
        ('sum(a{x="1"}) or vector(0)', [Selector("a", (("x", "=", "1"),))], set()),
        ("histogram_quantile(0.5, sum by (le) (rate(a_bucket[1h])))", [Selector("a_bucket")], {"le"}),
    ],
)
def test_series_and_labels_are_found(expression: str, selectors: list[Selector], grouped: set[str]) -> None:
    """Every series that is asked for is known by name and labels (spec 9)."""
    assert read(expression) == (selectors, grouped)
