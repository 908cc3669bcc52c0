"""`vitling app`: what the page answers, whom it does not answer, and the page itself in a real browser."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from browser import CHROMIUM, open_browser
from page_checks import FAINT, WIDER, WIDTHS
from PIL import Image
from recorder import Recorder

import vitling
from vitling.data.sources.images import fit_image
from vitling.deploy.app import bind, open_viewer
from vitling.errors import UserError
from vitling.recipes import Augment, Optim, Recipe, replace

httpx = pytest.importorskip("httpx", reason='gradio is not installed: pip install "vitling[app]"')
pytest.importorskip("gradio", reason='gradio is not installed: pip install "vitling[app]"')

RECIPE = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=2, num_heads=2),
    fraction=0.2,
    epochs=2,
    batch_size=32,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(lr=3e-3, warmup_epochs=0),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return vitling.train(RECIPE, tmp_path_factory.mktemp("app") / "a_run")


@pytest.fixture(scope="module")
def viewer(run):
    return open_viewer(run)


@pytest.fixture(scope="module")
def picture(viewer, tmp_path_factory):
    """The eighth training image, as a file."""
    images = viewer.neighbours.images
    path = tmp_path_factory.mktemp("picture") / "digit.png"
    Image.fromarray(images.read(7)[..., 0]).save(path)
    return path


@pytest.mark.slow
def test_the_nearest_image_of_a_training_image_is_itself(viewer, picture):
    answer = viewer.answer(picture)
    assert len(answer.neighbours) == 8
    images = viewer.neighbours.images
    assert answer.neighbours[0][1] == f"{images.labels[7]} · 1.00 · {images.names[7]}"
    expected = fit_image(images.read(7), (8, 8), "resize", 1)[0]
    shown = np.asarray(answer.neighbours[0][0])
    np.testing.assert_array_equal(shown[10::20, 10::20], expected)


@pytest.mark.slow
def test_the_page_and_the_command_line_say_the_same(run, viewer, picture):
    (said,) = vitling.predict(run, picture, top=5)
    shown = viewer.answer(picture).probabilities
    assert list(shown) == said.classes
    assert list(shown.values()) == pytest.approx(said.probabilities, abs=1e-5)


@pytest.mark.slow
def test_features_of_the_training_images_are_computed_once(run, viewer):
    kept = run.path / "neighbours-best.safetensors"
    stamp = kept.stat().st_mtime_ns
    recorder = Recorder()
    again = open_viewer(run, callback=recorder)
    assert kept.stat().st_mtime_ns == stamp
    assert not recorder.progress
    assert again.neighbours.features.equal(viewer.neighbours.features)
    kept.write_bytes(kept.read_bytes()[:100])
    assert open_viewer(run).neighbours.features.equal(viewer.neighbours.features)


@pytest.mark.slow
def test_an_ensemble_answers_like_a_run(picture, tmp_path):
    ensemble = vitling.train_folds(RECIPE, tmp_path / "folds", 2)
    (said,) = vitling.predict(ensemble, picture, top=5)
    shown = open_viewer(ensemble).answer(picture).probabilities
    assert list(shown) == said.classes
    assert list(shown.values()) == pytest.approx(said.probabilities, abs=1e-5)


@pytest.mark.slow
def test_a_cnn_has_no_attention_and_the_page_says_so(picture, tmp_path):
    recipe = replace(RECIPE, model="diag_resnet18_nano", model_args={}, epochs=1)
    viewer = open_viewer(vitling.train(recipe, tmp_path / "cnn"))
    assert any("the model has no attention" in note for note in viewer.notes)
    assert viewer.answer(picture).picture.size == (160, 160)


@pytest.mark.slow
def test_without_its_training_data_a_run_still_predicts(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    np.savez(tmp_path / "data.npz", train_images=data, train_labels=np.arange(40) % 2)
    recipe = replace(RECIPE, data=str(tmp_path / "data.npz"), fraction=1.0, epochs=1, batch_size=8)
    run = vitling.train(recipe, tmp_path / "run")
    (tmp_path / "data.npz").unlink()
    viewer = open_viewer(run)
    assert any(note.startswith("no training images are shown: no such path") for note in viewer.notes)
    Image.fromarray(data[0]).save(tmp_path / "x.png")
    assert viewer.answer(tmp_path / "x.png").neighbours == []


@contextlib.contextmanager
def serving(run, *flags, env=None):
    """The address of a page that runs, and a list that holds its log afterwards."""
    command = [sys.executable, "-m", "vitling", "app", str(run.path), "--port", "0", *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    log = []
    try:
        found = re.search(r"http://[\d.]+:\d+", server.stdout.readline())
        yield found and found[0], log
    finally:
        server.send_signal(signal.SIGINT)
        log.append(server.communicate(timeout=60)[1])


def upload(client, name, content):
    return client.post("/gradio_api/upload", files={"files": (name, content)})


def ask(client, file, session, **more):
    """What the page answers: the data of gradio's last event, or the error in it."""
    question = {"data": [file], "fn_index": 0, "session_hash": session, "event_data": None, "trigger_id": None, **more}
    joined = client.post("/gradio_api/queue/join", json=question)
    if joined.status_code != 200:
        return joined.status_code
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as events:
        for line in events.iter_lines():
            if '"process_completed"' in line:
                output = json.loads(line.removeprefix("data: "))["output"]
                return output.get("error") or output["data"]
    return None


def encoded(image, kind, **how):
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


