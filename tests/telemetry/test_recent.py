"""What is remembered for the dashboard."""

from pypto_serving_router.telemetry.recent import Recent


def test_about_replicas() -> None:
    """Only what names a replica or a slot is remembered, the latest last (spec 9)."""
    recent = Recent(kept=3)
    for n in range(5):
        recent.note({"event": "e", "slot": n} if n % 2 else {"event": "e", "replica": n})
    recent.note({"event": "something else"})

    assert recent.latest(10) == [
        {"number": 3, "event": "e", "replica": 2},
        {"number": 4, "event": "e", "slot": 3},
        {"number": 5, "event": "e", "replica": 4},
    ]
    assert [record["number"] for record in recent.latest(1)] == [5]
    assert recent.latest(0) == []
