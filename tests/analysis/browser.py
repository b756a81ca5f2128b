"""A headless Chromium driven through its debugging pipe: what a page logs, asks the network for, shows and does."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
_TIMEOUT_S: Final = 60.0


class Page:
    """One tab. ``complaints``: console errors, warnings and uncaught exceptions; ``requests``: addresses asked for."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._ids, self._buffer, self._session = count(1), b"", ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its answer, keeping the events that come before it."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Load a file in a window of that size and colour scheme, and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._note(self._next())

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key that has no text."""
        codes = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Home": 36, " ": 32}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def hover(self, selector: str) -> None:
        """Move the mouse to the middle of an element."""
        box = self.evaluate(
            f"(() => {{const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]})()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def screenshot(self, path: Path) -> None:
        """Save the whole page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser did not answer"
            piece = os.read(self._from, 1 << 16)
            assert piece, "the browser went away"
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def _note(self, event: dict[str, Any]) -> None:
        method, details = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif (
            (method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"))
            or method == "Runtime.exceptionThrown"
            or (method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"))
        ):
            self.complaints.append(json.dumps(details)[:500])


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with a profile of its own, gone at the end."""
    assert CHROMIUM is not None
    command_out, command_in = os.pipe()
    answer_out, answer_in = os.pipe()
    # The browser reads commands from descriptor 3 and writes answers to 4; sh cannot name descriptors above 9.
    script = f'exec "$@" 3<&{command_out} 4>&{answer_in}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(command_out, answer_in),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(command_out)
    os.close(answer_in)
    try:
        yield Page(command_in, answer_out)
    finally:
        process.terminate()
        process.wait(timeout=_TIMEOUT_S)
        os.close(command_in)
        os.close(answer_out)
