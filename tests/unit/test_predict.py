"""Predictions: from which images, with which probabilities, and with pictures of where the model looked."""

import io
import json
import os

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from recorder import Recorder

import vitling.models  # noqa: F401  (registers our families)
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.pipeline.reading import Reading
from vitling.data.sources.dataset import open_dataset
from vitling.deploy.prediction import predict, read_paths
from vitling.diagnose.overlay import attention_map, draw_overlay
from vitling.errors import UserError
from vitling.evaluation.temperature import LARGEST, calibrate, fit_temperature
from vitling.recipes import Recipe
from vitling.runs.run import Run

TINY = dict(img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2)


@pytest.fixture
def data(tmp_path):
    """Three classes of noise, which no model can separate."""
    rng = np.random.default_rng(0)
    for name in "abc":
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(20):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / "data" / name / f"{i}.png")
    return tmp_path / "data"


@pytest.fixture
def run(data, tmp_path):
    """A run directory as training leaves it, with weights that are far too confident."""
    recipe = Recipe(data=str(data), model="vit_tiny_patch16_224", model_args=TINY, val_fraction=0.5)
    dataset = open_dataset(data)
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.save_recipe(recipe)
    run.update(
        class_names=dataset.class_names,
        preprocessing=Preprocessing((8, 8), 3, "resize", 255, (0.5,) * 3, (0.25,) * 3),
        data=dict(name=dataset.name, fingerprint=dataset.fingerprint),
    )
    save(run, seed=0)
    return run


def save(run, seed):
    torch.manual_seed(seed)
    model = timm.create_model(run.recipe.model, num_classes=3, **TINY)
    torch.nn.init.normal_(model.head.weight)
    for which in ("best", "last"):
        run.save_model(which, model, run.class_names, TINY)


