"""What is remembered for the dashboard."""

import json

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


def test_plain() -> None:
    """Whatever a field holds, it can be shown (spec 6.2)."""
    recent = Recent()
    recent.note({"event": "e", "slot": "a", "pid": None, "ms": 1.5, "ok": True, "devices": (0, 1), "raw": b"x"})

    (record,) = recent.latest(1)

    assert json.loads(json.dumps(record)) == record
    assert (record["pid"], record["ms"], record["ok"], record["devices"]) == (None, 1.5, True, "(0, 1)")
