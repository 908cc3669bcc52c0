"""`open_model`: every kind of source gives the same model, and what is none is refused in one line."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from recorder import Recorder
from torch import nn

import vitling
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.deploy.export import export
from vitling.errors import UserError
from vitling.models.weights import load_weights, save_weights
from vitling.recipes import Recipe
from vitling.runs.device import default_device
from vitling.runs.opening import find_weights, open_model, published_classes, timm_preprocessing
from vitling.runs.run import Run

TINY = dict(img_size=(8, 12), patch_size=4, embed_dim=16, depth=1, num_heads=2)
SEEN = Preprocessing((8, 12), 3, "pad", 1023, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
NAMES = ["ant", "bee"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run as training leaves it, whose data is gone, with weights that were never trained."""
    run = Run(tmp_path_factory.mktemp("opening") / "run")
    run.path.mkdir()
    run.save_recipe(Recipe(data="gone", model="vit_tiny_patch16_224", model_args=TINY))
    run.update(class_names=NAMES, preprocessing=SEEN, data=dict(name="gone", fingerprint=""))
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, **TINY)
    nn.init.normal_(model.head.weight)
    model.pretrained_cfg |= {"input_size": (3, 8, 12), "mean": SEEN.mean, "std": SEEN.std, "crop_mode": "border"}
    run.save_model("best", model, NAMES, TINY)
    return run


