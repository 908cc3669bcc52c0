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
    """One page. `requests` are the addresses that it has asked for."""

    def __init__(self, commands: int, replies: int):
        self.commands, self.replies = commands, replies
        self.numbers, self.buffer, self.session = itertools.count(1), b"", None
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Page", "DOM"):
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
            if reply.get("method") == "Network.requestWillBeSent":
                self.requests.append(reply["params"]["request"]["url"])
            if reply.get("id") == number:
                assert "error" not in reply, reply
                return reply["result"]

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
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", *flags)
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