def message(function, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Temperature


@pytest.mark.parametrize("exaggeration", [0.4, 1.0, 3.0])
def test_the_temperature_undoes_an_exaggeration(exaggeration):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    assert fit_temperature(exaggeration * logits, labels) == pytest.approx(exaggeration, rel=0.03)


def test_no_temperature_near_the_fitted_one_has_a_lower_loss():
    generator = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(300, 4, generator=generator, dtype=torch.float64)
    labels = logits.argmax(dim=1)
    labels[:100] = torch.randint(4, (100,), generator=generator)
    fitted = fit_temperature(logits, labels)

    def loss(temperature):
        return torch.nn.functional.cross_entropy(logits / temperature, labels, label_smoothing=1 / 302)

    assert 1 < fitted < LARGEST / 2
    assert loss(fitted) < loss(0.99 * fitted)
    assert loss(fitted) < loss(1.01 * fitted)


def test_a_model_that_is_always_right_is_not_called_certain():
    logits = 3 * torch.eye(4).repeat(10, 1)
    temperature = fit_temperature(logits, torch.arange(4).repeat(10))
    assert temperature > 1 / LARGEST + 0.01
    assert 0.9 < (logits / temperature).softmax(1).max() < 0.999


def test_a_model_that_is_always_wrong_gets_the_largest_temperature():
    logits = 3 * torch.eye(4).repeat(10, 1)
    assert fit_temperature(logits, (torch.arange(4) + 1).remainder(4).repeat(10)) == pytest.approx(LARGEST, rel=1e-3)


def test_logits_and_labels_of_different_number_are_refused():
    assert "5 labels" in message(fit_temperature, torch.zeros(4, 3), torch.zeros(5, dtype=torch.long))


def test_the_temperature_is_kept_in_the_run_and_fitted_again_for_other_weights(run, data):
    first = calibrate(run)
    assert first.images == 30
    assert first.loss_after < first.loss_before
    assert first.ece_after < first.ece_before
    assert json.loads((run.path / "calibration.json").read_text())["best"]["temperature"] == first.temperature
    data.rename(data.with_name("elsewhere"))
    assert calibrate(run) == first  # read, not fitted
    save(run, seed=1)
    assert "no such path" in message(calibrate, run)
    data.with_name("elsewhere").rename(data)
    assert calibrate(run).temperature != first.temperature


def test_probabilities_are_calibrated_unless_raw_ones_are_asked_for(run, data):
    image = data / "a" / "0.png"
    pixels = torch.from_numpy(np.array(Image.open(image))).permute(2, 0, 1)[None]
    with torch.no_grad():
        logits = run.load_model()(run.preprocessing().normalize(pixels))
    for calibrated, temperature in ((True, calibrate(run).temperature), (False, 1.0)):
        (found,) = predict(run, image, calibrated=calibrated)
        shares, order = (logits / temperature).softmax(1)[0].sort(descending=True)
        assert found.classes == ["abc"[k] for k in order]
        assert found.probabilities == pytest.approx(shares.tolist(), abs=1e-6)


def test_where_the_validation_images_are_gone_or_changed_a_note_says_that_nothing_is_calibrated(run, data, tmp_path):
    image = Image.open(data / "a" / "0.png")
    image.save(tmp_path / "kept.png")
    raw, notes = predict(run, tmp_path / "kept.png", calibrated=False), Recorder()
    (data / "a" / "0.png").unlink()
    assert predict(run, tmp_path / "kept.png", callback=notes) == raw
    assert "has changed since the training" in notes.messages.pop()
    data.rename(data.with_name("elsewhere"))
    with pytest.warns(UserWarning, match="not calibrated"):
        assert predict(run, tmp_path / "kept.png") == raw


def test_no_dataset_is_downloaded_for_the_sake_of_a_temperature(run, tmp_path):
    run.save_recipe(Recipe(data="cifar10", model=run.recipe.model, model_args=TINY))
    assert "was not downloaded (download=False)" in message(calibrate, run, reading=Reading(root=str(tmp_path)))


# Images


def test_many_images_come_in_their_order_and_as_each_by_itself(run, data, tmp_path):
    files = sorted(data.rglob("*.png")) * 3  # several batches
    (tmp_path / "broken.png").write_bytes(b"no image")
    files.insert(100, tmp_path / "broken.png")
    recorder = Recorder()
    found = predict(run, files, skip_bad_images=True, callback=recorder)
    assert [p.path for p in found] == [str(file) for file in files]
    assert [i for i, p in enumerate(found) if p.skipped] == [100]
    for i in (0, 63, 64, 180):
        (alone,) = predict(run, files[i])
        assert alone.classes == found[i].classes
        assert alone.probabilities == pytest.approx(found[i].probabilities, abs=2e-6)
    assert ("predicting", 181, 181) in recorder.progress


def test_no_images_at_all_are_refused(run):
    assert message(predict, run, []) == "no images are given; name files or folders."


def test_paths_are_read_from_lines_or_between_nul_characters():
    assert read_paths(io.BytesIO(b"a b.png\r\n\nc.png")) == ["a b.png", "c.png"]
    assert read_paths(io.BytesIO(b"a\nb.png\0c.png\0"), null=True) == ["a\nb.png", "c.png"]
    assert os.fsencode(read_paths(io.BytesIO(b"\xff.png\n"))[0]) == b"\xff.png"
    assert "names no images" in message(read_paths, io.BytesIO(b"\n\n"))


def test_what_is_no_model_is_refused_with_what_one_would_be(run, data, tmp_path):
    image = data / "a" / "0.png"
    assert "no model at nothing; give a run, an exported folder, a weights file" in message(predict, "nothing", image)
    assert "neither a run (no run.json) nor an exported folder (no config.json and no" in message(predict, data, image)
    (run.path / "best" / "config.json").write_text('{"architecture": "vit_tiny_patch16_224", "vitling": {}}')
    assert "was not exported by vitling: its metadata lacks architecture" in message(predict, run.path / "best", image)
    assert "is not a hub name" in message(predict, "hf-hub:flowers", image)


# Attention


def test_a_picture_of_attention_is_written_for_every_image(run, data, tmp_path):
    files = [data / "a" / "0.png", data / "b" / "0.png", data / "a" / "1.png"]
    found = predict(run, files, attention=tmp_path / "looked")
    assert [p.attention for p in found] == [str(tmp_path / "looked" / n) for n in ("0.png", "0-2.png", "1.png")]
    picture = np.asarray(Image.open(found[0].attention))
    original = np.asarray(Image.open(files[0])).repeat(28, axis=0).repeat(28, axis=1)
    assert picture.shape == (224, 448, 3)
    assert (picture[:, :224] == original).all()
    assert (picture[:, 224:] != original).any()
    assert "exists already" in message(predict, run, files, attention=tmp_path / "looked")


def test_the_tint_is_strongest_where_the_mask_is_highest():
    mask = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    picture = np.asarray(draw_overlay(torch.zeros(1, 16, 16, dtype=torch.uint8), mask))
    tinted = picture[:, 224:, 0]
    assert tinted[0, 0] == 0
    assert tinted[-1, -1] == tinted.max() == round(0.6 * 255)


def test_a_model_is_seen_to_look_where_its_class_token_attends():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **{**TINY, "depth": 1, "num_heads": 1}).eval()
    attention = model.blocks[0].attn
    with torch.no_grad():
        model.pos_embed.zero_()
        model.pos_embed[0, 3, :8] = 30.0  # the third patch is like no other,
        attention.qkv.weight.zero_()
        attention.qkv.bias.zero_()
        attention.qkv.bias[:16] = 1.0  # and every query looks for it
        attention.qkv.weight[16:32] = torch.cat([torch.ones(16, 8), -torch.ones(16, 8)], dim=1)
    found = attention_map(model, torch.zeros(2, 3, 8, 8))
    assert found.shape == (2, 2, 2)
    assert found.flatten(1).argmax(dim=1).tolist() == [2, 2]  # the first one is the class token
    assert found.amin() == 0
    assert found.amax() == 1


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [("dhvt_test", {}, (4, 4)), ("vit_tiny_patch16_224", {**TINY, "class_token": False, "global_pool": "avg"}, (2, 2))],
)
def test_head_tokens_and_the_lack_of_a_class_token_are_no_obstacle(name, options, shape):
    model = timm.create_model(name, **options).eval()
    assert attention_map(model, torch.randn(2, 3, *([16, 16] if name == "dhvt_test" else [8, 8]))).shape == (2, *shape)


