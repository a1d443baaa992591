"""The judgement on a replica."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pypto_serving_router.core.health import Health


@given(st.booleans(), st.lists(st.sampled_from(["ok", "bad", "down"])))
def test_the_judgement_follows_from_the_last_results(start: bool, events: list[str]) -> None:
    """spec 5.2, 5.4: down after two failures in a row or one refusal, up after one success, else as before."""
    health = Health(healthy=start)
    expected = start
    for n, event in enumerate(events):
        if event == "ok":
            expected = True
        elif event == "down" or events[max(0, n - 1) : n + 1] == ["bad", "bad"]:
            expected = False
        before = health.healthy
        changed = health.down() if event == "down" else health.record(success=event == "ok")

        assert health.healthy is expected
        assert changed is (before is not expected)


def test_one_failure_is_forgiven() -> None:
    """spec 5.2: failures that are not in a row take nothing out."""
    health = Health(healthy=True)

    changes = [health.record(success=success) for success in (False, True) * 5]

    assert not any(changes)
    assert repr(health) == "<Health healthy, 0 against>"


def test_an_owned_replica_is_promoted_by_its_first_success() -> None:
    """spec 5.3: one that starts unroutable stays so through failures, until a probe succeeds."""
    health = Health(healthy=False)

    assert [health.record(success=success) for success in (False, False, False, True, True)] == [
        False,
        False,
        False,
        True,
        False,
    ]
    assert health.healthy


def test_a_refusal_counts_at_once_and_once() -> None:
    """spec 5.4: a refused connect takes the replica out, a second one changes nothing, one success brings it back."""
    health = Health(healthy=True)
    health.record(success=False)
    assert repr(health) == "<Health healthy, 1 against>"

    assert [health.down(), health.down()] == [True, False]
    assert repr(health) == "<Health unhealthy, 0 against>"
    assert health.record(success=True)
