"""Debian's Chromium, driven by the WebDriver protocol through its chromedriver."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from base64 import b64decode
from pathlib import Path
from typing import Any, Final

from penstock.closing import Closing

PATIENCE_S: Final = 60

FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1000,900",
)
ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"
"""The key under which the protocol has an element's reference."""


class Browser(Closing):
    """A Chromium of its own, with an empty profile. Raises `FileNotFoundError` without Chromium."""

    def __init__(self) -> None:
        chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
        if chromium is None or driver is None:
            raise FileNotFoundError("chromium or chromedriver is not installed")
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._driver = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._session = ""
        try:
            self._address = f"http://127.0.0.1:{self._port()}/session"
            options = {
                "binary": chromium,
                "args": [*FLAGS, f"--user-data-dir={self._profile.name}"],
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            found = self._call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
            self._session = f"/{found['sessionId']}"
        except BaseException:
            self.close()
            raise

    def open(self, address: str) -> None:
        """Loads the page at *address*."""
        self._call("POST", "/url", {"url": address})

    def title(self) -> str:
        return str(self._call("GET", "/title"))

    def find(self, selector: str) -> list[str]:
        """The elements that the CSS *selector* selects."""
        found = self._call("POST", "/elements", {"using": "css selector", "value": selector})
        return [each[ELEMENT] for each in found]

    def text(self, element: str) -> str:
        """What the element shows: text that is not displayed is not part of it."""
        return str(self._call("GET", f"/element/{element}/text"))

    def rectangle(self, element: str) -> dict[str, float]:
        """`x`, `y`, `width` and `height` of the element in pixels."""
        found: dict[str, float] = self._call("GET", f"/element/{element}/rect")
        return found

    def is_displayed(self, element: str) -> bool:
        return bool(self._call("GET", f"/element/{element}/displayed"))

    def click(self, element: str) -> None:
        self._call("POST", f"/element/{element}/click", {})

    def complaints(self) -> list[str]:
        """What the page had the console say, such as breaches of its content security policy."""
        found = self._call("POST", "/se/log", {"type": "browser"})
        return [each["message"] for each in found]

    def picture(self, path: Path) -> None:
        """Writes what the window shows to *path*, as PNG."""
        path.write_bytes(b64decode(self._call("GET", "/screenshot")))

    def close(self) -> None:
        try:
            if self._session:
                self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(PATIENCE_S)
            if self._driver.stdout is not None:
                self._driver.stdout.close()
            self._profile.cleanup()

    def _port(self) -> int:
        """The port that chromedriver says it listens on."""
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            words = line.strip().rstrip(".").rpartition("on port ")
            if words[1] and words[2].isdecimal() and words[2] != "0":
                return int(words[2])
        raise RuntimeError("chromedriver ended before it listened")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        address = self._address + self._session + path
        request = urllib.request.Request(address, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.read().decode()}") from error
