"""A dataset that was opened before, such as for a plan, is not opened and checked again."""

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from image_trees import save, tree

from vitling.callbacks import Callback
from vitling.data import open_dataset
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import prepare_training_data
from vitling.data.sources import dataset as module
from vitling.data.sources import images
from vitling.data.sources import tree as tree_module
from vitling.estimator import ViTClassifier
from vitling.recipes import Augment, Optim, Recipe
from vitling.studies.study import complete_run
from vitling.training.settings import Settings

SMALL = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    img_size=8,
    epochs=1,
    batch_size=4,
    val_fraction=0.25,
    on_bad_image="skip",
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(warmup_epochs=0),
)


@pytest.fixture
def counted(monkeypatch):
    """How often a folder was searched, and a file decoded."""
    counts = Counter()

    def count(place, name):
        function = getattr(place, name)

        def counting(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(place, name, counting)

    count(module, "read_tree")
    count(module, "read_memory")
    count(images, "read_image")
    return counts


@pytest.fixture
def data(tmp_path):
    """Eight images; one of them has a head and no pixels."""
    tree(tmp_path / "data", "a", "b", count=4)
    good = (tmp_path / "data/a/0.png").read_bytes()
    (tmp_path / "data/a/1.png").write_bytes(good[:45])
    return tmp_path / "data"


def facts(dataset):
    splits = {
        split: (part.names, part.labels.tolist(), part.rows.tolist(), part.alpha)
        for split, part in dataset.splits.items()
    }
    return (
        dataset.name,
        dataset.class_names,
        dataset.channels,
        dataset.fingerprint,
        dataset.skipped,
        dataset.notes,
        splits,
    )


def test_data_that_was_opened_in_the_same_way_is_used_as_it_is(data, counted, monkeypatch):
    first = open_dataset(data, on_bad_image="skip")
    assert counted == {"read_tree": 1, "read_image": 8}
    monkeypatch.chdir(data.parent)
    assert open_dataset("./data/", on_bad_image="skip", opened=first) is first
    assert counted == {"read_tree": 1, "read_image": 8}


def test_data_that_is_asked_for_as_it_turned_out_is_used_as_it_is(data, counted):
    first = open_dataset(data, on_bad_image="skip")
    counted.clear()
    asked = dict(on_bad_image="skip", channels=first.channels, class_names=first.class_names)
    assert open_dataset(data, **asked, opened=first) is first
    assert not counted
    assert open_dataset(data, on_bad_image="skip", opened=open_dataset(data, **asked)).request.channels is None


def test_opened_without_a_check_it_is_checked_but_not_searched_for_again(data, counted):
    plan = open_dataset(data)
    assert counted == {"read_tree": 1}
    checked = open_dataset(data, on_bad_image="skip", opened=plan)
    assert counted == {"read_tree": 1, "read_image": 8}
    assert facts(checked) == facts(open_dataset(data, on_bad_image="skip"))
    assert checked.skipped == ["a/1.png"]
    assert facts(plan) == facts(open_dataset(data))


@pytest.mark.parametrize("options", [dict(channels=1), dict(channels=4), dict(class_names=["b", "c", "a"])])
def test_what_is_asked_for_otherwise_comes_out_as_if_nothing_had_been_opened(tmp_path, options):
    for label in "ab":
        for i in range(3):
            save(tmp_path / label / f"{i}.png", 9 * i, mode="RGBA" if options.get("channels") == 4 else "RGB")
    before = open_dataset(tmp_path)
    known = facts(before)
    assert facts(open_dataset(tmp_path, opened=before, **options)) == facts(open_dataset(tmp_path, **options))
    assert facts(before) == known


def test_other_data_is_opened_whatever_is_at_hand(data, tmp_path):
    other = tree(tmp_path / "other", "x", "y")
    assert open_dataset(other, opened=open_dataset(data)).class_names == ["x", "y"]


def test_training_checks_no_file_of_a_dataset_that_is_handed_to_it(data, counted):
    recipe = Recipe(data=str(data), on_bad_image="skip", val_fraction=0.4)
    dataset = open_dataset(data, on_bad_image="skip")
    counted.clear()
    found = prepare_training_data(recipe, Reading(), model_size=(8, 8), dataset=dataset)
    assert found.dataset is dataset
    in_train = len(found.train)
    assert counted == {"read_image": in_train + 7}  # to learn their size, then all to be decoded
    counted.clear()
    again = prepare_training_data(recipe, Reading(), model_size=(8, 8))
    assert counted == {"read_tree": 1, "read_image": 8 + in_train + 7}
    assert again.preprocessing == found.preprocessing


@pytest.mark.slow
def test_a_run_of_a_study_opens_its_data_once_for_training_and_test(tmp_path, counted):
    for split in ("train", "test"):
        tree(tmp_path / "data" / split, "a", "b", count=4)
    recipe = replace(SMALL, data=str(tmp_path / "data"))
    complete_run(recipe, tmp_path / "run", split="test", settings=Settings(threads=1), callback=Callback())
    assert counted["read_tree"] == 1
    assert counted["read_image"] == 2 * 16  # every file is checked once, then decoded


@pytest.mark.slow
def test_an_estimator_opens_its_data_once_for_plan_and_training(counted):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20, 8, 8), np.uint8), np.arange(20) % 2
    ViTClassifier(epochs=1, threads=1).fit(images, labels)
    assert counted["read_memory"] == 1


def test_a_look_at_very_many_files_asks_only_some_for_their_size(data, monkeypatch):
    monkeypatch.setattr(module, "SAMPLED_FILES", 4)
    asked = []
    monkeypatch.setattr(tree_module, "file_size", lambda path: asked.append(path) or os.path.getsize(path))
    look = open_dataset(data, sampled=True)
    assert len(asked) == 4 * len(look.splits)
    whole = open_dataset(data, opened=look)
    assert whole is not look
    assert len(asked) > 4 * len(look.splits) + 4
    assert {split: part.names for split, part in look.splits.items()} == {s: p.names for s, p in whole.splits.items()}
    assert facts(whole) == facts(open_dataset(data))


def test_a_look_at_few_files_is_used_by_training_as_it_is(data, counted):
    look = open_dataset(data, sampled=True)
    assert open_dataset(data, opened=look) is look
    assert open_dataset(data, sampled=True, opened=look) is look
    assert counted["read_tree"] == 1
