"""`vitling serve` on a real socket: what it answers, whom it refuses, and how it ends."""

import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image
from tiny_run import images_of, make_tiny_run

httpx = pytest.importorskip("httpx", reason='needs pip install "vitling[test]"')
uvicorn = pytest.importorskip("uvicorn", reason='needs pip install "vitling[serve]"')
pytest.importorskip("fastapi", reason='needs pip install "vitling[serve]"')
pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')

import vitling  # noqa: E402
from vitling.deploy.door import Limits  # noqa: E402
from vitling.deploy.export import export  # noqa: E402
from vitling.deploy.hosts import take_address  # noqa: E402
from vitling.deploy.server import create_server  # noqa: E402
from vitling.errors import UserError  # noqa: E402

MB = 2**20


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = make_tiny_run(tmp_path_factory.mktemp("server"))
    export(run, "onnx")
    return run


@pytest.fixture(scope="module")
def predictor(run):
    return vitling.Predictor(run.path / "model.onnx")


@contextmanager
def serving(predictor, **options):
    """The server on a port of its own; gives a client, and the server's door."""
    door = create_server(predictor, **options)
    listener = take_address("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(door, log_level="warning", ws="none", proxy_headers=False))
    thread = threading.Thread(target=server.run, kwargs=dict(sockets=[listener]))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = listener.getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client, door
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def server(predictor):
    with serving(predictor) as (client, door):
        yield client, door


@pytest.fixture(scope="module")
def client(server):
    return server[0]


def detail(response, status):
    """The one line that a refused request gets."""
    assert response.status_code == status, response.text
    (key,) = response.json()
    assert key == "detail"
    assert "\n" not in response.json()["detail"]
    return response.json()["detail"]


# What it answers


def test_an_image_sent_as_it_is_gets_what_the_predictor_says(client, predictor, run):
    for path in images_of(run)[:3]:
        expected = predictor(path, top=2)
        for headers in ({"Content-Type": "image/png"}, {"Content-Type": "application/octet-stream"}, {}):
            answer = client.post("/predict?top=2", content=path.read_bytes(), headers=headers).json()
            (found,) = answer["predictions"]
            assert found["classes"] == expected.classes
            assert found["probabilities"] == pytest.approx(expected.probabilities, abs=2e-6)
            assert answer["calibrated"] is True


def test_a_form_of_several_files_gets_an_answer_for_each_by_name(client, predictor, run):
    paths = images_of(run)[:5]
    files = [("file", (path.name, path.read_bytes(), "image/png")) for path in paths]
    found = client.post("/predict?top=1", files=files).json()["predictions"]
    assert [p["name"] for p in found] == [path.name for path in paths]
    assert [p["classes"] for p in found] == [p.classes for p in predictor(paths, top=1)]


def test_an_array_of_numpy_is_an_image_too(client):
    content = io.BytesIO()
    np.save(content, np.zeros((9, 7, 3), np.uint8))
    assert client.post("/predict", content=content.getvalue()).status_code == 200


def test_a_body_in_chunks_without_a_length_is_read(client, run):
    content = images_of(run)[0].read_bytes()
    assert client.post("/predict", content=iter([content[:50], content[50:]])).status_code == 200


def test_it_describes_itself_and_loads_nothing_from_elsewhere(client):
    about = client.get("/").json()
    assert about["class_names"] == ["cat", "dog"]
    assert (about["size"], about["channels"], about["calibrated"]) == ([8, 8], 3, True)
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {"/", "/health", "/metrics", "/predict"}
    post = described["paths"]["/predict"]["post"]
    assert set(post["requestBody"]["content"]) == {"application/octet-stream", "image/*", "multipart/form-data"}
    assert {"200", "401", "413", "422", "429", "503"} <= set(post["responses"])
    assert client.get("/docs").status_code == 404
    assert client.get("/health").json() == {"status": "ok"}


def test_metrics_count_requests_images_and_batches(predictor, run):
    with serving(predictor) as (client, _):
        image = images_of(run)[0].read_bytes()
        for content in (image, image, b"no image"):
            client.post("/predict", content=content)
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'vitling_requests_total{status="200"} 2' in lines
    assert 'vitling_requests_total{status="422"} 1' in lines
    assert 'vitling_images_total{outcome="predicted"} 2' in lines
    assert 'vitling_images_total{outcome="bad"} 1' in lines
    assert "vitling_request_seconds_count 3" in lines
    assert 'vitling_batch_images_bucket{le="1"} 2' in lines
    assert "vitling_waiting_images 0" in lines
    assert f'vitling_info{{model="model.onnx",version="{vitling.__version__}"}} 1' in lines
    sample = re.compile(r'[a-z_]+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [0-9.e+-]+')
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)


