"""`vitling.Predictor`: whatever an image comes as, from a run or an exported file, in many threads, with and without torch."""

import io
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import images_of, make_tiny_run

import vitling
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.sources.images import BadImage, FileImages, load_image
from vitling.deploy.export import export
from vitling.errors import UserError

pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_tiny_run(tmp_path_factory.mktemp("predictor"))


@pytest.fixture(scope="module")
def file(run):
    return export(run, "onnx").path


@pytest.fixture(scope="module", params=["run", "onnx"])
def predictor(request, run, file):
    return vitling.Predictor(run if request.param == "run" else file)


def message(function, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_image_gives_the_same_whatever_it_comes_as(predictor, run):
    path = images_of(run)[0]
    (expected,) = vitling.predict(run, path, top=2)
    pixels = np.array(Image.open(path))
    ways = {
        "path": path,
        "text": str(path),
        "bytes": path.read_bytes(),
        "bytearray": bytearray(path.read_bytes()),
        "stream": io.BytesIO(path.read_bytes()),
        "Pillow": Image.open(path),
        "array": pixels,
        "channels first": pixels.transpose(2, 0, 1),
        "tensor": torch.from_numpy(pixels).permute(2, 0, 1),
    }
    for way, image in ways.items():
        found = predictor(image, top=2)
        assert found.classes == expected.classes, way
        assert found.probabilities == pytest.approx(expected.probabilities, abs=2e-6), way
        (as_list,) = predictor([image], top=2) if way != "stream" else [found]
        assert as_list.probabilities == found.probabilities


def test_batches_come_in_their_order_and_as_each_by_itself(predictor, run):
    files = images_of(run)
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    alone = np.concatenate([predictor.probabilities(file) for file in files])
    assert alone.shape == (40, 2)
    np.testing.assert_allclose(alone.sum(axis=1), 1, atol=1e-6)
    for batch in (files, list(pixels), pixels, torch.from_numpy(pixels).permute(0, 3, 1, 2), (f for f in files)):
        np.testing.assert_allclose(predictor.probabilities(batch), alone, atol=2e-6)
    many = predictor([*files, *files], top=1)  # more than a batch
    assert [p.path for p in many] == [str(file) for file in files] * 2
    assert [p.path for p in predictor(run.path.parent / "data")] == [str(file) for file in files]
    mixed = predictor([files[0], pixels[1], Image.open(files[2])])
    assert [p.path for p in mixed] == [str(files[0]), "images[1]", "images[2]"]
    assert predictor([]) == []
    assert predictor.probabilities([]).shape == (0, 2)


def test_what_is_no_image_is_one_line_that_names_it(predictor, run, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    path = images_of(run)[0]
    pixels = np.asarray(Image.open(path))
    for wrong, said in (
        (tmp_path / "text.png", "text.png: Pillow does not recognise it as an image"),
        (tmp_path / "nothing.png", "no image at"),
        (b"", "cannot read image the image: it is empty (0 bytes)"),
        (path.read_bytes()[:60], "cannot read image the image: "),
        (pixels / 255.0, "its numbers are float64; uint8 or uint16 are allowed"),
        (pixels[None, None], "its shape is (1, 1, 12, 10, 3)"),
        (np.zeros((7, 8, 9), np.uint8), "its shape (7, 8, 9) has no axis of 3 channels"),
        (np.zeros((0, 8, 3), np.uint8), "its shape is (0, 8, 3)"),
        ([path, 17], "cannot read image images[1]: int is not an image"),
        ([path, None], "NoneType is not an image"),
        (17, "int is not an image; give a path, the bytes of a file"),
        (np.full((8, 8, 3), 300, np.uint16), "it has 16 bits (values up to 300)"),
        ([[1, 2], [3, 4]], "list is not an image"),
    ):
        assert said in message(predictor, wrong)
    for top in (0, -1, 1.5, True):
        assert message(predictor, path, top=top).startswith(f"top={top}")


def test_probabilities_are_calibrated_unless_raw_ones_are_asked_for(run, file):
    for source in (run, file):
        calibrated, raw = vitling.Predictor(source), vitling.Predictor(source, calibrated=False)
        assert calibrated.calibrated
        assert not raw.calibrated
        logits = np.log(raw.probabilities(images_of(run)))
        expected = torch.from_numpy(logits / calibrated.temperature).softmax(dim=1)
        np.testing.assert_allclose(calibrated.probabilities(images_of(run)), expected, atol=1e-5)
        assert raw.class_names == calibrated.class_names == ["cat", "dog"]


def test_many_threads_share_one_predictor(predictor, run):
    files = images_of(run) * 3
    expected = predictor.probabilities(files)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: predictor.probabilities(files[i : i + 3]), range(0, len(files), 3)))
    np.testing.assert_allclose(np.concatenate(found), expected, atol=2e-6)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_arrays_are_normalised_as_tensors_are_to_the_last_bit(channels):
    rng = np.random.default_rng(channels)
    mean, std = (tuple(rng.uniform(0.05, 0.9, channels).tolist()) for _ in range(2))
    seen = Preprocessing((16, 16), channels, "resize", 255, mean, std)
    pixels = rng.integers(0, 256, (8, channels, 16, 16), dtype=np.uint8)
    ours = seen.normalize_array(pixels)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, seen.normalize(torch.from_numpy(pixels)).numpy())