@pytest.fixture(scope="module")
def pixels():
    return torch.randint(0, 256, (3, 3, 8, 12), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


@pytest.fixture(scope="module")
def expected(run, pixels):
    with torch.inference_mode():
        return run.load_model()(SEEN.normalize(pixels))


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    return export(run, "timm", tmp_path_factory.mktemp("exported") / "flowers").path


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub on this machine: name of a repository -> the folder that it holds. Nothing else can be reached."""
    folders: dict[str, Path] = {}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self, body: bool = True):
            *repository, _, _, name = self.path.strip("/").split("/")  # OWNER/NAME/resolve/main/FILE
            folder = folders.get("/".join(repository))
            found = folder is not None and (folder / name).exists()
            content = (folder / name).read_bytes() if found else b""
            self.send_response(200 if found else 404)
            headers = {"ETag": f'"{name}"', "X-Repo-Commit": "1" * 40, "Content-Length": str(len(content))}
            if not found:
                headers["X-Error-Code"] = "RepoNotFound" if folder is None else "EntryNotFound"
            for header, value in headers.items():
                self.send_header(header, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def do_HEAD(self):
            self.do_GET(body=False)

        def log_message(self, *args):
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    constants = huggingface_hub.constants
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
    places = {"HUGGINGFACE_CO_URL_TEMPLATE": template, "ENDPOINT": address, "HF_HUB_CACHE": str(tmp_path / "cache")}
    for name, value in places.items():
        monkeypatch.setattr(constants, name, value)
        if hasattr(huggingface_hub.file_download, name):  # old clients have copied it
            monkeypatch.setattr(huggingface_hub.file_download, name, value)
    yield folders
    server.shutdown()
    server.server_close()


def message(function, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What opens


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("a run", "run"),
        ("the path of a run", "run"),
        ("a run's own best/", "best"),
        ("local-dir:", "best"),
        ("an exported folder", "flowers"),
        ("a weights file beside its config.json", "model.safetensors"),
        pytest.param("an ONNX file", "model.onnx", marks=pytest.mark.slow),
        ("the hub", "hf-hub:alice/flowers"),
        ("a module", "VisionTransformer"),
    ],
)
def test_every_kind_of_source_gives_the_same_model(kind, name, run, exported, hub, pixels, expected, tmp_path):
    hub["alice/flowers"] = exported
    if kind == "an ONNX file":
        pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')
    source = {
        "a run": lambda: run,
        "the path of a run": lambda: str(run.path),
        "a run's own best/": lambda: shutil.copytree(run.path / "best", tmp_path / "best"),  # without the run
        "local-dir:": lambda: f"local-dir:{run.path / 'best'}",
        "an exported folder": lambda: exported,
        "a weights file beside its config.json": lambda: exported / "model.safetensors",
        "an ONNX file": lambda: export(run, "onnx", tmp_path / "model.onnx").path,
        "the hub": lambda: "hf-hub:alice/flowers",
        "a module": run.load_model,
    }[kind]()
    opened = vitling.open_model(source, max_value=1023)
    assert opened.name == name
    assert opened.preprocessing == SEEN
    assert opened.class_names == NAMES
    assert (opened.run is not None) == (kind == "a run" or kind == "the path of a run")
    assert (opened.metadata is None) == (kind == "a module")
    torch.testing.assert_close(opened.logits(pixels), expected, atol=1e-5, rtol=1e-5)
    if kind != "an ONNX file":
        assert not opened.network.training
        assert next(opened.network.parameters()).device.type == default_device().type
        assert "state_dict" not in opened.network.pretrained_cfg


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth.tar"])
def test_a_weights_file_takes_the_architecture_that_is_given(suffix, run, tmp_path):
    path = tmp_path / f"weights{suffix}"
    model = run.load_model()
    save_weights(model, path)
    given = dict(architecture="vit_tiny_patch16_224", model_args={**TINY, "num_classes": 2})
    opened = open_model(path, device="cpu", max_value=4095, **given)
    assert all(map(torch.equal, opened.network.state_dict().values(), model.state_dict().values()))
    assert opened.preprocessing == Preprocessing((8, 12), 3, "resize", 4095, (0.5,) * 3, (0.5,) * 3)
    assert opened.class_names is None
    said = message(open_model, path)
    assert "do not name their model; give architecture" in said
    given["model_args"] = TINY
    assert ": 2 classes in the file, 1000 here); give the model_args that it was" in message(open_model, path, **given)
    assert "Did you mean" in message(open_model, path, architecture="vit_tiny_patch16_22")
    assert "cannot be built with" in message(open_model, path, architecture="resnet18", model_args={"depth": 3})


def test_a_timm_name_opens_with_its_published_weights(hub, tmp_path):
    name = "test_vit.r160_in1k"
    torch.manual_seed(0)
    model = timm.create_model(name)
    nn.init.normal_(model.head.weight)
    recorder = Recorder()
    assert message(open_model, name, callback=recorder).startswith(f"the weights of {name} could not be downloaded: ")
    assert recorder.progress == [(f"downloading {name}", 0, None)]
    (tmp_path / "hub").mkdir()
    save_weights(model, tmp_path / "hub" / "model.safetensors")
    hub[f"timm/{name}"] = tmp_path / "hub"
    opened = open_model(name, device="cpu")
    assert opened.name == name
    assert (opened.run, opened.metadata, opened.class_names) == (None, None, None)
    assert (opened.preprocessing.size, opened.preprocessing.fit) == ((160, 160), "resize")
    assert all(map(torch.equal, opened.network.state_dict().values(), model.state_dict().values()))
    assert published_classes(name) == 1000


def test_hub_names_of_timm_need_no_prefix_and_a_file_of_torch_is_read_where_there_is_no_safetensors(
    run, hub, pixels, expected, tmp_path
):
    folder = shutil.copytree(run.path / "best", tmp_path / "repository")
    (folder / "model.safetensors").unlink()
    torch.save(run.load_model().state_dict(), folder / "pytorch_model.bin")
    hub["timm/flowers"] = folder
    opened = open_model("timm/flowers")
    assert opened.name == "timm/flowers"
    torch.testing.assert_close(opened.logits(pixels), expected)


def test_what_was_written_before_max_value_had_its_name_still_opens(run, exported, pixels, expected, tmp_path):
    old = Run(shutil.copytree(run.path, tmp_path / "run"))
    preprocessing = old.info["preprocessing"]
    preprocessing["white"] = preprocessing.pop("max_value")
    old.update(preprocessing=preprocessing)
    folder = shutil.copytree(exported, tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    config["vitling"]["preprocessing"] = preprocessing
    (folder / "config.json").write_text(json.dumps(config))
    for source in (old, folder):
        opened = open_model(source)
        assert opened.preprocessing == SEEN
        torch.testing.assert_close(opened.logits(pixels), expected)
    config.pop("vitling")  # as the best/ of an older run: timm's config is all there is
    (folder / "config.json").write_text(json.dumps(config))
    opened = open_model(folder, max_value=1023)
    assert (opened.preprocessing, opened.class_names, opened.metadata) == (SEEN, NAMES, None)


@pytest.mark.slow
def test_an_onnx_file_of_before_still_opens(run, tmp_path):
    onnx = pytest.importorskip("onnx", reason='needs pip install "vitling[export]"')
    path = export(run, "onnx", tmp_path / "model.onnx").path
    content = onnx.load(path)
    (entry,) = (entry for entry in content.metadata_props if entry.key == "preprocessing")
    entry.value = entry.value.replace("max_value", "white")
    onnx.save(content, path)
    assert open_model(path).preprocessing == SEEN


# Preprocessing


def small_vit(**arguments):
    return timm.create_model("vit_tiny_patch16_224", **{**TINY, "num_classes": 2, **arguments})


def test_a_models_own_channels_and_size_come_before_those_of_its_config():
    seen = timm_preprocessing(small_vit(in_chans=5), max_value=255)
    assert seen == Preprocessing((8, 12), 5, "resize", 255, (0.5,) * 5, (0.5,) * 5)
    cnn = timm.create_model("resnet18.a1_in1k", num_classes=2, in_chans=1)  # trained at 224, tested at 288
    assert timm_preprocessing(cnn) == Preprocessing((288, 288), 1, "resize", 255, (0.5,), (0.5,))
    cnn = timm.create_model("resnet18.a1_in1k", num_classes=2)
    assert timm_preprocessing(cnn).mean == timm.data.IMAGENET_DEFAULT_MEAN
    plain = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten())
    assert timm_preprocessing(plain, 4095) == Preprocessing((224, 224), 4, "resize", 4095, (0.5,) * 4, (0.5,) * 4)


# Weights alone


def test_weights_are_found_by_the_same_grammar(run, exported, hub):
    hub["alice/flowers"] = exported
    for source in (run.path, f"local-dir:{exported}", exported / "model.safetensors", "hf-hub:alice/flowers"):
        model = small_vit()
        load_weights(model, find_weights(str(source)))
        assert torch.equal(model.head.weight, run.load_model().head.weight)
    (exported.parent / "a.onnx").touch()
    assert "no weights are taken from it" in message(find_weights, exported.parent / "a.onnx")


class Evil:
    """Pickled, it would write a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "weights.pt"])
