"""Endpoints: requests to the local page that no page would send. It tells nothing, stays up, and its log has no traceback."""

import json
import random
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import kill
from pathlib import Path
from urllib.parse import quote

import httpx

from torture import injection
from torture.bench import Part, Tally
from torture.inputs import FORMATS, encoded_image
from torture.material import Material, chance

SECRET = "what only the user may read"
START_SECONDS, ANSWER_SECONDS = 180.0, 60.0
ADDRESSES = """
    / /config /theme.css /favicon.ico /manifest.json /static/x /assets/index.js /gradio_api/info /gradio_api/startup-events
    /gradio_api/queue/data /gradio_api/queue/join /gradio_api/upload /gradio_api/upload_progress /gradio_api/heartbeat/x
    /gradio_api/file= /gradio_api/file/ /file= /gradio_api/proxy= /gradio_api/run/predict /gradio_api/call/look /gradio_api/reset
    /gradio_api/component_server /gradio_api/stream/x /gradio_api/deep_link /gradio_api/cancel /gradio_api/dev/reload /login /logout /token
    /docs /openapi.json /mcp /monitoring /gradio_api/vibe-editor /custom_component/x /.git/config /robots.txt //config
""".split()  # noqa: SIM905
HOSTS = (
    "evil.example",
    "127.0.0.1.evil.example",
    "10.0.0.1",
    "",
    "localhost.evil",
    "127.0.0.1@evil.example",
    "[::2]",
    "\x7f",
)
ORIGINS = ("http://evil.example", "null", "file://", "http://127.0.0.1:1", "https://127.0.0.1.evil.example")


class Endpoints(Part):
    name = "endpoints"
    about = "requests to the local page that it never sends itself: nothing told, nothing run, no traceback, still up afterwards"
    examples = 80

    def __init__(self, folder: Path, seed: int, seconds: float):
        super().__init__(folder, seed, seconds)
        self.material = Material(folder / "material")
        self.secret = folder / "secret.png"
        self.secret.write_text(SECRET)

    def try_one(self, number: int, tally: Tally) -> None:
        draw = chance(self.seed, self.name, number)
        with self._serving() as (address, log), httpx.Client(base_url=address, timeout=ANSWER_SECONDS) as client:
            for _ in range(self.examples):
                kind = draw.choice(list(KINDS))
                try:
                    problem = KINDS[kind](client, draw, self.secret)
                except httpx.TimeoutException:
                    problem = "no answer"
                except httpx.TransportError:  # it hung up: that is an answer
                    problem = ""
                tally.count(number, problem and f"{kind}: {problem}", kind)
            problem = "" if client.get("/config").status_code == 200 else "the page does not answer any more"
            tally.count(number, problem or self._ask(client), "good questions")
        outcome = log[0]
        ended = outcome.code in (0, 130) and "Traceback" not in outcome.err
        tally.count(number, "" if ended else f"the page's log: {outcome.describe()}", "logs")

    @contextmanager
    def _serving(self) -> Iterator[tuple[str, list[injection.Outcome]]]:
        """The address of a page, and how it ended afterwards."""
        process = injection.start(["app", self.material.run("finished"), "--port", "0"], self.folder)
        log: list[injection.Outcome] = []
        printed, began = process.folder / "out", time.monotonic()
        try:
            while not (found := re.search(r"http://[\d.]+:\d+", printed.read_text() if printed.exists() else "")):
                if time.monotonic() - began > START_SECONDS:
                    raise RuntimeError("the page did not start")
                time.sleep(0.1)
            yield found[0], log
        finally:
            kill(process.pid, signal.SIGINT)
            log.append(process.wait(time.monotonic() - process.began + 60))

    def _ask(self, client: httpx.Client) -> str:
        """A good picture is answered after everything."""
        picture = next((self.material.photos).rglob("*.png")).read_bytes()
        answer = ask(client, upload(client, "good.png", picture), "good")
        return "" if "confidences" in answer else f"a good picture is not answered: {answer[:200]}"


# -- the kinds of requests: each says what was wrong with the answer ---------------------------------------------------


