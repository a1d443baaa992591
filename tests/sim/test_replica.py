"""The simulated replica's endpoints and faults, over real connections."""

from __future__ import annotations

import http.client
import time
from typing import TYPE_CHECKING, Any

import h11
import openai
import pytest
from tests.support.client import chat, request
from tests.support.sim import answer_to
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.harness import Harness
    from tests.support.sim import Sim

STREAM = b'{"prompt": "abc", "stream": true, "max_tokens": 8}'
TEXT = {"prompt": "abc", "max_tokens": 8}


def post(body: bytes, extra: bytes = b"") -> bytes:
    return b"POST /v1/completions HTTP/1.1\r\nHost: sim\r\n%bContent-Length: %d\r\n\r\n%b" % (extra, len(body), body)


@pytest.fixture
def client(sim: Sim) -> Iterator[openai.OpenAI]:
    """The official client, without retries."""
    with openai.OpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def read_stream(sim: Sim) -> tuple[bytes, str | None]:
    """Ask for a stream; return what came, and how the connection ended."""
    with Wire.connect(sim.url) as wire:
        wire.send(post(STREAM))
        return wire.read_to_end(), wire.ending


# --- the OpenAI endpoints ---


def test_the_official_client_gets_a_whole_chat_answer(client: openai.OpenAI) -> None:
    """The official client reads a whole chat answer, which belongs to its prompt (spec 10)."""
    body = chat("Hello", max_tokens=12)

    answer = client.chat.completions.create(**body)

    assert answer.choices[0].message.content == answer_to(body)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert answer.usage.completion_tokens == 12
    assert answer.system_fingerprint == "pypto-serving-sim (simulation)"


def test_the_official_client_gets_a_chat_stream(client: openai.OpenAI) -> None:
    """The official client reads a chat stream with its usage at the end (spec 10)."""
    body = chat("Hello", max_tokens=12, stream=True, stream_options={"include_usage": True})

    with client.chat.completions.create(**body) as stream:
        chunks = list(stream)

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer_to(body)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None] * 11 + ["length"]
    usage = chunks[-1].usage
    assert usage
    assert usage.prompt_tokens_details
    assert (usage.completion_tokens, usage.prompt_tokens_details.cached_tokens) == (12, 0)


def test_the_official_client_gets_text(client: openai.OpenAI) -> None:
    """The official client reads text completions, whole and streamed, with the same answer (spec 10)."""
    whole = client.completions.create(model="qwen", prompt="abc", max_tokens=8)
    with client.completions.create(model="qwen", prompt="abc", max_tokens=8, stream=True) as stream:
        pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]

    assert whole.choices[0].text == "".join(pieces) == answer_to(TEXT)


def test_the_official_client_understands_refusals(client: openai.OpenAI, sim: Sim) -> None:
    """A refusal in pypto-serving's style reaches the official client as its own error (spec 10)."""
    with pytest.raises(openai.BadRequestError, match="n is 2"):
        client.completions.create(model="qwen", prompt="abc", n=2)
    sim.fault(status=429, retry_after=7)
    with pytest.raises(openai.RateLimitError) as refusal:
        client.completions.create(model="qwen", prompt="abc")
    assert refusal.value.response.headers["retry-after"] == "7"


def test_models_and_labels(client: openai.OpenAI, sim: Sim) -> None:
    """The served model is listed, and everything says that it is a simulation (spec 10)."""
    models = client.models.list().data

    assert [model.id for model in models] == ["qwen"]
    assert "simulation" in models[0].owned_by
    assert "simulation" in str(request(f"{sim.url}/health").header("server"))
    assert sim.state()["simulation"] is True


def test_unknown_paths_and_methods(sim: Sim) -> None:
    """An unknown path gets 404, a known one with a wrong method 405 with what is allowed (spec 10)."""
    assert request(f"{sim.url}/v1/embeddings", "POST", body=b"{}").status == 404
    refused = request(f"{sim.url}/v1/completions")
    assert (refused.status, refused.header("allow")) == (405, "POST")


