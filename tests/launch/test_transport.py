"""The outcome of a command; what transports do with it is in tests/contract/test_transport.py."""

from __future__ import annotations

from pypto_serving_router.launch.transport import Completed


def test_the_words_are_the_end_of_what_was_said() -> None:
    """An error message quotes the last three lines that say something, in one line (spec 6.3)."""
    stderr = b"banner\none\n\n  two \r\nthr\xffee\n\n"

    assert Completed(1, b"", stderr).words == "one; two; thr\ufffdee"
    assert Completed(0, b"out", b"").words == ""
    assert len(Completed(1, b"", b"x" * 100_000).words) == 2000