@pytest.mark.parametrize("fit", ["resize", "pad", "crop"])
@pytest.mark.parametrize("how", [{}, {"test_crop": 0.875, "interpolation": "bilinear"}])
def test_files_are_fitted_as_everywhere_else_to_the_last_bit(run, file, tmp_path, fit, how):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (300, 200, 3), dtype=np.uint8)).save(tmp_path / "large.jpg")
    Image.fromarray(rng.integers(0, 256, (20, 30, 4), dtype=np.uint8)).save(tmp_path / "glass.png")
    Image.fromarray(rng.integers(0, 256, (20, 30), dtype=np.uint8)).save(tmp_path / "grey.png")
    np.save(tmp_path / "array.npy", rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    predictor = vitling.Predictor(file)
    predictor.preprocessing = replace(predictor.preprocessing, fit=fit, **how)
    for path in sorted(tmp_path.iterdir()):
        expected = load_image(FileImages([path], [0]), 0, **predictor.preprocessing.fit_args())
        np.testing.assert_array_equal(predictor.fit(path), expected)
        np.testing.assert_array_equal(predictor.fit(path.read_bytes()), expected)


def test_an_array_in_bytes_that_announces_more_than_it_holds_is_refused(predictor):
    content = io.BytesIO()
    np.save(content, np.zeros((8, 8, 3), np.uint8))
    whole = content.getvalue()
    assert predictor(whole).classes
    assert "bytes follow" in message(predictor, whole.replace(b"(8, 8, 3)", b"(8, 8888, 3)")[:128] + whole[128:])
    assert "bytes follow" in message(predictor, whole[:-1])


def test_transparency_is_a_channel_for_a_model_of_four(tmp_path):
    run = make_tiny_run(tmp_path, channels=4)
    glass = np.random.default_rng(0).integers(0, 256, (8, 8, 4), dtype=np.uint8)
    Image.fromarray(glass).save(tmp_path / "glass.png")
    predictor = vitling.Predictor(run, calibrated=False)
    for image in (tmp_path / "glass.png", (tmp_path / "glass.png").read_bytes(), Image.fromarray(glass), glass):
        np.testing.assert_array_equal(predictor.fit(image), glass.transpose(2, 0, 1))


def test_a_model_of_the_callers_own_input_gives_the_same(run, tmp_path):
    raw = export(run, "onnx", tmp_path / "raw.onnx", raw_input=True).path
    found = vitling.Predictor(raw).probabilities(images_of(run))
    np.testing.assert_allclose(found, vitling.Predictor(run).probabilities(images_of(run)), atol=1e-5)


def test_what_cannot_be_predicted_with_says_why(run, file, tmp_path):
    assert "which=last is for runs; model.onnx has only one set" in message(vitling.Predictor, file, which="last")
    assert "no model at nothing" in message(vitling.Predictor, "nothing")
    module = torch.nn.Conv2d(3, 2, 1)
    assert "does not name its classes" in message(vitling.Predictor, module)
    (tmp_path / "model.pt2").write_bytes(b"")
    assert "unpickles nothing" in message(vitling.Predictor, tmp_path / "model.pt2")
    gone = make_tiny_run(tmp_path / "gone")
    (tmp_path / "gone" / "data").rename(tmp_path / "gone" / "elsewhere")
    with pytest.warns(UserWarning, match="not calibrated"):
        assert not vitling.Predictor(gone).calibrated


LIGHT = """
import sys
for name in ("torch", "timm", "torchvision", "accelerate", "scipy", "sklearn", "matplotlib", "onnx"):
    sys.modules[name] = None  # as if it were not installed
import vitling
predictor = vitling.Predictor(sys.argv[1])
print(predictor.probabilities(sys.argv[2:]).tolist())
"""


def test_an_onnx_file_is_used_without_torch_and_gives_what_the_run_gives(run, file):
    files = [str(path) for path in images_of(run)]
    result = subprocess.run([sys.executable, "-c", LIGHT, file, *files], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    expected = vitling.Predictor(run).probabilities(files)
    np.testing.assert_allclose(json.loads(result.stdout), expected, atol=1e-5)


def test_the_command_predicts_with_an_onnx_file_without_loading_torch(run, file):
    command = [sys.executable, "-X", "importtime", "-m", "vitling", "predict", file, images_of(run)[0], "--csv"]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert result.stdout.startswith("path,class,probability\n")
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines()}
    assert "onnxruntime" in loaded
    assert loaded.isdisjoint({"torch", "timm", "torchvision", "scipy", "sklearn", "matplotlib"})


def test_a_bad_image_can_be_told_from_other_errors(predictor):
    with pytest.raises(BadImage) as caught:
        predictor.fit(b"nothing", "upload.png")
    assert caught.value.name == "upload.png"
    assert caught.value.reason == "Pillow does not recognise it as an image"
