"""What reaches the page behind its gate, and what does not. The page here only says what it was asked."""

import asyncio
import json
import os
from pathlib import Path

import pytest

httpx = pytest.importorskip("httpx", reason='gradio is not installed: pip install "vitling[app]"')
pytest.importorskip("starlette", reason='gradio is not installed: pip install "vitling[app]"')

from vitling.deploy import gate as gate_module  # noqa: E402
from vitling.deploy.gate import Gate, Names  # noqa: E402

META = {"_type": "gradio.FileData"}
ADDRESS = "http://127.0.0.1:7860"


class Page:
    """An ASGI application that answers with what it was asked."""

    def __init__(self):
        self.asked = []

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.asked.append((scope["path"], scope["query_string"].decode(), headers, json.loads(body) if body else None))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"answered"})


@pytest.fixture
def page():
    return Page()


@pytest.fixture
def gate(page, tmp_path):
    (tmp_path / "own").mkdir()
    return Gate(page, tmp_path / "own", names=Names("127.0.0.1"), functions={0})


def send(gate, method, path, **request):
    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url=ADDRESS) as client:
            return await client.request(method, path, **request)

    return asyncio.run(ask())


def upload(gate, content=b"pixels", name="a.png"):
    return send(gate, "POST", "/gradio_api/upload", files={"files": (name, content)})


def ask(gate, file, **more):
    question = {"data": [file], "fn_index": 0, "session_hash": "abc", "trigger_id": 3, "event_data": None, **more}
    return send(gate, "POST", "/gradio_api/queue/join", json=question)


def test_an_uploaded_file_can_be_asked_about(gate, page):
    (path,) = upload(gate).json()
    assert Path(path).read_bytes() == b"pixels"
    assert ask(gate, {"path": path, "url": "http://127.0.0.1:9/x", "is_stream": True, "meta": META}).status_code == 200
    asked = {"data": [{"path": path, "meta": META}], "fn_index": 0, "session_hash": "abc", "trigger_id": 3}
    assert page.asked[-1][3] == asked


def test_an_uploaded_file_is_deleted_after_its_time(gate, monkeypatch):
    monkeypatch.setattr(gate_module, "UPLOAD_SECONDS", 0)

    async def upload_and_wait():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url=ADDRESS) as client:
            answer = await client.post("/gradio_api/upload", files={"files": ("a.png", b"pixels")})
        while gate.uploads:
            await asyncio.sleep(0)
        return answer.json()

    (path,) = asyncio.run(upload_and_wait())
    assert not os.listdir(gate.folder)
    assert ask(gate, {"path": path, "meta": META}).status_code == 403


def test_no_other_path_reaches_the_page(gate, page, tmp_path):
    (path,) = upload(gate).json()
    other = tmp_path / "own" / "picture.png"  # even in the page's folder: nobody has uploaded it
    other.write_bytes(b"pixels")
    folder, name = os.path.split(path)
    os.symlink(other, os.path.join(folder, "link.png"))
    places = [
        str(other),
        "/etc/passwd",
        "/dev/zero",
        "README.md",
        "",
        folder,
        f"{folder}/link.png",
        f"{folder}/./{name}",
    ]
    places += [
        f"{folder}/../{os.path.basename(folder)}/{name}",
        f"{path}\0",
        f"file://{path}",
        "http://127.0.0.1:9/x.png",
    ]
    places += [
        "https://example.com/x.png",
        "ftp://x/y.png",
        "data:image/png;base64,AAAA",
        "/" + "a" * 5000,
        None,
        7,
        [path],
    ]
    for place in places:
        for file in ({"path": place, "meta": META}, {"path": place}, {"path": place, "is_stream": True, "meta": META}):
            answer = ask(gate, file)
            assert answer.status_code == 403, place
            assert answer.json()["detail"].startswith("only files that were uploaded to this page are read")
    for file in (path, [{"path": path}], 7, True, {}, {"url": path}, {"path": {"path": path}}):
        assert ask(gate, file).status_code == 403, file
    assert not page.asked


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 30_000,
        b"1" * 30_000,
        b"\xff\xfe",
        b'{"data": 1}',
        b'{"data": []}',
        b'{"data": [null]}',
    ],
)
def test_a_question_of_another_form_is_refused(gate, page, body):
    answer = send(gate, "POST", "/gradio_api/queue/join", content=body)
    assert answer.status_code == 400
    assert not page.asked


