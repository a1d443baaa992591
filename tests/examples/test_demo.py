"""The demo leaves nothing running, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import IO
from uuid import uuid4

import pytest
from tests.support.markdown import ROOT
from tests.support.ports import free_port
from tests.support.processes import end_marked, environment, marked
from tests.support.waiting import wait_until

MARK = "PYPTO_TEST_DEMO"


def start(mark: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Start the demo, and return it with its output once both replicas run."""
    command = [sys.executable, str(ROOT / "examples/demo.py"), f"--port={free_port()}"]
    demo = subprocess.Popen(command, env=environment({MARK: mark}), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert demo.stdout
    for line in demo.stdout:
        if b"both replicas are ready" in line:
            return demo, demo.stdout
    raise AssertionError("the demo did not get that far")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_the_router_and_its_replicas(number: signal.Signals) -> None:
    """Whoever reads its output sees it end, and nothing runs on (spec 1.1)."""
    mark = uuid4().hex
    demo, output = start(mark)
    try:
        demo.send_signal(number)
        output.read()
        assert demo.wait(30) == (-number if number is signal.SIGKILL else 0)
        wait_until(lambda: not marked(MARK, mark), what="the end of the router and its replicas")
    finally:
        end_marked(MARK, mark)
        output.close()


@pytest.mark.slow
def test_a_reader_who_leaves_ends_it() -> None:
    """`make demo | head` ends, too (spec 1.1)."""
    mark = uuid4().hex
    demo, output = start(mark)
    try:
        output.close()
        assert demo.wait(30) == 0
        assert not marked(MARK, mark)
    finally:
        end_marked(MARK, mark)