def test_no_file_runs_code_when_it_is_opened(name, run, tmp_path):
    folder = shutil.copytree(run.path / "best", tmp_path / "folder")
    (folder / "model.safetensors").unlink()
    torch.save({"state_dict": Evil(tmp_path / "written")}, folder / name)
    said = message(open_model, folder / name if name == "weights.pt" else folder)
    assert "cannot be loaded" in said
    assert not (tmp_path / "written").exists()


# What is refused


def test_what_is_no_model_is_refused_with_what_one_would_be(run, exported, hub, tmp_path):
    allowed = "give a run, an exported folder, a weights file, an .onnx file, hf-hub:OWNER/NAME or a timm name"
    assert message(open_model, "nothing").startswith(f"no model at nothing; {allowed}")
    assert "published weights. Did you mean resnet18 or " in message(open_model, "resnet81")
    assert message(open_model, "runs/missing").startswith(f"no model at runs/missing; {allowed}")
    assert message(open_model, f"local-dir:{tmp_path / 'missing'}").startswith(
        f"no folder {tmp_path / 'missing'}; give"
    )
    assert "neither a run (no run.json) nor an exported folder (no config.json and no" in message(open_model, tmp_path)
    (tmp_path / "image.png").touch()
    assert "image.png is not a model; files end in .onnx, .safetensors" in message(open_model, tmp_path / "image.png")
    assert "is not a hub name" in message(open_model, "hf-hub:flowers")
    assert message(open_model, "hf-hub:alice/other").startswith("hf-hub:alice/other could not be downloaded: ")
    assert message(open_model, "resnet18.nope") == (
        "no published weights resnet18.nope: Invalid pretrained tag (nope) for resnet18."
    )
    assert message(open_model, "dhvt_test") == "dhvt_test has no published weights; give a run or a folder of it."


def test_arguments_that_a_source_does_not_take_are_refused(run, exported):
    assert message(open_model, run, which="bets") == "unknown weights 'bets'. Did you mean best?"
    assert "has no last weights yet" in message(open_model, run, which="last")
    assert "which=last is for runs; " in message(open_model, exported, which="last")
    assert "architecture and model_args are for weights files" in message(open_model, run, architecture="resnet18")


def test_a_folder_that_is_damaged_is_refused(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for change, said in (
        ({"architecture": None}, "does not name a timm architecture"),
        ({"architecture": "vit_unknown"}, "names the architecture 'vit_unknown', which timm does not know"),
        ({"model_args": {**config["model_args"], "depth": 2}}, "Missing key(s) in state_dict"),
        ({"vitling": {**config["vitling"], "class_names": ["ant"]}}, "it states the class names twice, and not alike"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        assert said in message(open_model, folder)
    (folder / "config.json").write_text("{")
    assert "is not valid JSON" in message(open_model, folder)


@pytest.mark.slow
def test_an_onnx_file_is_no_module(run, tmp_path):
    pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')
    opened = open_model(export(run, "onnx", tmp_path / "model.onnx").path)
    with pytest.raises(UserError, match="is an ONNX file, which shows only its outputs; give the run or a timm folder"):
        opened.module  # noqa: B018


def test_published_weights_are_read_as_weights_only_whichever_way_they_come(monkeypatch):
    """timm's own default was another one in older versions."""
    from vitling.runs import opening

    asked = []

    def fetch(*place, **options):
        asked.append(options.get("weights_only"))
        return timm.create_model("resnet18").state_dict()

    monkeypatch.setattr(opening, "load_state_dict_from_hf", fetch)
    monkeypatch.setattr(opening, "load_state_dict_from_url", fetch)
    config = timm.get_pretrained_cfg("resnet18")
    config.url = "https://example.invalid/resnet18.pth"
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: config)
    for config.hf_hub_id in ("timm/resnet18.a1_in1k", None):
        open_model("resnet18")
    assert asked == [True, True]