@pytest.mark.parametrize(
    "more",
    [{"fn_index": n} for n in (1, -1, True, None, "0", 0.0, [])]
    + [{"session_hash": h} for h in (None, "", "../x", "a" * 65, 5)]
    + [{"data": [None, None]}, {"data": {"path": "x"}}],
)
def test_a_question_with_other_values_is_refused(gate, page, more):
    assert ask(gate, None, **more).status_code == 400
    assert not page.asked


def test_what_the_page_never_sends_is_not_passed_on(gate, page):
    ask(
        gate,
        None,
        event_data={"path": "/etc/passwd", "meta": META},
        simple_format=True,
        oauth_token="x",
        trigger_id="x",
    )
    assert page.asked[-1][3] == {"data": [None], "fn_index": 0, "session_hash": "abc", "trigger_id": None}
    forwarded = {"X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example", "Cookie": "a=b"}
    send(gate, "GET", "/config?deep_link=../..", headers=forwarded)
    path, query, headers, _ = page.asked[-1]
    assert (path, query) == ("/config", "")
    assert set(headers) <= {"host", "accept", "accept-encoding", "user-agent"}


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/proxy=http://127.0.0.1:9/", "/gradio_api/component_server", "/gradio_api/run/look", "/gradio_api/api/look",
        "/gradio_api/call/look", "/gradio_api/call/v2/look", "/gradio_api/process_recording", "/gradio_api/vibe-edit",
        "/gradio_api/vibe-code/", "/gradio_api/reset", "/gradio_api/cancel", "/gradio_api/stream/x", "/gradio_api/runs",
        "/gradio_api/run-history/connect", "/gradio_api/token", "/gradio_api/deep_link", "/gradio_api/openapi.json", "/docs",
        "/openapi.json", "/redoc", "/monitoring", "/login", "/file=/etc/passwd", "/gradio_api/file/etc/passwd", "/static/..%2f..%2fx",
        "/static/%2e%2e/%2e%2e/x", "/gradio_api/heartbeat/..", "/gradio_api/queue/join/", "/gradio_api/upload/",
    ],
)  # fmt: skip
def test_addresses_that_the_page_does_not_need_are_not_there(gate, page, path):
    for method in ("GET", "POST", "PUT", "OPTIONS"):
        assert send(gate, method, path, **({"json": {}} if method == "POST" else {})).status_code == 404
    assert not page.asked


def test_files_are_served_from_the_pages_folder_only_and_never_shown_as_a_page(gate, tmp_path):
    (path,) = upload(gate, b"<script>alert(1)</script>", "x.html").json()
    secret = tmp_path / "own_but_not" / "secret.png"
    secret.parent.mkdir()
    secret.write_bytes(b"secret")
    os.symlink(secret, tmp_path / "own" / "link.png")
    answer = send(gate, "GET", f"/gradio_api/file={path}")
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    places = [secret, tmp_path / "own" / "link.png", tmp_path / "own", f"{tmp_path}/own/../own_but_not/secret.png"]
    places += [
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "//etc/passwd",
        "README.md",
        "",
        ".",
        "x%00y",
        "http://127.0.0.1:9/",
        "a" * 5000,
    ]
    for place in places:
        answer = send(gate, "GET", f"/gradio_api/file={place}")
        assert (answer.status_code, answer.text) == (404, "there is no such file on this page."), place


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7860", 200), ("localhost:7860", 200), ("LocalHost", 200), ("[::1]:7860", 200), ("127.0.0.1:8000", 200),
        ("evil.example", 421), ("evil.example:7860", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example", 421),
        ("", 421), ("10.0.0.1", 421), ("0.0.0.0:7860", 421), ("127.0.0.1@evil.example", 421), ("127.1", 421), ("[::1", 421),
    ],
)  # fmt: skip
def test_the_page_is_served_under_its_own_names_only(gate, host, status):
    assert send(gate, "GET", "/config", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (ADDRESS, 200), ("http://localhost:7860", 200), ("https://127.0.0.1:7860", 200),
        ("http://evil.example", 403), ("http://127.0.0.1:7861", 403), ("http://127.0.0.1", 403), ("null", 403), ("", 403),
        ("file://", 403), ("http://evil.example@127.0.0.1:7860", 403), ("http://127.0.0.1:7860.evil.example", 403),
        ("http://127.0.0.1:7860/x", 403), ("chrome-extension://127.0.0.1:7860", 403),
    ],
)  # fmt: skip
def test_other_pages_are_not_answered(gate, origin, status):
    assert send(gate, "GET", "/config", headers={"Origin": origin}).status_code == status
    files = {"files": ("a.png", b"pixels")}
    answer = send(gate, "POST", "/gradio_api/upload", files=files, headers={"Origin": origin})
    assert answer.status_code == status
    assert len(gate.uploads) == (status == 200)