def test_echo_shows_what_arrived(sim: Sim) -> None:
    """On demand a replica answers with the request it got: any method, any path (spec 10)."""
    answer = request(f"{sim.url}/v1/any?x=%2F", "PUT", body=b"abc", headers={"X-Sim-Echo": "1", "X-Other": "2"})

    document = answer.json()
    assert (document["method"], document["target"], document["body_bytes"]) == ("PUT", "/v1/any?x=%2F", 3)
    assert ["X-Other", "2"] in document["headers"]


# --- the cache and the engine ---


def first_token_after(sim: Sim, body: dict[str, Any]) -> tuple[float, int]:
    """Return the seconds to the first event of a stream, and how many tokens the usage says were cached."""
    with openai.OpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0) as client:
        client.models.list()  # so that neither the client's making nor its connection is counted
        began = time.perf_counter()
        with client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}) as stream:
            next(iter(stream))
            first = time.perf_counter() - began
            usage = list(stream)[-1].usage
    assert usage
    assert usage.prompt_tokens_details
    return first, usage.prompt_tokens_details.cached_tokens or 0


def test_the_second_turn_is_faster_where_the_first_was(harness: Harness) -> None:
    """A turn on the replica that has its prefix in cache begins visibly sooner than on another one (spec 10)."""
    rate = ("--sim-prefill-rate", "1000")
    here, elsewhere = harness.start_sim(*rate), harness.start_sim(*rate)
    first_turn = chat("Once upon a time. " * 250, max_tokens=4)
    first_token_after(here, first_turn)
    second_turn = chat("Once upon a time. " * 250, answer_to(first_turn), "And then?", max_tokens=4)

    hit, cached_here = first_token_after(here, second_turn)
    miss, cached_elsewhere = first_token_after(elsewhere, second_turn)

    assert cached_here >= 1000
    assert cached_elsewhere == 0
    assert miss > 2 * hit, f"hit after {hit:.3f} s, miss after {miss:.3f} s"
    assert here.state()["cached_tokens"] == cached_here


def test_block_size_and_switch_are_honoured(harness: Harness) -> None:
    """--block-size sets the grain of the cache, --no-enable-prefix-caching switches it off (spec 10)."""
    grained = harness.start_sim("--block-size", "4")
    off = harness.start_sim("--no-enable-prefix-caching")
    for sim in (grained, off):
        for _ in range(2):
            request(f"{sim.url}/v1/completions", "POST", body={"prompt": "x" * 33})

    assert (grained.state()["cached_tokens"], grained.state()["cache_blocks"]) == (8, 2)
    assert (off.state()["cached_tokens"], off.state()["cache_blocks"]) == (0, 0)


def test_a_small_cache_forgets(harness: Harness) -> None:
    """A bounded cache evicts the conversation used longest ago (spec 10)."""
    sim = harness.start_sim("--block-size", "4", cache_blocks=4)
    for letter in "abc":
        request(f"{sim.url}/v1/completions", "POST", body={"prompt": letter * 33})
    request(f"{sim.url}/v1/completions", "POST", body={"prompt": "a" * 33})

    state = sim.state()
    assert (state["cached_tokens"], state["cache_blocks"], state["evicted_blocks"]) == (0, 4, 4)


def test_max_num_seqs_makes_requests_wait(harness: Harness) -> None:
    """Beyond --max-num-seqs requests wait, and one that leaves gives its seat to the next (spec 10)."""
    sim = harness.start_sim("--max-num-seqs", "1", break_with="hang", break_after=1)
    first, second = Wire.connect(sim.url), Wire.connect(sim.url)
    with first, second:
        first.send(post(STREAM))
        first.read_until(b"data: ")
        second.send(post(STREAM))
        sim.wait_state(running=1, waiting=1)

        first.close()

        second.read_until(b"data: ")
        sim.wait_state(running=1, waiting=0, aborted=1)


