"""Endpoints: requests to the local page and to the server that nobody in his right mind would send. They tell nothing, stay up, log no traceback."""

import json
import random
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from os import kill
from pathlib import Path
from urllib.parse import quote

import httpx

from torture import injection
from torture.bench import Part, Tally
from torture.inputs import FORMATS, encoded_image
from torture.material import Material, chance

SECRET = "what only the user may read"
TOKEN = "only-for-those-who-know-it"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
START_SECONDS, ANSWER_SECONDS = 180.0, 60.0
ADDRESSES = """
    / /config /theme.css /favicon.ico /manifest.json /static/x /assets/index.js /gradio_api/info /gradio_api/startup-events
    /gradio_api/queue/data /gradio_api/queue/join /gradio_api/upload /gradio_api/upload_progress /gradio_api/heartbeat/x
    /gradio_api/file= /gradio_api/file/ /file= /gradio_api/proxy= /gradio_api/run/predict /gradio_api/call/look /gradio_api/reset
    /gradio_api/component_server /gradio_api/stream/x /gradio_api/deep_link /gradio_api/cancel /gradio_api/dev/reload /login /logout /token
    /docs /openapi.json /mcp /monitoring /gradio_api/vibe-editor /custom_component/x /.git/config /robots.txt //config
""".split()  # noqa: SIM905
SERVER_ADDRESSES = """
    / /predict /health /metrics /openapi.json /docs /redoc /predict/ //predict /predict/../metrics /static/x /.git/config /robots.txt
    /predict?top=0 /predict?top=99999999999999999999 /predict?top=nan /predict?top=1&top=2 /predict?image=/etc/passwd
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
    about = "requests to the local page and to the server that nobody should send: nothing told, nothing run, no traceback, still up afterwards"
    examples = 80

    def __init__(self, folder: Path, seed: int, seconds: float):
        super().__init__(folder, seed, seconds)
        self.material = Material(folder / "material")
        self.secret = folder / "secret.png"
        self.secret.write_text(SECRET)

    def try_one(self, number: int, tally: Tally) -> None:
        """The page and the server take turns."""
        draw = chance(self.seed, self.name, number)
        served, kinds, head = ("serve", SERVER_KINDS, BEARER) if number % 2 else ("app", KINDS, {})
        alive, ask_well = ("/health", self._ask_server) if number % 2 else ("/config", self._ask)
        with (
            self._serving(served) as (address, log),
            httpx.Client(base_url=address, timeout=ANSWER_SECONDS, headers=head) as client,
        ):
            for _ in range(self.examples):
                kind = draw.choice(list(kinds))
                try:
                    problem = kinds[kind](client, draw, self.secret)
                except httpx.TimeoutException:
                    problem = "no answer"
                except httpx.TransportError:  # it hung up: that is an answer
                    problem = ""
                tally.count(number, problem and f"{served}, {kind}: {problem}", f"{kind} ({served})")
            problem = "" if client.get(alive).status_code == 200 else f"{served} does not answer any more"
            tally.count(number, problem or ask_well(client), f"good questions ({served})")
        outcome = log[0]
        ended = outcome.code in (0, 130) and "Traceback" not in outcome.err
        tally.count(number, "" if ended else f"the log of {served}: {outcome.describe()}", f"logs ({served})")

    @contextmanager
    def _serving(self, command: str) -> Iterator[tuple[str, list[injection.Outcome]]]:
        """The address of a page or a server, and how it ended afterwards."""
        words = [command, self.material.run("finished"), "--port", "0"]
        environment = {"VITLING_TOKEN": TOKEN} if command == "serve" else None
        process = injection.start(words, self.folder, environment=environment)
        log: list[injection.Outcome] = []
        printed, began = process.folder / "out", time.monotonic()
        try:
            while not (found := re.search(r"http://[\d.]+:\d+", printed.read_text() if printed.exists() else "")):
                if time.monotonic() - began > START_SECONDS:
                    raise RuntimeError(f"{command} did not start")
                time.sleep(0.1)
            yield found[0], log
        finally:
            kill(process.pid, signal.SIGINT)
            log.append(process.wait(time.monotonic() - process.began + 60))

    def _ask_server(self, client: httpx.Client) -> str:
        picture = next((self.material.photos).rglob("*.png")).read_bytes()
        answer = client.post("/predict", content=picture)
        return (
            ""
            if answer.status_code == 200 and "probabilities" in answer.text
            else f"a good picture: {answer.text[:200]}"
        )

    def _ask(self, client: httpx.Client) -> str:
        """A good picture is answered after everything."""
        picture = next((self.material.photos).rglob("*.png")).read_bytes()
        answer = ask(client, upload(client, "good.png", picture), "good")
        return "" if "confidences" in answer else f"a good picture is not answered: {answer[:200]}"


# -- the kinds of requests: each says what was wrong with the answer ---------------------------------------------------


def send_anywhere(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    address = draw.choice(ADDRESSES)
    if "queue/data" in address or "heartbeat" in address:
        return ""  # these answer for as long as somebody listens
    return send_to(client, draw, mixed(draw, address))


def send_to(client: httpx.Client, draw: random.Random, address: str) -> str:
    method = draw.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW"])
    body = draw.choice([b"", b"{}", b"[" * 10_000, draw.randbytes(200), b'{"data": [null], "fn_index": 99}'])
    headers = draw.choice(
        [{}, {"Content-Type": "application/json"}, {"Content-Type": "multipart/form-data; boundary=x"}]
    )
    return check(client.request(method, address, content=body if method != "GET" else None, headers=headers))


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


def send_garbage(client: httpx.Client, draw: random.Random, secret: Path, to: str = "/gradio_api/upload") -> str:
    host = f"127.0.0.1:{client.base_url.port}"
    known = "".join(f"{name}: {value}\r\n" for name, value in client.headers.items() if name == "authorization")
    head = f"POST {to} HTTP/1.1\r\nHost: {host}\r\n{known}Connection: close\r\n"
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


# -- the same for the server -------------------------------------------------------------------------------------------


def send_anywhere_there(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    return send_to(client, draw, draw.choice(SERVER_ADDRESSES))


def lie_about_names_there(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    address = draw.choice(["/", "/predict", "/metrics", "/health"])
    if draw.random() < 0.5:
        head = f"Host: {draw.choice(HOSTS)}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close"
        answer = raw(client, f"GET {address} HTTP/1.1\r\n{head}\r\n\r\n")
        return "" if answer[9:12] in ("421", "400", "") else f"a foreign Host is answered: {answer[:80]!r}"
    status = client.get(address, headers={"Origin": draw.choice(ORIGINS)}).status_code
    return "" if status == 403 else f"a foreign Origin is answered with {status}"


def guess_token(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    near = [TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "", "null", "x" * 60_000, "%00"]
    given = draw.choice([f"Bearer {draw.choice(near)}", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}, Bearer x", ""])
    address = draw.choice(["/", "/predict", "/metrics", "/openapi.json", "/nowhere", f"/?token={TOKEN}"])
    answer = client.request(draw.choice(["GET", "POST"]), address, headers={"Authorization": given})
    return check(answer) or ("" if answer.status_code in (400, 401, 431) else f"{given[:40]!r} opens {address}")


def send_damage(client: httpx.Client, draw: random.Random, secret: Path) -> str:
    """Images that are damaged, and forms that are none."""
    content = bytearray(encoded_image(draw.choice(sorted(FORMATS))))
    for _ in range(draw.randint(0, 9)):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    body = bytes(content[: draw.randint(0, len(content))])
    kind = draw.randrange(4)
    if kind == 0:
        answer = client.post("/predict", content=body, headers={"Content-Type": draw.choice(KINDS_OF_CONTENT)})
    elif kind == 1:
        name = draw.choice(["a.png", str(secret), "../../a.png", "", "x" * 3000, "a\0b.png", "\x1b[31m.png", "é.jpg"])
        answer = client.post("/predict", files=[("file", (name, body))] * draw.choice([1, 2, 65, 200]))
    elif kind == 2:
        answer = client.post("/predict", data={"file": str(secret), "path": "/etc/passwd"})
    else:
        head = {"Content-Type": f"multipart/form-data; boundary={draw.choice(['a', '', 'x' * 5000, chr(34)])}"}
        part = b"--a\r\nContent-Disposition: form-data; name=\"file\"; filename*=utf-8''%ff\r\n\r\n"
        answer = client.post("/predict", content=draw.choice([part + body, part, b"--a--", body]), headers=head)
    told = str(Path.home()) in answer.text or "Traceback" in answer.text
    return check(answer) or ("a traceback or a path is told" if told else "")


KINDS_OF_CONTENT = (
    "image/png",
    "application/octet-stream",
    "image/svg+xml",
    "x",
    "text/html",
    "application/json",
    "é".encode(),
)
SERVER_KINDS = {
    "addresses": send_anywhere_there,
    "names": lie_about_names_there,
    "tokens": guess_token,
    "uploads": send_damage,
    "garbage": partial(send_garbage, to="/predict"),
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
