"""Which images an evaluation or a prediction looks at, by which classes, and where the result goes."""

import json
import shutil

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from vitling.data import BadImage
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import open_dataset
from vitling.deploy.prediction import predict
from vitling.diagnose.paged import evaluate
from vitling.errors import UserError
from vitling.evaluation.metrics import measure
from vitling.recipes import Recipe
from vitling.runs.run import Run

COLOURS = {"a": (220, 20, 20), "b": (20, 220, 20), "c": (20, 20, 220)}
TINY = dict(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2)


def pictures(root, *folders, count=10, mode="RGB"):
    """Images of one colour each, told apart by their class and number."""
    for folder in folders:
        (root / folder).mkdir(parents=True)
        for i in range(count):
            colour = np.array(COLOURS.get(folder[-1], (90, 90, 90))) + i
            Image.new("RGB", (8, 8), tuple(colour.tolist())).convert(mode).save(root / folder / f"{i}.png")
    return root


def make_run(folder, data, *, channels=3, **recipe):
    """A run directory as training leaves it, with weights that were never trained."""
    recipe = Recipe(data=str(data), model="vit_tiny_patch16_224", model_args=TINY, channels=channels, **recipe)
    dataset = open_dataset(data, channels=channels)
    run = Run(folder)
    run.path.mkdir(parents=True)
    run.save_recipe(recipe)
    run.update(
        class_names=dataset.class_names,
        preprocessing=Preprocessing(
            (8, 8), channels, "resize", dataset.max_value, (0.5,) * channels, (0.25,) * channels
        ),
        data=dict(name=dataset.name, fingerprint=dataset.fingerprint, splits=sorted(dataset.splits)),
    )
    torch.manual_seed(0)
    args = {**TINY, "in_chans": channels}
    model = timm.create_model(recipe.model, num_classes=len(dataset.class_names), **args)
    for which in ("best", "last"):
        run.save_model(which, model, dataset.class_names, args)
    return run