@pytest.mark.parametrize("leave", ["close", "shut_writing", "reset"])
@pytest.mark.parametrize("after", [-1, 1])
def test_a_client_that_leaves_cancels_its_generation(sim: Sim, leave: str, after: int) -> None:
    """A client's end, its FIN alone too, cancels its generation before the head and in the stream (spec 10)."""
    aborted = sim.state()["aborted"]
    sim.fault(break_with="hang", break_after=after)
    with Wire.connect(sim.url) as wire:
        wire.send(post(STREAM))
        if after > 0:
            wire.read_until(b"data: ")
        sim.wait_state(running=1)

        getattr(wire, leave)()

        assert sim.wait_state(running=0)["aborted"] == aborted + 1


# --- the faults ---


def test_health_can_be_unready_or_hang(sim: Sim) -> None:
    """/health can answer 503, or not at all, while the rest goes on (spec 10)."""
    assert request(f"{sim.url}/health").json() == {"status": "ok"}
    sim.fault(health="unready")
    assert request(f"{sim.url}/health").status == 503
    sim.fault(health="hang")
    with Wire.connect(sim.url) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nHost: sim\r\n\r\n")
        assert wire.is_silent(0.1)
    assert request(f"{sim.url}/v1/completions", "POST", body=TEXT).status == 200
    assert sim.state()["health_probes"] >= 3


@pytest.mark.parametrize(
    ("how", "ending"), [("fin", "fin"), ("rst", "rst"), ("garbage", "fin"), ("exit", "fin"), ("kill", "fin")]
)
@pytest.mark.parametrize("after", [-1, 0, 2, 8])
def test_an_answer_can_break_anywhere(harness: Harness, sim: Sim, how: str, ending: str, after: int) -> None:
    """A stream can break before its head, before any event, after some, or after all of them (spec 10)."""
    ends_it = how in ("exit", "kill")
    if ends_it:
        sim = harness.start_sim()
    sim.fault(break_with=how, break_after=after)

    came, ended = read_stream(sim)

    assert ended == ending
    assert came.startswith(b"HTTP/1.1 200 OK\r\n") == (after >= 0)
    assert came.count(b"data: ") == max(0, after)
    assert not came.endswith(b"0\r\n\r\n"), "a broken answer must not look whole"
    assert (b"no HTTP" in came) == (how == "garbage")
    if ends_it:
        assert sim.wait() == (70 if how == "exit" else -9)


def test_a_whole_answer_breaks_in_its_middle(sim: Sim) -> None:
    """An answer that isn't streamed breaks after half its body (spec 10)."""
    sim.fault(break_with="fin", break_after=1)

    with pytest.raises(http.client.IncompleteRead):
        request(f"{sim.url}/v1/completions", "POST", body=TEXT)


@pytest.mark.parametrize(("after", "events"), [(-1, 0), (3, 3)])
def test_an_answer_can_hang(sim: Sim, after: int, events: int) -> None:
    """An answer can fall silent before its head or between its events (spec 10)."""
    sim.fault(break_with="hang", break_after=after)
    with Wire.connect(sim.url) as wire:
        wire.send(post(STREAM))
        for _ in range(events):
            wire.read_until(b"data: ")
        if events:
            wire.read_until(b"\n\n\r\n")

        assert wire.is_silent(0.1)


def test_statuses_can_be_forced(sim: Sim) -> None:
    """Generations can be refused with any error status, and Retry-After (spec 10)."""
    sim.fault(status=503, retry_after=3)

    answer = request(f"{sim.url}/v1/completions", "POST", body=TEXT)

    assert (answer.status, answer.header("retry-after")) == (503, "3")
    assert answer.json()["object"] == "error"
    assert request(f"{sim.url}/health").status == 200


def test_faults_can_be_limited_to_some_generations(sim: Sim) -> None:
    """With a limit only the next so many generations are struck (spec 10)."""
    sim.fault(status=500, limit=2)

    statuses = [request(f"{sim.url}/v1/completions", "POST", body=TEXT).status for _ in range(4)]

    assert statuses == [500, 500, 200, 200]


