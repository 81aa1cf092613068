"""A real browser for tests of pages: headless Chromium, driven through a pipe, without any package.

Its DevTools protocol is JSON messages, each terminated by a zero byte. Commands go in through file descriptor
3, answers and events come out of 4 (``--remote-debugging-pipe``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_TIMEOUT_S = 60.0


def find_browser() -> str | None:
    """Return the path of the first browser that is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser; a context manager.

    ``complaints``: errors and warnings of the console, exceptions, and addresses requested besides the page
    itself.
    """

    def __init__(self, program: str, width: int = 1280, height: int = 900) -> None:
        self.complaints: list[str] = []
        self._events: list[str] = []
        self._width, self._height = width, height
        self._number = 0
        self._session = ""
        self._rest = b""
        self._profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        commands_out, self._commands = os.pipe()
        self._answers, answers_in = os.pipe()
        # The shell moves the pipes' ends to the descriptors that the browser expects.
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$0" "$@" 3<&{commands_out} 4>&{answers_in}', program),
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
                *(f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", "about:blank"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(commands_out, answers_in),
        )
        os.close(commands_out)
        os.close(answers_in)
        self._watchdog = threading.Timer(_TIMEOUT_S, self._process.kill)
        self._watchdog.start()

    def __enter__(self) -> Browser:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def open(self, page: Path | str, is_dark: bool = False, width: int | None = None) -> None:
        """Load a page, by its file or address, and wait until it is loaded."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            **{
                "width": width or self._width,
                "height": self._height,
                "deviceScaleFactor": 1,
                "mobile": False,
            },
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self._call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while "Page.loadEventFired" not in self._events:
            self._read()

    def value(self, script: str) -> Any:
        """Evaluate an expression in the page."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        """Return the next message; events are recorded."""
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser went away or took too long"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, given = message.get("method", ""), message.get("params", {})
        self._events.append(method)
        if method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.complaints.append(f"console: {given['args']}")
        if method == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {given['exceptionDetails']}")
        if method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"log: {given['entry']['text']}")
        if method == "Network.requestWillBeSent" and given["type"] != "Document":
            self.complaints.append(f"asked for {given['request']['url']}")
        return message