def test_requests_that_come_while_the_model_is_busy_go_through_it_together(run):
    sizes, begun, free = [], threading.Event(), threading.Event()

    class Slow(vitling.Predictor):
        def pixel_probabilities(self, pixels):
            sizes.append(len(pixels))
            begun.set()
            free.wait(60)
            return super().pixel_probabilities(pixels)

    slow = Slow(run.path / "model.onnx")
    with serving(slow, largest_batch=4) as (client, door), ThreadPoolExecutor(8) as pool:
        image = images_of(run)[0].read_bytes()
        first = pool.submit(client.post, "/predict", content=image)
        assert begun.wait(60)
        rest = [pool.submit(client.post, "/predict", content=image) for _ in range(6)]
        while door.metrics.waiting() < 6:
            time.sleep(0.01)
        free.set()
        answers = [future.result().json() for future in (first, *rest)]
    assert sizes == [1, 4, 2]
    assert all(answer == answers[0] for answer in answers)


# What it refuses


def test_bad_uploads_are_a_status_and_one_line(client, run):
    image = images_of(run)[0].read_bytes()
    bomb = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(bomb, "PNG")
    for content, said in (
        (b"no image", "the upload: Pillow does not recognise it as an image."),
        (image[:60], "the upload: "),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript is a program"),
        (bomb.getvalue(), "pixels are more than"),
        (b"\x93NUMPY\x01\x00", "the upload: "),
    ):
        assert said in detail(client.post("/predict", content=content), 422)
    assert "holds no image" in detail(client.post("/predict", content=b""), 400)
    assert "application/json is not an image" in detail(client.post("/predict", json={"image": "x"}), 415)
    files = [("file", ("good.png", image)), ("file", ("bad.png", b"no image"))]
    assert detail(client.post("/predict", files=files), 422).startswith("bad.png: Pillow does not recognise")
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    assert "the form" in detail(client.post("/predict", content=b"--x\r\nnothing", headers=form), 400)
    assert "the form" in detail(
        client.post("/predict", content=b"x", headers={"Content-Type": "multipart/form-data"}), 400
    )
    assert "Too many fields" in detail(client.post("/predict", files={"file": image}, data={"top": "3"}), 400)
    many = [("file", (f"{i}.png", image)) for i in range(65)]
    assert "Too many files" in detail(client.post("/predict", files=many), 400)
    for top in ("0", "-1", "many", "10001"):
        assert detail(client.post(f"/predict?top={top}", content=image), 422).startswith("top: ")
    assert client.get("/predict").status_code == 405
    assert client.get("/nothing").status_code == 404
    assert client.post("/predict", content=image).status_code == 200  # it still serves


def test_an_upload_of_300_mb_is_refused_before_it_is_read(client):
    connection = http.client.HTTPConnection("127.0.0.1", client.base_url.port, timeout=60)
    connection.putrequest("POST", "/predict")
    connection.putheader("Content-Length", str(300 * MB))
    connection.endheaders()  # nothing of the body is sent, and it is answered
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read()) == {"detail": "it has 300 MB, and at most 20 MB are taken."}
    connection.close()


def test_a_client_that_sends_300_mb_all_the_same_is_cut_off_after_a_little(client):
    sent = 0
    with socket.create_connection(("127.0.0.1", client.base_url.port), timeout=60) as line:
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {300 * MB}\r\n\r\n"
        line.sendall(head.encode())
        answer = line.recv(12)
        try:
            while sent < 300 * MB:
                sent += line.send(b"x" * MB)
        except OSError:
            pass  # the other side has closed
    assert answer == b"HTTP/1.1 413"
    assert sent < 60 * MB


def test_a_body_in_chunks_that_grows_too_large_is_refused_on_the_way(predictor):
    with serving(predictor, limits=Limits(upload_mb=0.5)) as (client, _):
        said = detail(client.post("/predict", content=(b"x" * 2**16 for _ in range(12))), 413)
        assert "at most 0.5 MB are taken" in said
        assert client.post("/predict", content=b"x").status_code == 422


def test_other_names_and_pages_are_not_answered(client, run):
    image = images_of(run)[0].read_bytes()
    for name in ("evil.example", "127.0.0.1.evil.example", ""):
        detail(client.post("/predict", content=image, headers={"Host": name}), 421)
    detail(client.post("/predict", content=image, headers={"Origin": "http://evil.example"}), 403)
    own = f"http://127.0.0.1:{client.base_url.port}"
    assert client.post("/predict", content=image, headers={"Origin": own}).status_code == 200


def test_it_answers_under_the_further_names_that_it_was_given(predictor):
    with serving(predictor, hosts=["flowers.example.org"]) as (client, _):
        assert client.get("/health", headers={"Host": "flowers.example.org"}).status_code == 200


def test_with_a_token_only_those_who_send_it_are_answered(predictor, run):
    image, token = images_of(run)[0].read_bytes(), "a-long-secret"
    with serving(predictor, token=token) as (client, _):
        for path in ("/", "/metrics", "/openapi.json"):
            detail(client.get(path), 401)
        refused = client.post("/predict", content=image)
        assert detail(refused, 401) == "no token; send the header `Authorization: Bearer TOKEN`."
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        for wrong in ("Bearer other", "Basic a-long-secret", "a-long-secret", "Bearer", "Bearer a-long-secret2"):
            said = detail(client.post("/predict", content=image, headers={"Authorization": wrong}), 401)
            assert said.startswith("wrong token; ")
        good = {"Authorization": f"Bearer {token}"}
        assert client.post("/predict", content=image, headers=good).status_code == 200
        assert client.get("/metrics", headers=good).status_code == 200
        assert client.get("/health").status_code == 200  # whoever watches over it has no token
    for useless in ("", "short", "with blanks in it", "ümläute-überall"):
        with pytest.raises(UserError, match="token is 8 or more"):
            create_server(predictor, token=useless)