def test_a_request_can_bring_its_own_faults(sim: Sim) -> None:
    """A header makes one request fail while others don't (spec 10)."""
    url = f"{sim.url}/v1/completions"

    assert request(url, "POST", body=TEXT, headers={"X-Sim-Faults": '{"status": 500}'}).status == 500
    assert request(url, "POST", body=TEXT).status == 200
    assert request(url, "POST", body=TEXT, headers={"X-Sim-Faults": '{"status": 1}'}).status == 400


def test_answers_can_be_large(sim: Sim) -> None:
    """An answer can be stretched to any size, whole and streamed (spec 10)."""
    sim.fault(answer_bytes=3_000_000)
    url = f"{sim.url}/v1/completions"

    whole = request(url, "POST", body=TEXT).json()["choices"][0]["text"]
    events = request(url, "POST", body={**TEXT, "stream": True}).events()

    assert len(whole) == 3_000_000
    assert sum(len(event["choices"][0]["text"]) for event in events[:8]) == 3_000_000
    assert events[-1] == "[DONE]"


def test_answers_can_trickle(sim: Sim) -> None:
    """An answer can come byte by byte (spec 10)."""
    sim.fault(trickle=0.001)
    began = time.perf_counter()

    answer = request(f"{sim.url}/v1/completions", "POST", body=TEXT)

    assert answer.json()["choices"][0]["text"] == answer_to(TEXT)
    assert time.perf_counter() - began > 0.0005 * len(answer.body)


def test_idle_connections_are_closed_unannounced(sim: Sim) -> None:
    """An idle connection is closed after a time that can be set; one that has sent nothing yet isn't (spec 10)."""
    sim.fault(keep_alive=0.05)
    with Wire.connect(sim.url) as fresh, Wire.connect(sim.url) as used:
        used.send(b"GET /health HTTP/1.1\r\nHost: sim\r\n\r\n")
        answer = used.read_answer()

        assert answer.header("connection") is None
        assert used.read_ending() == "fin"
        assert fresh.is_silent(0.05)


def test_wrong_faults_are_refused(sim: Sim) -> None:
    """The control endpoint refuses what it doesn't know and leaves all as it was (spec 10)."""
    before = sim.fault(health="unready")

    for body in (b'{"healthy": 1}', b"[]", b"{"):
        refused = request(f"{sim.url}/sim/faults", "POST", body=body)
        assert (refused.status, refused.json()["object"]) == (400, "error")

    assert request(f"{sim.url}/sim/faults").json() == before


def test_faults_can_be_taken_back(sim: Sim) -> None:
    """DELETE takes all faults back (spec 10)."""
    sim.fault(health="unready", status=500)

    sim.heal()

    assert request(f"{sim.url}/health").status == 200
    assert request(f"{sim.url}/v1/completions", "POST", body=TEXT).status == 200


def test_a_strict_client_sees_a_cut_stream(sim: Sim) -> None:
    """What a break leaves of a stream is no whole HTTP answer to a strict parser (spec 10)."""
    sim.fault(break_with="fin", break_after=2)
    with Wire.connect(sim.url) as wire:
        wire.send(post(STREAM))

        with pytest.raises(h11.RemoteProtocolError):
            wire.read_answer("POST")


def test_state_counts(harness: Harness) -> None:
    """The counters say what was asked, served, computed and connected (spec 10)."""
    sim = harness.start_sim(env={"PYPTO_PROG_BUILD_DIR": "/scratch/build_d0"})
    with Wire.connect(sim.url) as idle:
        for _ in range(2):
            request(f"{sim.url}/v1/completions", "POST", body=TEXT)
        request(f"{sim.url}/v1/models")
        idle.send(b"GET /health HTTP/1.1\r\nHost: sim\r\n\r\n")
        idle.read_answer()

        state = sim.wait_state(connections=2)

    wanted = {"requests": 2, "completed": 2, "running": 0, "generated_tokens": 16, "prefilled_tokens": 2}
    assert {name: state[name] for name in wanted} == wanted
    assert state["accepted"] >= 5
    assert state["health_probes"] == 1
    assert (state["pid"], state["build_dir"]) == (sim.pid, "/scratch/build_d0")
    assert state["last_request"]["target"] == "/v1/models"
