"""A real browser without a window, steered through pipes by Chromium's own protocol: no driver is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
"""The names that systems have for it."""

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
         "--remote-debugging-pipe")  # fmt: skip


class Browser:
    """One page of a browser.

    complaints  what the console has told as an error or a warning, exceptions that nobody caught, and dialogs
    """

    def __init__(self, commands: int, events: int) -> None:
        self.complaints: list[str] = []
        self._commands, self._events = commands, events
        self._left = b""
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Have something done, and return what came of it."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": values}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result = answer["result"]
                assert isinstance(result, dict)
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            piece = os.read(self._events, 1 << 20)
            assert piece, "the browser has ended"
            self._left += piece
        message, _, self._left = self._left.partition(b"\0")
        found = json.loads(message)
        assert isinstance(found, dict)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Log.entryAdded" and values["entry"]["level"] in ("warning", "error"):
            self.complaints.append(values["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(values["exceptionDetails"]))
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog: {values['message']}")

    def run(self, script: str) -> Any:
        """Return what an expression gives in the page, or what it promises."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until an expression gives something in the page."""
        end = time.monotonic() + PATIENCE_S
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"never: {script}"
            time.sleep(0.02)
        return found

    def open(self, address: str) -> None:
        """Go to an address, and wait until it is there."""
        self.run("window.isOld = true")
        self.call("Page.navigate", url=address)
        self.wait("!window.isOld && document.readyState === 'complete'")

    def press(self, key: str, text: str = "") -> None:
        """Press a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, code=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def colours(self, scheme: str) -> None:
        """Prefer dark or light, as the settings of a system do."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def size(self, width: int, height: int) -> None:
        """Make the window so large."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def picture(self) -> bytes:
        """Return what is seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def browser(place: Path) -> Iterator[Browser]:
    """Start a browser whose files are in a directory."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium: .ci/packages browser")
    their_commands, commands = os.pipe()
    events, their_events = os.pipe()
    script = f'exec "$@" 3<&{their_commands} 4>&{their_events}'
    words = ["bash", "-c", script, "-", program, *FLAGS, f"--user-data-dir={place}"]
    process = subprocess.Popen(
        words, pass_fds=(their_commands, their_events), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(their_commands)
    os.close(their_events)
    try:
        yield Browser(commands, events)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        os.close(commands)
        os.close(events)
