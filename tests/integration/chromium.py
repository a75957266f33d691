"""
A headless Chromium, driven as the W3C's WebDriver protocol says: JSON over HTTP to C{chromedriver},
which comes with it. That is a page of code, so no package is needed for it.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
NEEDS = ("browser",)
WAIT_SECONDS_MAX = 300.0
TAB, ENTER = "\ue004", "\ue007"
"""Keys, as WebDriver names them."""

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
START_COUNT_MAX = 3
_STARTED = re.compile(r"started successfully on port (\d+)")


class Chromium:
    """
    A browser with one window. Ends with C{close}.
    """

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        driver = shutil.which("chromedriver")
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if driver is None or program is None:
            raise AssertionError(
                "chromium and chromedriver are missing: apt-get install chromium chromium-driver"
            )
        self._session = ""
        self._port = 0
        for _attempt in range(START_COUNT_MAX):
            self._driver = subprocess.Popen(
                [driver, "--port=0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self._port = self._waitForPort()
            if self._port:
                break
            self._driver.wait()
        try:
            if not self._port:
                raise AssertionError("chromedriver has ended")
            # By a pipe, since the driver would look for the browser's port at "localhost", which a
            # bare system may not know.
            arguments = [
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--disable-background-networking",
                "--no-first-run",
                f"--user-data-dir={self._profile}",
                f"--window-size={width},{height}",
            ]
            options = {"binary": program, "args": arguments}
            capabilities = {
                "alwaysMatch": {
                    "goog:chromeOptions": options,
                    "goog:loggingPrefs": {"browser": "ALL"},
                }
            }
            self._session = (
                "/session/"
                + self._ask("POST", "/session", {"capabilities": capabilities})["sessionId"]
            )
        except BaseException:
            self.close()
            raise

    def _waitForPort(self) -> int:
        """@return: 0: it has ended, as when the port that it took is not free any more."""
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            found = _STARTED.search(line)
            if found:
                threading.Thread(
                    target=self._driver.stdout.read, daemon=True
                ).start()  # or it would block once the pipe is full
                return int(found[1])
        return 0

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        try:
            data = None if method == "GET" or method == "DELETE" else json.dumps(body or {})
            connection.request(
                method, self._session + path, data, {"Content-Type": "application/json"}
            )
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{path}: {answer['error']}: {answer['message']}")
        return answer

    def open(self, address: str) -> None:
        self._ask("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page; C{arguments} are its arguments."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """What a person reads there; C{""} when there is no such thing."""
        return str(
            self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        )

    def click(self, selector: str) -> None:
        """As a person does: it must be in sight."""
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})[
            _ELEMENT
        ]
        self._ask("POST", f"/element/{found}/click")

    def type(self, selector: str, text: str) -> None:
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})[
            _ELEMENT
        ]
        self._ask("POST", f"/element/{found}/clear")
        self._ask("POST", f"/element/{found}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, on the element that has the focus."""
        made = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": made}]
        self._ask("POST", "/actions", {"actions": actions})

    def waitFor(
        self, what: str, look: Callable[[], Any], secondsMax: float = WAIT_SECONDS_MAX
    ) -> Any:
        """
        Look again and again until there is something true.

        @return: that.
        """
        deadline = time.monotonic() + secondsMax
        while not (found := look()):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{what}: not within {secondsMax} s\n{self.text('body')}\n{self.errors()}"
                )
            threading.Event().wait(0.1)
        return found

    def errors(self) -> list[str]:
        """What the page has complained of: errors of scripts, what its policy has forbidden."""
        return [
            entry["message"]
            for entry in self._ask("POST", "/se/log", {"type": "browser"})
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def resize(self, width: int, height: int) -> None:
        self._ask("POST", "/window/rect", {"width": width, "height": height})

    def emulate(self, width: int, height: int, dark: bool = False, scale: float = 1) -> None:
        """A screen of any size, which windows cannot be, and its colours."""
        metrics = {
            "width": width,
            "height": height,
            "deviceScaleFactor": scale,
            "mobile": width < 600,
        }
        self._ask(
            "POST",
            "/goog/cdp/execute",
            {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics},
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._ask(
            "POST",
            "/goog/cdp/execute",
            {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}},
        )

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def close(self) -> None:
        """End it all."""
        try:
            if self._session:
                self._ask("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait()
            if self._driver.stdout is not None:
                self._driver.stdout.close()
            shutil.rmtree(self._profile, ignore_errors=True)
