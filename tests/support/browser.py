"""A headless Chromium, driven over a pipe with its DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
from typing import TYPE_CHECKING, Any

from tests.support.processes import TEST_MARK, end_marked
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-breakpad",
    "--disable-crash-reporter", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 30.0


def program() -> str | None:
    """Return where Chromium is, if it is installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One page in a browser of its own. `complaints` are errors and refused loads, which a page should not have."""

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 900) -> None:
        found = program()
        assert found is not None
        self._mark = str(profile)
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        argv = [found, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
        # The protocol is spoken on descriptors 3 and 4: copies above them first, lest one be overwritten.
        copies = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]
        self._pid = os.posix_spawn(
            found,
            argv,
            os.environ | {"HOME": str(profile), TEST_MARK: self._mark},
            file_actions=[
                *((os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)),
                (os.POSIX_SPAWN_DUP2, copies[0], 3),
                (os.POSIX_SPAWN_DUP2, copies[1], 4),
            ],
            setsid=True,
        )
        for end in (commands, answers, *copies):
            os.close(end)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go to a page and wait until it has loaded."""
        self._call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """Return what an expression of JavaScript is, a promise's value included."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description", script))
        return answer["result"].get("value")

    def until(self, condition: str, patience: float = PATIENCE) -> Any:
        """Wait until an expression is true, and return it."""
        try:
            return wait_until(lambda: self.run(condition), timeout=patience, what=condition)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def text(self) -> str:
        """Return the page as it reads."""
        return str(self.run("document.body.innerText"))

    def click(self, label: str) -> None:
        """Press the button that a screen reader calls so."""
        wanted = json.dumps(label)
        self.until(
            "(() => { const button = [...document.querySelectorAll('button')].find((one) => one.checkVisibility() &&"
            f" !one.disabled && (one.getAttribute('aria-label') ?? one.textContent) === {wanted});"
            " button?.click(); return Boolean(button); })()"
        )

    def press(self, key: str, code: int) -> None:
        """Press a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def prefer(self, scheme: str) -> None:
        """Have the user prefer `dark` or `light` pages."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def accessible(self) -> list[tuple[str, str]]:
        """Return role and name of what a screen reader finds."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]

    def screenshot(self, path: Path) -> None:
        """Save what the page looks like, whole, in the format of the file's name."""
        self._call("Emulation.setScrollbarsHidden", hidden=True)  # they would be cut off, and their place with them
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self._call("Page.captureScreenshot", format=path.suffix[1:], captureBeyondViewport=True, clip=clip)[
            "data"
        ]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the browser and what it started."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        end_marked(TEST_MARK, self._mark)
        os.close(self._commands)
        os.close(self._answers)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE)
            data = os.read(self._answers, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} ({params['entry'].get('url', '')})")
