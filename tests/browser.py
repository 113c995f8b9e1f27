"""A real browser without a window, asked by its own protocol over pipes: Chromium, where there is one."""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

PROGRAM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
OPTIONS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
# The browser listens on 3 and tells on 4, whatever numbers the pipes have here.
BEGIN = """
import fcntl, os, sys
asked, told, *line = sys.argv[1:]
high = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in (asked, told)]  # neither is 3 or 4
for to, each in zip((3, 4), high):
    os.dup2(each, to, inheritable=True)
os.execv(line[0], line)
"""
PATIENCE = 120  # seconds in which it begins or is ended


class Browser:
    """One page at a time; whatever it complains of or asks the network for is kept."""

    def __init__(self, asked: IO[bytes], told: IO[bytes]) -> None:
        self._asked, self._told = asked, told
        self._number, self._session, self.events = 0, "", list[dict[str, Any]]()
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for each in ("Page", "Runtime", "Log", "Network"):
            self(f"{each}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Carry out one command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._asked.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        found = bytearray()
        while (letter := self._told.read(1)) != b"\0":
            assert letter, "the browser has ended"
            found += letter
        return dict(json.loads(found))

    def show(self, path: Path, *, width: int, dark: bool, media: str = "screen") -> None:
        """Load a file in a window of that many CSS pixels."""
        self.events.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600)
        self("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        return self("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def press(self, key: str) -> None:
        """A key, down and up."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def complaints(self) -> list[dict[str, Any]]:
        """Errors, warnings and whatever the page wrote to the console."""
        return [event for event in self.events if event.get("method") in COMPLAINTS]

    def requests(self) -> list[str]:
        """What was asked for, by address."""
        asked = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]

    def picture(self, path: Path) -> None:
        """A picture of the whole page, for whoever wants to look."""
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile in `folder`, which is ended afterwards."""
    asked, ask = os.pipe()
    tell, told = os.pipe()
    line = [sys.executable, "-c", BEGIN, str(asked), str(told), str(PROGRAM), *OPTIONS.split()]
    with (
        os.fdopen(ask, "wb", buffering=0) as asking,
        os.fdopen(tell, "rb") as telling,
        subprocess.Popen(
            [*line, f"--user-data-dir={folder / 'profile'}"],
            pass_fds=(asked, told),
            env=os.environ | {"HOME": str(folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as program,
    ):
        os.close(asked)
        os.close(told)
        try:
            yield Browser(asking, telling)
        finally:
            program.terminate()
            program.wait(PATIENCE)
