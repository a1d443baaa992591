"""The declared metrics."""

from pypto_serving_router.telemetry.families import FAMILIES, Family, reference


def test_text() -> None:
    """A family is its head and its samples, and nothing at all without samples (spec 6.7)."""
    family = Family("a_total", "counter", "What it is.", ("x", "y"))

    assert family.values([(("1", "b"), 2), (("c", "d"), 0.5)]) == (
        '# HELP a_total What it is.\n# TYPE a_total counter\na_total{x="1",y="b"} 2\na_total{x="c",y="d"} 0.5\n'
    )
    assert family.values([]) == ""
    assert Family("g", "gauge", "No labels.").values([((), 1)]).endswith("\ng 1\n")


def test_reference() -> None:
    """The reference page names every metric (spec 6.7)."""
    page = reference()

    assert all(f"| `{family.name}` | {family.kind} |" in page for family in FAMILIES)
