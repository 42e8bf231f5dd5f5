"""A headless Chromium, driven over a pipe: keys in, what a page did and said out."""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# Chromium reads commands at descriptor 3 and writes to 4, which the parent may have in use.
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
_LONGEST_SILENCE = 60  # seconds
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
_KEYS = {
    "Enter": (13, "\r"),
    "Backspace": (8, ""),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "ArrowLeft": (37, ""),
    "ArrowRight": (39, ""),
}


class Tab:
    """One page of a browser, its size, and what it said and asked for."""

    def __init__(self, browser: "Browser", width: int, height: int) -> None:
        self._browser = browser
        target = browser.new_target()
        attached = browser.send("Target.attachToTarget", targetId=target, flatten=True)
        self._target, self._session = target, attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        """Give the window another size, which takes less than another tab."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        return self._browser.send(method, self._session, **parameters)

    def open(self, url: str) -> None:
        """Load a page and wait until it is complete."""
        self.send("Page.navigate", url=url)
        self._browser.wait("Page.loadEventFired", self._session)

    def value(self, expression: str) -> Any:
        """Return what a JavaScript expression gives."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, *keys: str, modifiers: int = 0) -> None:
        """Press and release keys one after the other, as a keyboard does."""
        for key in keys:
            code, text = _KEYS.get(key, (ord(key[0].upper()), key))
            held = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
            if key not in _KEYS:
                held["code"] = f"Digit{key}" if key.isdecimal() else f"Key{key.upper()}"
                if key == ".":
                    held |= {"code": "Period", "windowsVirtualKeyCode": 190}
            written = {"text": text} if text and not modifiers else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", **held, **written)
            self.send("Input.dispatchKeyEvent", type="keyUp", **held)

    def tap(self, element: str) -> None:
        """Touch the middle of an element, named by an expression, as a finger does."""
        x, y = self.value(
            f"{{const it = {element}; it.scrollIntoView({{block: 'center'}});"
            "const box = it.getBoundingClientRect();"
            "[box.x + box.width / 2, box.y + box.height / 2]}"
        )
        for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
            self.send("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    def screenshot(self, path: Path) -> None:
        """Save what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """Close the page as a user does who closes its tab."""
        self._browser.send("Target.closeTarget", targetId=self._target)

    def complaints(self) -> list[Any]:
        """Return console messages, exceptions and other remarks of the browser so far."""
        names = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self._events() if event["method"] in names]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for so far, but for what lies in the page itself."""
        urls = [
            str(event["params"]["request"]["url"])
            for event in self._events()
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]

    def _events(self) -> Iterator[dict[str, Any]]:
        return (one for one in self._browser.events if one.get("sessionId") == self._session)


class Browser:
    """The browser's end of the pipe."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._rest = b""
        self._number = 0
        self._context = ""
        self._has_stored = False  # whether pages of an earlier test may have stored something
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come before are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer}"
                result: dict[str, Any] = answer["result"]
                return result

    def wait(self, method: str, session: str | None = None) -> dict[str, Any]:
        """Return the first event of a kind that was not waited for yet."""
        while True:
            for event in self.events:
                if event["method"] == method and session in (None, event.get("sessionId")):
                    event["method"] = f"{method} (seen)"
                    return event
            self._next()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select([self._back], [], [], _LONGEST_SILENCE)[0], "the browser says nothing"
            read = os.read(self._back, 1 << 20)
            assert read, "the browser has ended"
            self._rest += read
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "id" not in message:
            self.events.append(message)
        return message

    def start_anew(self, downloads: Path) -> None:
        """Forget what pages kept; what is downloaded from here on goes to a folder, unasked.

        A new context would forget it too, but each context takes half a second.
        """
        self.events.clear()
        self._has_stored = bool(self._context)
        if not self._context:
            self._context = self.send("Target.createBrowserContext")["browserContextId"]
        self.send(
            "Browser.setDownloadBehavior",
            behavior="allow",
            browserContextId=self._context,
            downloadPath=str(downloads),
            eventsEnabled=True,
        )

    def new_target(self) -> str:
        """Make an empty page and return its name in the protocol."""
        made = self.send("Target.createTarget", url="about:blank", browserContextId=self._context)
        return str(made["targetId"])

    def tab(self, width: int, height: int) -> Tab:
        """Open an empty page of a size in pixels."""
        tab = Tab(self, width, height)
        if self._has_stored:
            tab.send("Storage.clearDataForOrigin", origin="file:///", storageTypes="local_storage")
            self._has_stored = False
        return tab


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Run a browser."""
    ours, theirs = os.pipe(), os.pipe()
    command = [str(CHROMIUM), *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    with subprocess.Popen(
        [sys.executable, "-c", _START, str(ours[0]), str(theirs[1]), *command],
        pass_fds=(ours[0], theirs[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(ours[0])
        os.close(theirs[1])
        started = Browser(ours[1], theirs[0])
        try:
            yield started
            started.send("Browser.close")
        finally:
            process.terminate()
            os.close(ours[1])
            os.close(theirs[0])