def send_anywhere(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    method = draw.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW"])
    address = draw.choice(ADDRESSES)
    if "queue/data" in address or "heartbeat" in address:
        return ""  # these answer for as long as somebody listens
    body = draw.choice([b"", b"{}", b"[" * 10_000, draw.randbytes(200), b'{"data": [null], "fn_index": 99}'])
    headers = draw.choice(
        [{}, {"Content-Type": "application/json"}, {"Content-Type": "multipart/form-data; boundary=x"}]
    )
    answer = client.request(method, mixed(draw, address), content=body if method != "GET" else None, headers=headers)
    return check(answer)


def ask_for_files(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    start = draw.choice(
        ["/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/", "/gradio_api/proxy=", "/"]
    )
    name = draw.choice(
        [str(secret), "../" * 9 + str(secret).lstrip("/"), f"file://{secret}", "/etc/passwd", "\\\\host\\x", "%00"]
    )
    answer = client.get(start + draw.choice([name, quote(name, safe=""), quote(quote(name, safe=""), safe="")]))
    return check(answer, refused=True)


def lie_about_names(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    if draw.random() < 0.5:
        answer = raw(
            client,
            f"GET {draw.choice(ADDRESSES[:5])} HTTP/1.1\r\nHost: {draw.choice(HOSTS)}\r\nConnection: close\r\n\r\n",
        )
        return "" if answer[9:12] in ("421", "400", "") else f"a foreign Host is answered: {answer[:80]!r}"
    answer = client.get(draw.choice(ADDRESSES[:5]), headers={"Origin": draw.choice(ORIGINS)})
    return "" if answer.status_code == 403 else f"a foreign Origin is answered with {answer.status_code}"


def ask_about_files(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    file = draw.choice(
        [
            {"path": str(secret), "meta": {"_type": "gradio.FileData"}},
            {"path": f"http://127.0.0.1:{client.base_url.port}/", "meta": {"_type": "gradio.FileData"}},
            {"path": "", "url": str(secret)},
            {"path": [str(secret)]},
            {"path": {"path": str(secret)}},
            str(secret),
            [None],
            10**400,
        ]
    )
    question = {
        "data": draw.choice([[file], file, [file, file], {"0": file}]),
        "session_hash": draw.choice(["x", "", 7, "../x"]),
    }
    question["fn_index"] = draw.choice([0, 1, -1, None, "0", True, 10**30])
    answer = client.post("/gradio_api/queue/join", json=question)
    return check(answer, refused=True)


def upload_damage(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    content = bytearray(encoded_image(draw.choice(sorted(FORMATS))))
    for _ in range(draw.randint(0, 9)):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    content = content[: draw.randint(0, len(content))]
    name = draw.choice(
        ["a.png", "../../a.png", "a.npy", "", ".", "x" * 3000, "a\0b.png", "a.tif", "<script>.png", "é.jpg"]
    )
    path = upload(client, name, bytes(content))
    answer = ask(client, path, f"s{draw.getrandbits(32)}") if path else ""
    return "a traceback or a path is told" if "Traceback" in answer or str(Path.home()) in answer else ""


def send_garbage(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    host = f"127.0.0.1:{client.base_url.port}"
    head = f"POST /gradio_api/upload HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    answer = raw(
        client,
        draw.choice(
            [
                draw.randbytes(100).decode("latin-1") + "\r\n\r\n",
                f"{head}Content-Length: 99999999999\r\n\r\nx",
                f"{head}Content-Length: -1\r\n\r\n",
                f"{head}Content-Length: 5\r\nContent-Length: 6\r\n\r\n123456",
                f"{head}Transfer-Encoding: chunked\r\n\r\nffffffff\r\nx",
                f"{head}Content-Type: multipart/form-data; boundary=a\r\nContent-Length: 9\r\n\r\n--a\r\n--b\r\n",
                f"GET / HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
                f"GET / HTTP/9.9\r\nHost: {host}\r\n\r\n",
                f"GET /config HTTP/1.1\r\nHost: {host}\r\nX: {'y' * 70_000}\r\n\r\n",
            ]
        ),
    )
    return f"it answers {answer[:60]!r}" if re.match(r"HTTP/1.\d 5(?!07)", answer) else ""


KINDS = {
    "addresses": send_anywhere,
    "files": ask_for_files,
    "names": lie_about_names,
    "questions": ask_about_files,
    "uploads": upload_damage,
    "garbage": send_garbage,
}


# -- what they are made of ---------------------------------------------------------------------------------------------


def check(answer: httpx.Response, refused: bool = False) -> str:
    where = f"{answer.request.method} {answer.request.url.raw_path[:60]!r} is answered with {answer.status_code}"
    if SECRET in answer.text or "root:" in answer.text:
        return f"{where} and tells what is in a file"
    if answer.status_code >= 500 and answer.status_code != 507:
        return where
    return f"{where}, though it is not for the page" if refused and answer.status_code < 400 else ""


def mixed(draw: random.Random, address: str) -> str:
    """The address, or one that could be mistaken for it."""
    change = draw.choice(
        [
            str,
            str.upper,
            lambda text: quote(text, safe=""),
            lambda text: f"{text}/../config",
            lambda text: f"{text}?x=%ff",
        ]
    )
    return "/" + change(address).lstrip("/")


def raw(client: httpx.Client, text: str) -> str:
    """What is answered to these bytes, as far as it comes within a moment."""
    with socket.create_connection(("127.0.0.1", client.base_url.port or 80), timeout=3) as connection:
        connection.settimeout(3)
        try:
            connection.sendall(text.encode("latin-1"))
            return connection.recv(4096).decode("latin-1")
        except OSError:  # it hung up, or waits for the rest
            return ""


def upload(client: httpx.Client, name: str, content: bytes) -> str:
    answer = client.post("/gradio_api/upload", files={"files": (name, content)})
    return answer.json()[0] if answer.status_code == 200 else ""


def ask(client: httpx.Client, path: str, session: str) -> str:
    """The last event that the page gets for a question about an uploaded file."""
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    question = {"data": [file], "fn_index": 0, "session_hash": session, "event_data": None, "trigger_id": None}
    joined = client.post("/gradio_api/queue/join", json=question)
    if joined.status_code != 200:
        return joined.text
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as events:
        for line in events.iter_lines():
            if '"process_completed"' in line:
                return json.dumps(json.loads(line.removeprefix("data: "))["output"])
    return "no answer"