@pytest.mark.slow
def test_only_what_was_uploaded_is_read_and_bad_uploads_leave_one_line_each(run, picture, tmp_path):
    meta = {"_type": "gradio.FileData"}
    page_of_pages = [Image.new("L", (2000, 2000))] * 30
    bad = {
        "text.png": (b"no image", "Pillow does not recognise it"),
        "empty.png": (b"", "the file is empty"),
        "cut.png": (encoded(Image.effect_noise((200, 200), 9), "png")[:5000], "truncated"),
        "bomb.png": (encoded(Image.new("1", (20_000, 20_000)), "png"), "pixels"),
        "stack.tif": (
            encoded(
                page_of_pages[0], "tiff", save_all=True, append_images=page_of_pages[1:], compression="tiff_deflate"
            ),
            "2000 x 2000 x 30 pixels are more than",
        ),
        "page.html": (b"<script>alert(1)</script>", "Pillow does not recognise it"),
        "program.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", "PostScript"),
        "pickle.npy": (b"\x80\x04cos\nsystem\n", "holds Python objects"),
        "noname": (b"\0" * 100, "Pillow does not recognise it"),
    }
    with serving(run) as (address, log), httpx.Client(base_url=address, timeout=120) as client:
        (mine,) = upload(client, "mine.png", picture.read_bytes()).json()
        assert ask(client, {"path": mine, "meta": meta}, "good")[0]["confidences"]
        folder = os.path.dirname(mine)
        os.symlink(picture, f"{folder}/link.png")
        places = [str(picture), f"{folder}/link.png", f"{folder}/../../..{picture}", f"file://{picture}", "/etc/passwd"]
        places += [f"{address}/gradio_api/file={mine}", "http://192.0.2.1/x.png", "https://192.0.2.1/x.png"]
        for place in places:
            for file in ({"path": place, "meta": meta}, {"path": place, "is_stream": True, "meta": meta}):
                assert ask(client, file, "bad") == 403, place
            for route in ("run/look", "api/look", "call/look", "run/0", "component_server"):
                question = {"data": [{"path": place, "meta": meta}], "fn_index": 0, "session_hash": "bad"}
                assert client.post(f"/gradio_api/{route}", json=question).status_code == 404
            for route in ("/gradio_api/file=", "/file=", "/gradio_api/file/", "/gradio_api/proxy="):
                assert client.get(f"{route}{place}").status_code == 404, route
        assert client.get(f"/gradio_api/file={mine}").content == picture.read_bytes()

        for number, (name, (content, reason)) in enumerate(bad.items()):
            (path,) = upload(client, name, content).json()
            said = ask(client, {"path": path, "meta": meta}, f"bad{number}")
            assert f"cannot read image {name}: " in said
            assert reason in said
            assert folder not in said
        assert upload(client, "big.png", bytes(101 * 2**20)).text == "it has 101 MB, and at most 100 MB are taken."
        assert client.get("/config").json()["max_file_size"] == 100 * 2**20

        for name in ("evil.example", f"127.0.0.1.evil.example:{httpx.URL(address).port}", "10.0.0.1"):
            assert client.get("/", headers={"Host": name}).status_code == 421
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
            assert client.get("/config", headers={"Origin": origin}).status_code == 403
        assert client.get("/config", headers={"Origin": address}).status_code == 200
        assert ask(client, {"path": mine, "meta": meta}, "still")[0]["confidences"]
    assert "Traceback" not in log[0]


def test_a_port_in_use_is_one_line():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=f"cannot listen at 127.0.0.1, port {port}: Address already in use"
        ) as caught:
            bind("127.0.0.1", port)
    assert "Choose another port" in str(caught.value)


def test_an_address_of_another_computer_is_one_line():
    with pytest.raises(UserError, match=r"cannot listen at 192\.0\.2\.1"):
        bind("192.0.2.1", 0)
    with pytest.raises(UserError, match="is not an address of this computer"):
        bind("no such host", 0)


def test_without_gradio_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(UserError, match=re.escape('pip install "vitling[app]"')):
        bind("127.0.0.1", 0)


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
def test_an_image_dropped_on_the_page_is_answered_and_nothing_leaves_the_machine(run, viewer, picture, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with serving(run, env=environment) as (address, log), open_browser(tmp_path / "profile") as tab:
        tab.open(address)
        tab.wait_for("document.querySelector('input[type=file]') !== null")

        tab.choose_file("input[type=file]", picture)
        said = tab.wait_for("document.querySelector('#classes')?.innerText.match(/[0-9]+%/g)")
        tab.wait_for("document.querySelectorAll('#neighbours img').length == 8")
        tab.wait_for("document.querySelector('#picture img')?.naturalWidth > 0")
        text = tab.evaluate("document.body.innerText")
        answer = viewer.answer(picture)
        assert said == [f"{share:.0%}" for share in answer.probabilities.values()]
        assert all(caption in text for _, caption in answer.neighbours)
        assert "Images go to the computer that runs vitling, and nowhere else" in text
        for width in WIDTHS:
            tab.resize(width)
            assert tab.evaluate(WIDER) <= 0, width
        undescribed = "[...document.images].filter((image) => image.checkVisibility() && !image.alt.trim()).map((image) => image.outerHTML.slice(0, 120))"
        assert json.loads(tab.evaluate(f"JSON.stringify({undescribed})")) == []
        assert json.loads(tab.evaluate(FAINT)) == []
        assert [
            line for line in tab.complaints if "Method not implemented." not in line
        ] == []  # which gradio's own code says

        broken = tmp_path / "broken.png"
        broken.write_text("no image")
        tab.evaluate("document.querySelector('button[aria-label=\"Clear\"]').click()")
        tab.wait_for("document.querySelector('input[type=file]') !== null")
        tab.choose_file("input[type=file]", broken)
        tab.wait_for("document.body.innerText.includes('broken.png: Pillow does not recognise it as an image')")
        assert all(request.startswith((address, "data:", "blob:")) for request in tab.requests), tab.requests
    assert "Traceback" not in log[0]
    assert not list(scratch.iterdir())  # what was dropped is gone