def test_a_host_that_was_given_is_a_name_of_the_page(page, tmp_path):
    named = Gate(page, tmp_path, names=Names("Lab.example", "192.0.2.7"), functions={0})
    for host, status in {"lab.example:80": 200, "192.0.2.7": 200, "localhost": 200, "other.example": 421}.items():
        assert send(named, "GET", "/", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_listening_everywhere_takes_addresses_but_no_foreign_names(page, tmp_path, everywhere):
    wide = Gate(page, tmp_path, names=Names(everywhere), functions={0})
    for host, status in {"192.0.2.7:80": 200, "[2001:db8::1]:80": 200, "localhost": 200, "evil.example": 421}.items():
        assert send(wide, "GET", "/", headers={"Host": host}).status_code == status


def test_an_upload_that_is_too_large_is_refused_with_the_limit(gate, monkeypatch):
    monkeypatch.setattr(gate_module, "UPLOAD_BYTES", 2**20)
    answer = upload(gate, b"x" * 3 * 2**20)
    assert answer.status_code == 413
    assert answer.text == "it has 3 MB, and at most 1 MB are taken."
    monkeypatch.setattr(gate_module, "UPLOADS_BYTES", 10)
    upload(gate, b"more than ten bytes")
    answer = upload(gate)
    assert answer.status_code == 507
    assert "try again later" in answer.text


def test_an_upload_of_unknown_length_is_refused(gate):
    async def endless():
        while True:
            yield b"x" * 1000

    form = {"Content-Type": "multipart/form-data; boundary=x"}
    assert send(gate, "POST", "/gradio_api/upload", content=endless(), headers=form).status_code == 411


@pytest.mark.parametrize(
    "name", ["../../../etc/x.png", "/abs.png", "C:\\x\\y.png", "..", ".", " ", "é" * 300 + ".png", "a\tb.png", ".hidden", "x" * 1000]
)  # fmt: skip
def test_an_upload_gets_a_name_that_stays_in_the_folder(gate, name):
    (path,) = upload(gate, name=name).json()
    assert os.path.dirname(os.path.dirname(path)) == gate.folder
    assert os.path.isfile(path)
    assert os.path.basename(path).endswith(".png") == name.endswith(".png")


FORM = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\npixels\r\n--x--\r\n'


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", FORM[:40]),
        ("multipart/form-data; boundary=x", b"\0\xff" * 500),
        ("multipart/form-data; boundary=x", FORM.replace(b"; filename", b"; other")),
        ("multipart/form-data; boundary=x", FORM.replace(b'; name="files"', b"")),
        ("multipart/form-data; boundary=x", FORM.replace(b"--x--\r\n", b"") + FORM),
        ("multipart/form-data; boundary=y", FORM),
        ("multipart/form-data; boundary=" + "y" * 5000, FORM),
        ("multipart/form-data", FORM),
        ("application/json", b"{}"),
        ("", FORM),
    ],
)
def test_a_bad_form_is_refused_in_one_line(gate, content_type, body):
    answer = send(gate, "POST", "/gradio_api/upload", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 400
    assert answer.text.startswith("an upload is a form with one file")
    assert "\n" not in answer.text
    assert not os.listdir(gate.folder)
