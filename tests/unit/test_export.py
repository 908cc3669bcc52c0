"""Exports: what the files hold, that they are the run's model, and what is refused."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image
from recorder import Recorder

import vitling
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.sources.dataset import open_dataset
from vitling.deploy.export import export
from vitling.deploy.prediction import predict
from vitling.diagnose.paged import evaluate
from vitling.errors import UserError
from vitling.evaluation.evaluation import keep_evaluation
from vitling.evaluation.metrics import measure
from vitling.recipes import Recipe
from vitling.runs.metadata import ModelMetadata
from vitling.runs.run import Run

onnx = pytest.importorskip("onnx", reason='needs pip install "vitling[export]"')
onnxruntime = pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')

TINY = dict(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2)


def make_run(root, *, status="finished"):
    """Noise of two classes, and a run on it as training leaves it, with weights that were never trained."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 30), ("test", 5)):
        for name in ("cat|dog", "ünïcode"):
            folder = root / "secret" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    dataset = open_dataset(root / "secret")
    run = Run(root / "run")
    run.path.mkdir()
    run.save_recipe(
        Recipe(data=str(root / "secret"), model="vit_tiny_patch16_224", model_args=TINY, val_fraction=0.2, epochs=9)
    )
    run.update(
        status=status,
        class_names=dataset.class_names,
        preprocessing=Preprocessing((8, 8), 3, "resize", 255, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)),
        data=dict(name=dataset.name, fingerprint=dataset.fingerprint, train_images=48, val_images=12),
    )
    run.append("metrics.jsonl", {"epoch": 1, "val_top1": 0.75, "val_loss": 0.6})
    run.append("metrics.jsonl", {"epoch": 2, "val_top1": 0.5, "val_loss": 0.7})
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, **TINY)
    torch.nn.init.normal_(model.head.weight)
    run.save_model("best", model, dataset.class_names, TINY)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    return export(run, "onnx", tmp_path_factory.mktemp("onnx") / "model.onnx")