def test_models_without_attention_over_the_image_are_refused():
    window = dict(img_size=32, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(2, 4))
    swin = timm.create_model("swin_tiny_patch4_window7_224", **window).eval()
    assert "cannot be rolled out" in message(attention_map, swin, torch.randn(1, 3, 32, 32))
    cnn = timm.create_model("agent_test").eval()
    assert "has no attention" in message(attention_map, cnn, torch.randn(1, 3, 16, 16))


def test_images_in_memory_say_what_their_files_do(run, data):
    paths = sorted((data / "a").iterdir())[:3]
    expected = predict(run, paths)
    pictures = [Image.open(path) for path in paths]
    arrays = [np.array(picture) for picture in pictures]
    forms = {
        "Pillow": pictures,
        "a tuple": tuple(pictures),
        "arrays": arrays,
        "both": [pictures[0], *arrays[1:]],
        "one array": np.stack(arrays),
        "channels first": np.stack(arrays).transpose(0, 3, 1, 2),
        "a tensor": torch.from_numpy(np.stack(arrays)),
        "paths of NumPy": np.array([str(path) for path in paths]),
    }
    for name, form in forms.items():
        found = predict(run, form)
        assert [p.classes for p in found] == [p.classes for p in expected], name
        assert [p.probabilities for p in found] == [p.probabilities for p in expected], name
    assert [p.path for p in predict(run, arrays)] == ["images[0]", "images[1]", "images[2]"]
    for single in (pictures[0], arrays[0]):
        assert predict(run, single)[0].probabilities == expected[0].probabilities
    grey = arrays[0][..., 0]
    assert predict(run, grey)[0].probabilities == predict(run, [grey])[0].probabilities
    assert len(predict(run, np.stack([grey, grey])[..., None])) == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.zeros((2, 8, 8, 3)), "its numbers are float64; uint8 or uint16 are allowed"),
        ([np.zeros((8, 8), np.float32)], r"images\[0\]: its numbers are float32"),
        (np.zeros((0, 8, 8), np.uint8), "its shape is"),
        (np.zeros(8, np.uint8), "its shape is"),
        ([np.zeros((2, 8, 8, 3), np.uint8)], r"its shape is \(2, 8, 8, 3\)"),
        ([np.zeros((8, 8), np.uint8), "a.png"], "no image at a.png"),
        ([], "no images are given"),
    ],
)
def test_images_in_memory_that_cannot_be_are_one_line(run, given, words):
    with pytest.raises(UserError, match=words) as caught:
        predict(run, given)
    assert "\n" not in str(caught.value)


def test_predictions_are_a_table_where_pandas_is(run, data, tmp_path):
    pandas = pytest.importorskip("pandas")
    bad = tmp_path / "bad.png"
    bad.write_text("no image")
    good = sorted((data / "a").iterdir())[0]
    found = predict(run, pandas.Series([str(good), str(bad)]), top=2, skip_bad_images=True)
    table = found.to_frame()
    assert list(table.columns) == ["path", "class", "probability", "class_2", "probability_2", "skipped", "attention"]
    assert table["class"][0] == found[0].classes[0]
    assert table["probability_2"][0] == found[0].probabilities[1]
    assert pandas.isna(table["class"][1])
    assert table["skipped"][1] == found[1].skipped
