"""Shows what the router does, on simulated replicas: `make demo`.

It starts `pypto-serving-router --demo`, holds a conversation, kills the replica that has it, and lets the router mend
the fleet. Then the router goes on running for you to try, until Ctrl-C (`--once` ends it there). However this script
ends, nothing is left running. Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROUTER = Path(sys.executable).with_name("pypto-serving-router")
# A story of some thousands of tokens, so that reading it anew takes a time one can see.
STORY = "Once upon a time there was a router that never forgot where a conversation lived. " * 200
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None)


def main() -> int:
    """Run the demo; return the router's exit status."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--once", action="store_true", help="end after the show")
    arguments.add_argument("--port", type=int, default=0, help="where the router listens (a free port)")
    options = arguments.parse_args()
    port = options.port or free_port()
    log = Path(os.environ.get("DEMO_LOG", os.devnull))
    for number in ENDS:
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` has the last one ignored
            signal.signal(number, signal.default_int_handler)
    with log.open("wb") as stderr:
        router = subprocess.Popen(
            # A dead replica is given up on after 3 s here; by default after 30.
            [ROUTER, "--demo", "--host=127.0.0.1", f"--port={port}", "--health-interval=1", "--replace-after=3"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # or `make demo | tail` would wait for the router
            stderr=stderr,
            start_new_session=True,  # so that Ctrl-C reaches it once, through this script
            preexec_fn=end_with_parent,  # noqa: PLW1509 - there are no threads
        )
    try:
        show(Api(port))
        if not options.once:
            invite(port)
            router.wait()
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # whoever read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    finally:
        for number in ENDS:  # `make` hands on what the terminal has sent already
            signal.signal(number, signal.SIG_IGN)
        router.terminate()
        with suppress(OSError):  # the terminal may be gone
            say("Stopping the router, and the replicas it launched.")
        status = router.wait()
    return status


def end_with_parent() -> None:
    """Let the kernel send this process SIGTERM if its parent dies, by SIGKILL for one."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def show(api: Api) -> None:
    """Go through the chapters."""
    say("Starting a router with two simulated replicas.")
    wait("both replicas are ready", lambda: api.health()["replicas_ready"] == 2)

    say("A conversation: the id comes back in X-Session-Id, and each turn goes where the last one was.")
    conversation = Conversation(api)
    for _ in range(3):
        conversation.turn()
    stranger = Conversation(api, conversation.messages)
    stranger.turn(note="the same words without the id: another replica, which must read it all again")

    say(f"Killing {conversation.replica}, which holds the conversation (kill -9).")
    os.kill(api.pid(conversation.replica), signal.SIGKILL)
    conversation.turn(note="on the other replica, at once", retries=3)

    say("The router confirms that the dead replica's devices are free, and launches another on them.")
    dead = next(name for name in api.phases() if name != conversation.replica)
    before = ""
    for phase in changes(lambda: api.phases().get(dead, "no replica on the slot")):
        if phase != before:
            print(f"    {dead}: {phase}")
            before = phase
        if phase == "ready":
            break
    conversation.turn(note="and the conversation has stayed")


class Conversation:
    """A growing transcript, sent whole each turn, as OpenAI's API wants it."""

    def __init__(self, api: Api, messages: list[dict[str, str]] | None = None) -> None:
        self.api = api
        self.session = ""
        self.replica = ""
        self.messages = list(messages or [{"role": "system", "content": STORY}])

    def turn(self, note: str = "", retries: int = 0) -> None:
        """Say something, hear the answer, and print who gave it and how soon it began."""
        self.messages.append({"role": "user", "content": f"And then? ({len(self.messages)})"})
        answer = self.api.chat(self.messages, self.session)
        while answer.status != 200 and retries:
            print(f"    {answer.status}: the router does not retry; the client sends it again")
            retries -= 1
            answer = self.api.chat(self.messages, self.session)
        self.session, self.replica = answer.session, answer.replica
        self.messages.append({"role": "assistant", "content": answer.text})
        first = f"first token after {answer.first_byte * 1000:4.0f} ms"
        print(f"    {self.session[:8]}…  {self.replica}  {answer.placement:16} {first}   {note}".rstrip())


class ChatAnswer:
    """One streamed answer, read to its end."""

    def __init__(self, response: http.client.HTTPResponse, asked: float) -> None:
        self.status = response.status
        self.session = response.headers["X-Session-Id"] or ""
        self.replica = response.headers["X-Router-Replica"] or "(no replica)"
        self.placement = response.headers["X-Router-Placement"] or ""
        first_line = response.readline()
        self.first_byte = time.monotonic() - asked
        lines = [first_line, *response.read().splitlines()] if self.status == 200 else []
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        pieces = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
        self.text = "".join(pieces)


class Api:
    """The router as its clients see it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> bytes:
        """Return the body of a GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path)
        body = connection.getresponse().read()
        connection.close()
        return body

    def health(self) -> dict[str, Any]:
        """Return the state of the whole table."""
        try:
            document: dict[str, Any] = json.loads(self.get("/health"))
        except OSError:
            return {"replicas_ready": 0, "replicas": []}
        return document

    def phases(self) -> dict[str, str]:
        """Return each replica's phase."""
        return {replica["name"]: replica["phase"] for replica in self.health()["replicas"]}

    def pid(self, replica: str) -> int:
        """Find the process that serves as a replica, by the port it listens on."""
        urls = {row["name"]: row["url"] for row in self.health()["replicas"]}
        port = urls[replica].rpartition(":")[2].encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if b"pypto_serving_router.sim" in command and b"\0--port\0%b\0" % port in command:
                    return int(entry.name)
        sys.exit(f"no process serves as {replica}")

    def chat(self, messages: list[dict[str, str]], session: str) -> ChatAnswer:
        """Send a transcript and read the streamed answer."""
        body = json.dumps({"model": "sim", "messages": messages, "max_tokens": 24, "stream": True})
        headers = {"Content-Type": "application/json"} | ({"X-Session-Id": session} if session else {})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        asked = time.monotonic()
        connection.request("POST", "/v1/chat/completions", body=body, headers=headers)
        answer = ChatAnswer(connection.getresponse(), asked)
        connection.close()
        return answer


def invite(port: int) -> None:
    """Print what to try."""
    url = f"http://127.0.0.1:{port}"
    say(f"The router goes on at {url} (the dashboard is there, too) until Ctrl-C. Try a first turn:")
    first = '{"model": "sim", "messages": [{"role": "user", "content": "Hello"}]}'
    print(f"\n  curl -i {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{first}'\n")
    print("and the next one, with the id that came back:\n")
    print(
        f"  curl -i {url}/v1/chat/completions -H 'Content-Type: application/json' -H 'X-Session-Id: …' -d '{first}'\n"
    )


def changes(read: Callable[[], str], timeout: float = 90) -> Iterator[str]:
    """Give what `read` returns again and again, for some time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        yield read()
        time.sleep(0.1)
    sys.exit("it took too long")


def wait(what: str, condition: Callable[[], bool]) -> None:
    """Wait for something."""
    for done in changes(lambda: "done" if condition() else ""):
        if done:
            print(f"    {what}")
            return


def say(text: str) -> None:
    """Begin a chapter."""
    print(f"\n* {text}", flush=True)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
