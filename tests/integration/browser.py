"""A real browser for tests: Chromium, driven through the two pipes of its own debugging protocol."""

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_SECONDS = 300


class Tab:
    """One page. `requests` are the addresses that it has asked for, `complaints` what it wrote to its console as an error or a warning."""

    def __init__(self, commands: int, replies: int):
        self.commands, self.replies = commands, replies
        self.numbers, self.buffer, self.session = itertools.count(1), b"", None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Page", "DOM", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params) -> dict:
        """Send a command and wait for its reply; what happens meanwhile is noted."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            self._note(reply.get("method"), reply.get("params", {}))
            if reply.get("id") == number:
                assert "error" not in reply, reply
                return reply["result"]

    def _note(self, event: str | None, params: dict) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:400])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"])[:400])
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def _receive(self) -> dict:
        while b"\0" not in self.buffer:
            assert select.select([self.replies], [], [], PATIENCE_SECONDS)[0], "the browser does not answer"
            data = os.read(self.replies, 1 << 16)
            assert data, "the browser has ended"
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def drag(self, *points: tuple[float, float]) -> None:
        """Press the mouse at the first point, move it over the others, and let go at the last; coordinates of the window."""
        for kind, (x, y) in zip(("mousePressed", *["mouseMoved"] * len(points)), (points[0], *points), strict=True):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        x, y = points[-1]
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def evaluate(self, script: str):
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, script: str):
        """The value of an expression as soon as it is true."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not (value := self.evaluate(script)):
            assert time.monotonic() < end, f"never true: {script}\n{self.evaluate('document.body.innerText')}"
            time.sleep(0.1)
        return value

    def choose_file(self, selector: str, path: Path) -> None:
        """What a user does in the dialog of a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def screenshot(self, path: Path) -> None:
        import base64

        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def open_browser(folder: Path, *flags: str) -> Iterator[Tab]:
    """Chromium with a fresh profile in `folder`. It reads commands from descriptor 3 and answers on 4."""
    read_command, commands = os.pipe()
    replies, write_reply = os.pipe()
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--remote-debugging-pipe", *flags)
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    shell = f'exec "$@" 3<&{read_command} 4>&{write_reply}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", CHROMIUM, *flags, *quiet, f"--user-data-dir={folder}"],
        pass_fds=(read_command, write_reply),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_command)
    os.close(write_reply)
    try:
        yield Tab(commands, replies)
    finally:
        process.terminate()
        process.wait()
        os.close(commands)
        os.close(replies)