def test_more_requests_than_the_rate_are_told_to_wait(predictor):
    with serving(predictor, limits=Limits(rate=0.01)) as (client, _):
        assert client.get("/").status_code == 200
        refused = client.get("/")
        assert "more than 0.01 requests per second" in detail(refused, 429)
        assert 1 <= int(refused.headers["Retry-After"]) <= 100
        assert client.get("/health").status_code == 200


def test_more_images_than_may_wait_are_refused(run):
    begun, free = threading.Event(), threading.Event()

    class Slow(vitling.Predictor):
        def pixel_probabilities(self, pixels):
            begun.set()
            free.wait(60)
            return super().pixel_probabilities(pixels)

    image = images_of(run)[0].read_bytes()
    slow = Slow(run.path / "model.onnx")
    with serving(slow, limits=Limits(waiting=2), largest_batch=1) as (client, door), ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(client.post, "/predict", content=image)]
        assert begun.wait(60)
        waiting += [pool.submit(client.post, "/predict", content=image) for _ in range(2)]
        while door.metrics.waiting() < 2:
            time.sleep(0.01)
        refused = client.post("/predict", content=image)
        assert "2 images wait already" in detail(refused, 503)
        assert refused.headers["Retry-After"] == "1"
        free.set()
        assert [future.result().status_code for future in waiting] == [200, 200, 200]


def test_a_model_that_fails_is_a_500_for_those_who_asked_and_the_next_is_answered(run):
    class Failing(vitling.Predictor):
        failures = 1

        def pixel_probabilities(self, pixels):
            if self.failures:
                self.failures -= 1
                raise MemoryError
            return super().pixel_probabilities(pixels)

    image = images_of(run)[0].read_bytes()
    with serving(Failing(run.path / "model.onnx")) as (client, _):
        assert "cannot predict now: MemoryError" in detail(client.post("/predict", content=image), 500)
        assert client.post("/predict", content=image).status_code == 200


@pytest.mark.parametrize("wrong", [dict(upload_mb=0), dict(images=0), dict(rate=-1.0), dict(rate=float("nan"))])
def test_limits_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UserError):
        Limits(**wrong)


# The command


def start(*arguments, **environment):
    command = [sys.executable, "-m", "vitling", "serve", *map(str, arguments), "--port", "0"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, env={**os.environ, **environment}, **pipes)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("serving "):
            return process, re.search(r"at (http://\S+)", line)[1], lines
    raise AssertionError("".join(lines) + process.stderr.read())


@pytest.mark.slow
def test_the_command_answers_and_ends_what_it_began_when_it_is_told_to_stop(run, predictor):
    process, address, _ = start(run.path / "model.onnx", VITLING_TOKEN="a-long-secret")
    try:
        image = images_of(run)[0].read_bytes()
        assert httpx.post(f"{address}/predict", content=image).status_code == 401
        port = httpx.URL(address).port
        slow = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        slow.putrequest("POST", "/predict")
        slow.putheader("Content-Length", str(len(image)))
        slow.putheader("Authorization", "Bearer a-long-secret")
        slow.endheaders(image[:50])  # half of it
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        with pytest.raises(httpx.ConnectError):  # nobody new is let in,
            httpx.get(f"{address}/health")
        slow.send(image[50:])
        answer = json.loads(slow.getresponse().read())  # who is inside is answered
        assert answer["predictions"][0]["classes"] == predictor(image).classes
        assert process.wait(60) == 143
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_wrong_commands_are_one_line(run, tmp_path):
    (tmp_path / "text.onnx").write_text("no model")
    with take_address("127.0.0.1", 0) as taken:
        taken.listen()
        for arguments, said in (
            ([tmp_path / "nothing"], "no model at"),
            ([tmp_path / "text.onnx"], "is not an ONNX file"),
            ([run.path / "model.onnx", "--token", "short"], "token is 8 or more"),
            ([run.path / "model.onnx", "--host", "256.0.0.1"], "is not an address of this computer"),
            ([run.path / "model.onnx", "--port", str(taken.getsockname()[1])], "cannot listen at 127.0.0.1"),
            ([run.path / "model.onnx", "--rate", "nan"], "invalid value nan for '--rate'"),
        ):
            command = [sys.executable, "-m", "vitling", "serve", *map(str, arguments)]
            command += [] if "--port" in arguments else ["--port", "0"]
            result = subprocess.run(command, capture_output=True, text=True)
            assert result.returncode == 2
            (line,) = result.stderr.splitlines()
            assert line.startswith("error: ")
            assert said in line