def message(function, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "colours"
    pictures(root, *(f"train/{c}" for c in "abc"), count=20)
    return pictures(root, *(f"test/{c}" for c in "abc"), count=5)


@pytest.fixture
def run(data, tmp_path):
    return make_run(tmp_path / "run", data)


def test_other_data_does_not_replace_the_result_on_the_own_test_split(run, tmp_path):
    own = evaluate(run)
    other = evaluate(run, str(pictures(tmp_path / "other set", "test/a", "test/b", count=4)))
    assert (own.images, own.own, other.images, other.own) == (15, True, 8, False)
    assert json.loads((run.path / "evaluation-test.json").read_text())["images"] == 15
    assert json.loads((run.path / "evaluation-test-other-set.json").read_text())["data"] == "other set"
    assert run.info["test_looks"] == 1


def test_own_data_is_known_by_a_relative_path_and_by_its_content(run, data, tmp_path, monkeypatch):
    monkeypatch.chdir(data.parent)
    assert evaluate(run, "colours").own
    assert evaluate(run, "./colours/").own
    copy = pictures(tmp_path / "copy", *(f"train/{c}" for c in "abc"), count=20)
    pictures(copy, *(f"test/{c}" for c in "abc"), count=5)
    assert evaluate(run, str(copy)).own
    assert run.info["test_looks"] == 3
    assert sorted(p.name for p in run.path.glob("evaluation*")) == ["evaluation-test.json"]


def test_train_and_val_are_the_parts_that_the_run_made(run, data):
    train, val = split_training(open_dataset(data), run.recipe)
    assert not set(train.names) & set(val.names)
    assert evaluate(run, split="train").images == len(train) == 54
    assert evaluate(run, split="val").images == len(val) == 6


def test_where_the_recipe_says_so_the_datas_val_split_is_the_test(tmp_path):
    data = pictures(tmp_path / "imagenet", *(f"train/{c}" for c in "abc"), count=20)
    pictures(data, *(f"val/{c}" for c in "abc"), count=4)
    run = make_run(tmp_path / "run", data, test_split="val")
    result = evaluate(run)
    assert (result.split, result.images, run.info["test_looks"]) == ("test", 12, 1)
    assert result.notes == ["its val split is the test split here"]
    assert evaluate(run, split="val").images == 6  # a tenth of train, as it was carved
    copy = shutil.copytree(data, tmp_path / "copy")
    assert evaluate(run, str(copy)).images == 12


def test_a_val_split_that_is_to_be_the_test_has_to_be_there(tmp_path):
    data = pictures(tmp_path / "data", "train/a", "train/b", "test/a", "test/b")
    with pytest.raises(UserError, match="has no val split to be the test split, only train, test"):
        open_dataset(data, test_split="val")
    pictures(data, "val/a", "val/b", count=3)
    opened = open_dataset(data, test_split="val")
    assert {split: len(images) for split, images in opened.splits.items()} == {"train": 20, "test": 6}
    assert opened.notes == ["its val split is the test split here, its own test split is left out"]
    assert sorted(open_dataset(data, opened=opened).splits) == ["test", "train", "val"]


def test_data_that_changed_since_the_training_is_noted(tmp_path):
    data = pictures(tmp_path / "data", "train/a", "train/b", "test/a", "test/b")
    run = make_run(tmp_path / "run", data)
    assert evaluate(run).notes == []
    (data / "train/a/0.png").unlink()
    assert "data has changed since the training" in evaluate(run).notes[0]


def test_unknown_splits_and_weights_are_refused_with_those_allowed(run, data):
    assert message(evaluate, run, split="foo") == "unknown split 'foo'. Allowed: test, train, val."
    assert message(evaluate, run, which="foo") == "unknown weights 'foo'. Allowed: best, last."
    assert message(predict, run, data, which="bets") == "unknown weights 'bets'. Did you mean best?"


def test_a_split_that_is_missing_is_named(tmp_path):
    run = make_run(tmp_path / "run", pictures(tmp_path / "data", "a", "b"))
    assert "data has no test split (it has train); split=val shows" in message(evaluate, run)


def test_numbered_folders_are_counted_as_the_classes_of_that_name(tmp_path):
    run = make_run(tmp_path / "run", pictures(tmp_path / "all", *(str(i) for i in range(12)), count=2))
    assert run.class_names[:4] == ["0", "1", "10", "11"]
    some = pictures(tmp_path / "some", "0", "1", "2", count=2)
    result = evaluate(run, str(some), split="train")
    assert {row["name"] for row in result.per_class if row["images"]} == {"0", "1", "2"}


def test_classes_without_names_are_taken_in_order_and_that_is_noted(run, tmp_path):
    images = np.zeros((4, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "bare.npz", test_images=images, test_labels=np.array([0, 1, 1, 1]))
    result = evaluate(run, str(tmp_path / "bare.npz"))
    assert [row["images"] for row in result.per_class] == [1, 3, 0]
    assert "have no names; 0 is taken for 'a'" in result.notes[0]


@pytest.mark.parametrize("memory_gb", [1, 0])
def test_sixteen_bit_images_are_refused_by_a_run_on_eight_bits(run, tmp_path, memory_gb):
    Image.fromarray(np.full((8, 8), 3000, np.uint16)).save(tmp_path / "deep.png")
    text = message(predict, run, tmp_path / "deep.png", reading=Reading(memory_gb=memory_gb, workers=0))
    assert "deep.png: it has 16 bits (values up to 3000), but the training images have 8" in text


@pytest.mark.parametrize("memory_gb", [1, 0])
def test_a_run_on_four_channels_predicts_images_with_and_without_transparency(tmp_path, memory_gb):
    data = pictures(tmp_path / "data", "a", "b", mode="RGBA")
    run = make_run(tmp_path / "run", data, channels=4)
    files = [data / "a/0.png", pictures(tmp_path / "plain", "c", count=1)]
    predictions = predict(run, files, reading=Reading(memory_gb=memory_gb, workers=0))
    assert [len(p.classes) for p in predictions] == [2, 2]


def test_a_corrupt_file_is_named_with_a_way_out_or_skipped_in_its_place(run, data, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    files = [data / "test/a/0.png", tmp_path / "bad.png", data / "test/b/0.png"]
    with pytest.raises(BadImage, match=r"bad\.png.*skip_bad_images") as caught:
        predict(run, files)
    assert "on_bad_image" not in str(caught.value)

    first, bad, last = predict(run, files, skip_bad_images=True)
    assert [first, last] == predict(run, [files[0], files[2]])
    assert (bad.path, bad.classes, bad.probabilities) == (str(files[1]), [], [])
    assert bad.skipped == "Pillow does not recognise it as an image"
    assert "none of the 1 images can be used, the first:" in message(predict, run, files[1], skip_bad_images=True)


def test_every_number_of_a_small_example():
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    result = measure(logits, torch.tensor([0, 0, 1, 1]), ["a", "b"])
    assert result.confusion == [[2, 0], [1, 1]]
    assert (result.top1, result.top5) == (0.75, None)
    assert result.macro_f1 == pytest.approx((0.8 + 2 / 3) / 2)
    right, wrong = np.log(1 + np.exp(-2)), np.log(1 + np.exp(2))
    assert result.loss == pytest.approx((3 * right + wrong) / 4, rel=1e-6)
    assert result.ece == pytest.approx(np.exp(2) / (1 + np.exp(2)) - 0.75, rel=1e-5)
