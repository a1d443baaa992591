"""The examples for clients, run as they stand: each keeps its conversation on one replica."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.router import Router
    from tests.support.sim import Sim

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "clients"
PAGE = ROOT / "docs" / "how-to" / "clients.md"

TURNS = {"curl.sh": 2}
"""Requests that an example makes, where they are not three."""

INSTALLED = ["curl.sh", "httpx_client.py", "openai_async_stream.py", "openai_own_id.py", "openai_sync.py"]
MORE = ["aiohttp_client.py", "langchain_client.py", "litellm_client.py", "requests_client.py"]
BY_HAND = ["aiperf.sh", "guidellm.sh"]
"""Load tools, too large to install for a test; the page says so."""


@pytest.fixture
def router(start_router: Callable[..., Router], start_sim: Callable[..., Sim]) -> Router:
    """A router with two replicas."""
    return start_router([start_sim(), start_sim()])


def run(router: Router, argv: Sequence[str | Path], folder: Path, **variables: str) -> str:
    """Run a client to its end; return what it printed."""
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    own = {"OPENAI_BASE_URL": f"{router.url}/v1", "OPENAI_API_KEY": "anything", "HOME": str(folder)}
    own["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or its import waits for a list of prices from the internet
    done = subprocess.run(
        argv, cwd=folder, env=os.environ | own | variables, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(router: Router, turns: int) -> None:
    """Check that there was one conversation, and that every turn but the first found its replica."""
    health = router.health()
    assert (health["routed"], health["affinity_hits"], health["sessions"]) == (turns, turns - 1, 1)


@pytest.mark.parametrize("name", INSTALLED)
def test_example(router: Router, tmp_path: Path, name: str) -> None:
    """The id of the first answer, or one of the client's own, keeps the later turns on the replica (spec 3.3, 3.5)."""
    run(router, ["sh" if name.endswith(".sh") else sys.executable, EXAMPLES / name], tmp_path)

    check(router, TURNS.get(name, 3))


@pytest.mark.clients
@pytest.mark.parametrize("name", MORE)
def test_example_of_another_library(router: Router, environment: Path, tmp_path: Path, name: str) -> None:
    """So it does with libraries beside the openai SDK (spec 3.3, 3.5)."""
    run(router, [environment / "bin" / "python", EXAMPLES / name], tmp_path)

    check(router, 3)


@pytest.mark.clients
def test_example_for_node(router: Router, environment: Path, tmp_path: Path) -> None:
    """So it does with the openai SDK for Node (spec 3.3, 3.5)."""
    (tmp_path / "node_modules").symlink_to(environment / "node_modules")
    script = shutil.copy(EXAMPLES / "openai_node.mjs", tmp_path)
    run(router, [environment / "bin" / "node", script], tmp_path)

    check(router, 3)


@pytest.mark.clients
def test_example_for_the_llm_command(router: Router, environment: Path, tmp_path: Path) -> None:
    """So it does with the `llm` command, whose headers are configured (spec 3.1, 3.5)."""
    models = (EXAMPLES / "llm-models.yaml").read_text().replace("http://localhost:8000", router.url)
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    for words in (["-m", "qwen", "Hello"], ["-c", "Say more"]):
        run(router, [environment / "bin" / "llm", *words], tmp_path, LLM_USER_PATH=str(tmp_path))

    check(router, 2)


def test_every_example_is_run() -> None:
    """No example is left untested but those that are known to be."""
    known = {*INSTALLED, *MORE, *BY_HAND, "openai_node.mjs", "llm-models.yaml"}

    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == known


def test_the_page_shows_what_is_run() -> None:
    """Every listing in the how-to page is one of the examples, whole, and every example is there."""
    listings = re.findall(r"^```(?:python|js|sh|yaml)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

    assert sorted(listings) == sorted(path.read_text() for path in EXAMPLES.iterdir() if path.is_file())