@pytest.fixture(autouse=True)
def no_token(monkeypatch, tmp_path):
    """Nobody is logged in to the hub."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))


def message(function, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def images(run):
    return sorted((run.path.parent / "secret" / "test").rglob("*.png"))


# ONNX


def test_the_onnx_file_takes_pixels_of_any_batch_and_gives_calibrated_probabilities(run, exported):
    session = onnxruntime.InferenceSession(exported.path)
    (image,) = session.get_inputs()
    assert (image.name, image.type, image.shape) == ("image", "tensor(uint8)", ["batch", 3, 8, 8])
    files = images(run)
    pixels = np.stack([np.asarray(Image.open(file)).transpose(2, 0, 1) for file in files])
    model = run.load_model()
    with torch.no_grad():
        expected = model(run.preprocessing().normalize(torch.from_numpy(pixels)))
    temperature = exported.metadata.temperature
    for part in (slice(0, 1), slice(0, 7)):
        logits, probabilities = session.run(None, {"image": pixels[part]})
        np.testing.assert_allclose(logits, expected[part], atol=1e-5)
        np.testing.assert_allclose(probabilities, (expected[part] / temperature).softmax(1), atol=1e-5)
    assert exported.difference <= exported.allowed == pytest.approx(1e-4 * max(1, exported.allowed * 1e4))
    assert exported.checked_on == "12 validation images"
    assert exported.notes == []


def test_the_onnx_file_says_who_it_is_and_nothing_of_the_machine_it_was_made_on(run, exported):
    content = onnx.load(exported.path)
    onnx.checker.check_model(content, full_check=True)
    metadata = {entry.key: entry.value for entry in content.metadata_props}
    assert json.loads(metadata["class_names"]) == ["cat|dog", "ünïcode"]
    assert json.loads(metadata["preprocessing"])["mean"] == [0.5, 0.4, 0.3]
    assert float(metadata["temperature"]) == exported.metadata.temperature
    assert metadata["vitling"] == vitling.__version__
    assert str(run.path.parent).encode() not in exported.path.read_bytes()
    assert b".py" not in exported.path.read_bytes()


def test_predictions_from_the_file_are_those_of_the_run(run, exported):
    for calibrated in (True, False):
        for ours, theirs in zip(
            predict(run, images(run), calibrated=calibrated),
            predict(exported.path, images(run), calibrated=calibrated),
            strict=True,
        ):
            assert ours.classes == theirs.classes
            assert ours.probabilities == pytest.approx(theirs.probabilities, abs=1e-5)
    assert "which shows only its outputs" in message(predict, exported.path, images(run), attention="pictures")
    assert "which=last is for runs" in message(predict, exported.path, images(run), which="last")


def test_a_model_whose_copy_gives_other_numbers_is_not_written(tmp_path):
    run = make_run(tmp_path)
    model = run.load_model()
    with torch.no_grad():
        model.head.weight[0] = 3e38  # logits beyond what float32 holds
    run.save_model("best", model, run.class_names, TINY)
    assert message(export, run, "timm").startswith("nothing was written: the exported model's logits differ")
    assert sorted(p.name for p in run.path.iterdir() if "timm" in p.name) == []


# Folders


def test_a_folder_for_timm_loads_there_and_predicts_as_the_run(run, tmp_path):
    exported = export(run, "timm", tmp_path / "model")
    assert sorted(p.name for p in exported.path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    loaded = timm.create_model(f"local-dir:{exported.path}", pretrained=True).eval()
    pixels = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(loaded(pixels), run.load_model()(pixels))
    assert loaded.pretrained_cfg["mean"] == run.load_model().pretrained_cfg["mean"]
    assert predict(exported.path, images(run)) == predict(run, images(run))
    assert predict(exported.path, images(run)[0], attention=tmp_path / "looked")[0].attention


def test_the_card_says_what_the_run_knows_and_never_looks_at_the_test_split(tmp_path):
    run = make_run(tmp_path)
    card = (export(run, "timm").path / "README.md").read_text()
    assert "| validation | 12 | 75.00 % | 46.8 to 91.1 |" in card  # of the best epoch, with Wilson's interval
    assert "no test number is known" in card
    assert "a temperature of" in card
    assert "test_looks" not in run.info
    assert str(tmp_path) not in card
    assert "data: secret\n" in card
    result = evaluate(run)
    folder = export(run, "hf").path
    header, _, card = (folder / "README.md").read_text().removeprefix("---\n").partition("---\n")
    metrics = yaml.safe_load(header)["model-index"][0]["results"][0]["metrics"]
    assert metrics[0] == {"type": "accuracy", "name": "top-1", "value": result.top1}
    low, high = result.top1_interval
    assert f"| test | 10 | {100 * result.top1:.2f} % | {100 * low:.1f} to {100 * high:.1f} |" in card
    assert "| cat\\|dog | 5 |" in card
    assert f"- balanced accuracy: {100 * result.balanced_accuracy:.1f} %" in card
    assert "- Cohen's kappa: " in card
    assert "looked at once" in card


def test_the_card_has_the_number_of_the_epoch_whose_weights_these_are(tmp_path):
    run = make_run(tmp_path)
    chosen = min(run.metrics(), key=lambda record: record["val_top1"])  # as keep=last_good may
    run.update(best={**{key: chosen[key] for key in ("val_top1", "val_loss")}, "epoch": chosen["epoch"]})
    assert chosen["val_top1"] < 0.75
    card = (export(run, "timm").path / "README.md").read_text()
    assert f"| validation | 12 | {100 * chosen['val_top1']:.2f} % |" in card


def keep_out_of_fold(run, groups=None):
    """What joining leaves in the run of an ensemble; the logits are of nothing."""
    logits, labels = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    held_out = measure(logits, labels, run.class_names, data="secret", split="val", groups=groups)
    run.update(members=3, data={**run.info["data"], "train_images": 60, "val_images": 60})
    (run.path / "metrics.jsonl").unlink(missing_ok=True)
    keep_evaluation(run, held_out)
    return held_out


@pytest.mark.parametrize("groups", [None, np.arange(60) // 5])
@pytest.mark.parametrize("to", ["timm", "hf"])
def test_the_card_of_an_ensemble_has_its_out_of_fold_number(tmp_path, to, groups):
    run = make_run(tmp_path)
    held_out = keep_out_of_fold(run, groups)
    card = (export(run, to).path / "README.md").read_text()
    low, high = held_out.top1_interval
    over = "" if groups is None else ", over 12 groups"
    assert f"| out of fold | 60 | {100 * held_out.top1:.2f} % | {100 * low:.1f} to {100 * high:.1f}{over} |" in card
    assert "each image by the one network that did not learn from it" in card
    assert "no test number is known" in card
    assert "The weights were chosen by the validation number" not in card


def test_the_card_says_why_a_validation_number_is_too_good_and_names_no_file_or_patient(tmp_path):
    run = make_run(tmp_path)
    data, teacher = run.info["data"], tmp_path / "ensemble"
    notes = [
        "1,204 images are in both train and val, the first: ward/anna.png",
        "3 groups are in both train and val of the data itself (9 images of val), the first: anna; numbers of val are too good",
        f"the val split is {tmp_path}/val.csv",
    ]
    run.update(data={**data, "notes": notes, "val_known": f"method_args.teacher={teacher}"})
    card = (export(run, "timm", tmp_path / "a").path / "README.md").read_text()
    assert "Of the validation number: 1,204 images are in both train and val, so that number is too good." in card
    assert "Of the validation number: 3 groups are in both train and val, so that number is too good." in card
    assert r"method\_args.teacher=ensemble has learnt from the validation images" in card
    assert "anna" not in card
    assert str(tmp_path) not in card
    run.update(data=data)
    assert "Of the validation number" not in (export(run, "timm", tmp_path / "b").path / "README.md").read_text()


def test_names_in_the_card_are_text_whatever_they_are_made_of(tmp_path):
    run = make_run(tmp_path)
    names = [
        "<img src=x onerror=alert(1)>",
        "[free](javascript:alert(1)) *now* `rm` a|b\n# head :ok: $x$ forget-me-not",
    ]
    run.update(class_names=names, data={**run.info["data"], "name": "<b>data</b>"})
    config = json.loads((run.path / "best" / "config.json").read_text())
    config["label_names"] = config["vitling"]["class_names"] = names
    config["vitling"]["data"] = "<b>data</b>"
    (run.path / "best" / "config.json").write_text(json.dumps(config))
    card = (export(run, "timm", tmp_path / "a ``` ' b").path / "README.md").read_text()
    assert "&lt;img src=x onerror=alert(1)&gt;" in card
    assert r"\[free\](javascript\:alert(1)) \*now\* \`rm\` a\|b \# head \:ok\: \$x\$ forget-me-not" in card
    assert " on &lt;b&gt;data&lt;/b&gt;\n" in card
    assert "<img" not in card
    assert "<b>" not in card
    assert "````\nvitling predict 'a ``` '\"'\"' b' IMAGE...\n````" in card  # as a shell and Markdown read it


@pytest.mark.parametrize("to", ["timm", "hf"])
def test_the_card_begins_with_what_to_install_and_to_import(run, to, tmp_path):
    card = (export(run, to, tmp_path / "model").path / "README.md").read_text()
    title, _, body = card[card.index("# vit_tiny") :].partition("\n\n")
    assert title == "# vit_tiny_patch16_224 on secret"
    lines = [line for line in body.splitlines() if line and not line.startswith("```")]
    assert lines[:2] == ["pip install vitling", "import vitling"]
    assert lines[4] == 'model = timm.create_model("local-dir:model", pretrained=True).eval()'


def test_the_number_of_classes_stands_once_where_networks_are_built_from(tmp_path):
    """transformers builds a network with `num_classes` and with `model_args`; runs of 0.1 have it in both."""
    run = make_run(tmp_path)
    file = run.path / "best" / "config.json"
    old = json.loads(file.read_text())
    assert "num_classes" not in old["model_args"]
    old["model_args"]["num_classes"] = 2
    file.write_text(json.dumps(old))
    config = json.loads((export(run, "timm").path / "config.json").read_text())
    assert config["num_classes"] == len(config["label_names"]) == 2
    assert "num_classes" not in config["model_args"]


def test_an_unfinished_run_is_exported_with_a_note_once_it_has_weights(tmp_path):
    run = make_run(tmp_path, status="interrupted")
    exported = export(run, "timm")
    assert exported.notes == [
        "the training is not finished: its status is interrupted, the last validation was after epoch 2 of 9"
    ]
    assert "**The training was not finished**" in (exported.path / "README.md").read_text()
    assert "has no last weights yet" in message(export, run, "onnx", which="last")


def test_a_run_whose_data_is_gone_is_compared_on_noise_and_says_so(tmp_path):
    run = make_run(tmp_path)
    (tmp_path / "secret").rename(tmp_path / "elsewhere")
    exported = export(run, "timm")
    assert exported.checked_on == "64 images of noise"
    assert [note.partition(",")[0] for note in exported.notes] == [
        "compared on noise instead of images",
        "exported without a temperature",
    ]
    recorder = Recorder()
    predict(exported.path, sorted((tmp_path / "elsewhere" / "test").rglob("*.png")), callback=recorder)
    assert recorder.messages == ["timm was exported without a temperature: its probabilities are not calibrated"]


# What is refused


@pytest.mark.parametrize("to", ["onnx", "onnx-int8", "hf"])
def test_a_run_without_labels_is_refused_before_anything_is_fitted(tmp_path, to):
    run = make_run(tmp_path)
    config = {**TINY, "num_classes": 0}
    run.update(unlabelled=True, class_names=[])
    run.save_model("best", timm.create_model("vit_tiny_patch16_224", **config), None, TINY)
    before = sorted(path.name for path in run.path.iterdir())
    assert "was trained without labels" in message(export, run, to)
    assert sorted(path.name for path in run.path.iterdir()) == before


def test_wrong_wishes_are_refused_before_any_work(run, tmp_path):
    assert message(export, run, "onx") == "cannot export to 'onx'. Did you mean onnx?"
    assert "must end in .onnx" in message(export, run, "onnx", tmp_path / "model")
    assert "raw_input is about ONNX" in message(export, run, "timm", raw_input=True)
    assert "export to hf, not onnx" in message(export, run, "onnx", push="alice/flowers")
    assert "unknown weights" in message(export, run, "onnx", which="bets")
    assert "no run at" in message(export, tmp_path / "nothing", "onnx")


def test_nothing_that_exists_is_overwritten(run, tmp_path):
    (tmp_path / "model.onnx").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    assert "exists already and is not overwritten" in message(export, run, "onnx", tmp_path / "model.onnx")
    assert "exists already and is not overwritten" in message(export, run, "hf", tmp_path / "folder")
    assert (tmp_path / "model.onnx").read_text() == "mine"
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == ["mine"]


def test_files_that_are_no_export_are_refused_with_what_they_lack(run, exported, tmp_path):
    image = images(run)[0]
    (tmp_path / "text.onnx").write_text("no model")
    assert "is not an ONNX file that onnxruntime can open" in message(predict, tmp_path / "text.onnx", image)
    (tmp_path / "corrupted.onnx").write_bytes(exported.path.read_bytes()[:5000])
    assert "is not an ONNX file that onnxruntime can open" in message(predict, tmp_path / "corrupted.onnx", image)
    foreign = onnx.load(exported.path)
    kept = [entry for entry in foreign.metadata_props if entry.key != "class_names"]
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    said = message(predict, tmp_path / "foreign.onnx", image)
    assert "was not exported by vitling: its metadata lacks architecture, class_names, preprocessing" in said
    foreign.metadata_props.extend(kept)
    onnx.save(foreign, tmp_path / "nameless.onnx")
    assert "its metadata lacks class_names;" in message(predict, tmp_path / "nameless.onnx", image)
    foreign.metadata_props.add(key="class_names", value='["a", "b", "c"]')
    onnx.save(foreign, tmp_path / "other.onnx")
    assert "does not match its metadata" in message(predict, tmp_path / "other.onnx", image)


def test_a_folder_that_was_tampered_with_is_refused(run, tmp_path):
    folder = export(run, "timm", tmp_path / "model").path
    whole = (folder / "config.json").read_text()
    config = json.loads(whole)
    config["vitling"]["class_names"].append("third")
    (folder / "config.json").write_text(json.dumps(config))
    assert "it states the class names twice, and not alike" in message(predict, folder, images(run))
    (folder / "config.json").write_text(whole)
    (folder / "model.safetensors").write_bytes(b"corrupted")
    assert "cannot be loaded" in message(predict, folder, images(run))
    (folder / "config.json").write_text("{")
    assert "is not valid JSON" in message(predict, folder, images(run))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": "hot"},
        {"class_names": []},
        {"class_names": "ab"},
        {"input": "tensor"},
        {"preprocessing": {"size": [8, 8]}},
        {
            "preprocessing": {
                "size": [8, 8],
                "channels": 3,
                "fit": "resize",
                "max_value": 255,
                "mean": [0.5],
                "std": [0.0],
            }
        },
    ],
)
def test_metadata_that_makes_no_sense_is_refused(exported, wrong):
    entries = json.loads(json.dumps(exported.metadata.to_dict()))
    assert ModelMetadata.from_dict(entries, "it") == exported.metadata
    assert "the metadata of it (input, classes) is invalid" in message(
        ModelMetadata.from_dict, {**entries, **wrong}, "it"
    )


def test_without_onnxruntime_the_extra_to_install_is_named(run, exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if it were not installed
    said = 'ONNX needs the package onnxruntime: pip install "vitling[export]".'
    assert message(predict, exported.path, images(run)) == said
    assert message(export, run, "onnx") == said


# The hub


def test_a_push_without_a_token_or_with_a_bad_name_is_refused_before_anything_is_written(run, tmp_path):
    said = message(export, run, "hf", tmp_path / "hf", push="alice/flowers")
    assert "push=alice/flowers needs a token of the Hugging Face hub; run `hf auth login`" in said
    for name in ("flowers", "alice/flo wers", "alice/flowers/best", "/flowers"):
        assert "is not a hub name" in message(export, run, "hf", tmp_path / "hf", push=name)
    assert not (tmp_path / "hf").exists()


class Hub(BaseHTTPRequestHandler):
    """The answers of the hub that a push needs; remembers what was asked."""

    asked: ClassVar[list] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        Hub.asked.append((self.path, self.headers["Authorization"], body))
        address = f"http://127.0.0.1:{self.server.server_port}/alice/flowers"
        if self.path.endswith("/repos/create"):
            answer = {"url": address}
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            answer = {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
        else:
            answer = {"commitUrl": f"{address}/commit/1", "commitOid": "1", "success": True}
        self.answer(answer)

    def do_GET(self):  # older clients ask first how files are stored
        self.answer({"id": "alice/flowers", "xetEnabled": False})

    def answer(self, answer):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args):
        """Quiet."""


@pytest.fixture
def hub(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield server
    server.shutdown()
    server.server_close()


def test_a_push_asks_for_a_private_repository_and_commits_the_folder(run, tmp_path, hub):
    exported = export(run, "hf", tmp_path / "hf", push="alice/flowers")
    assert exported.url.endswith("alice/flowers")
    (create, token, request), *_, (commit, _, files) = Hub.asked
    assert create == "/api/repos/create"
    assert token == "Bearer hf_test"
    request = json.loads(request)
    assert {"name": "flowers", "organization": "alice"}.items() <= request.items()
    assert request.get("visibility") == "private" or request.get("private") is True  # clients differ in the word
    assert commit == "/api/models/alice/flowers/commit/main"
    assert all(f'"path": "{p.name}"' in files.replace('":"', '": "') for p in (tmp_path / "hf").iterdir())
    assert 'timm.create_model("hf-hub:alice/flowers"' in (tmp_path / "hf" / "README.md").read_text()


def test_a_hub_that_cannot_be_reached_leaves_the_folder_and_says_so(run, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    said = message(export, run, "hf", tmp_path / "hf", push="alice/flowers")
    assert said.startswith(f"{tmp_path / 'hf'} is written, but could not be pushed to alice/flowers: ")
    assert (tmp_path / "hf" / "model.safetensors").exists()
