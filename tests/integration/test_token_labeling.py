"""Token labeling from end to end: an annotator, its maps, training on them, evaluation; in several commands and in one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from recorder import Recorder
from safetensors.torch import load_file

import vitling
from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.recipes import Augment, Optim, Recipe, override, replace
from vitling.training.beginning import train
from vitling.training.signals import Interrupted

pytestmark = pytest.mark.slow

FLOWERS = Path(__file__).parents[2].parent / "shared" / "data" / "flowers10"
POLICY = "rand-m9-mstd0.5-inc1"
ANNOTATOR = Recipe(
    model="diag_resnet18_test",
    data="digits",
    epochs=6,
    batch_size=64,
    augment=Augment(crop="pad", hflip=0.0),
    optim=Optim(name="sgd", lr=0.1, weight_decay=5e-4, warmup_epochs=0.5),
    img_size=16,
)
STUDENT = Recipe(
    model="lvvit_test",
    method="token_labeling",
    data="digits",
    img_size=16,
    epochs=3,
    batch_size=64,
    augment=Augment(crop="resized", crop_scale=(0.5, 1.0), hflip=0.0, randaugment=POLICY, erase=0.25),
    optim=Optim(lr=3e-3, warmup_epochs=0.5),
)


class StopAt(Callback):
    """Behaves like a user who presses Ctrl-C in a given step of the run with so many steps per epoch."""

    def __init__(self, step, steps):
        self.at, self.steps = step, steps

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if steps == self.steps and epoch * steps + step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


class Sayings(Callback):
    def __init__(self):
        self.lines = []

    def log(self, message):
        self.lines.append(message)


def assert_same_run(a: Path, b: Path):
    one, other = (load_file(run / "last" / "model.safetensors") for run in (a, b))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert (a / "metrics.jsonl").read_text() == (b / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def annotator(tmp_path_factory):
    return train(ANNOTATOR, tmp_path_factory.mktemp("runs") / "annotator")


@pytest.fixture(scope="module")
def labels(annotator, tmp_path_factory):
    recorder = Recorder()
    maps = vitling.relabel(annotator, "digits", tmp_path_factory.mktemp("maps") / "digits", size=32, callback=recorder)
    assert maps.header.grid == (4, 4)
    assert recorder.messages[0].startswith("1,438 label maps of 4 x 4 cells with 5 of 10 classes: 345 KB in ")
    return vitling.relabel(annotator, "digits", maps.folder.parent / "own_size")


@pytest.fixture(scope="module")
def student(labels):
    return override(STUDENT, {"method_args.labels": str(labels.folder)})


@pytest.fixture(scope="module")
def trained(student, tmp_path_factory):
    return train(student, tmp_path_factory.mktemp("runs") / "student")


def test_relabel_then_train_then_evaluate(annotator, labels, trained):
    assert annotator.info["best"]["val_top1"] > 0.8
    records = trained.metrics()
    for key in ("train_loss", "train_cls_label", "train_token_labels"):
        assert records[-1][key] < records[0][key]
    assert vitling.evaluate(trained).top1 > 0.25  # chance is 0.1
    assert trained.load_model()(torch.zeros(1, 1, 16, 16)).shape == (1, 10)


@pytest.mark.parametrize("step", [7, 20])  # in the middle, and at the end of the first epoch
def test_a_resumed_run_repeats_the_uninterrupted_one(student, trained, tmp_path, step):
    with pytest.raises(Interrupted):
        train(student, tmp_path / "run", callback=StopAt(step, 20))
    train(student, tmp_path / "run")
    assert_same_run(tmp_path / "run", trained.path)


@pytest.mark.parametrize(
    ("model", "model_args"),
    [
        ("dhvt_test", {}),
        ("t2t_vit_test", {}),
        ("boot_vit_test", {}),
        ("vit_tiny_patch16_224", dict(patch_size=4, embed_dim=24, depth=2, num_heads=2)),
        ("lvvit_test", dict(return_dense=False)),
    ],
)
def test_other_families_learn_through_a_dense_head_that_is_not_saved(student, tmp_path, model, model_args):
    mild = Augment(crop="pad", hflip=0.0)
    recipe = replace(student, model=model, model_args=model_args, epochs=3, fraction=0.5, augment=mild)
    run = train(recipe, tmp_path / "run")
    records = run.metrics()
    assert records[-1]["train_token_labels"] < records[0]["train_token_labels"]
    assert not any("dense_head" in key for key in load_file(run.path / "best" / "model.safetensors"))
    assert run.load_model()(torch.zeros(1, 1, 16, 16)).shape == (1, 10)


def test_an_annotator_may_be_named_and_its_maps_stay_in_the_run(annotator, trained, student, tmp_path):
    recipe = replace(student, method_args=dict(annotator=str(annotator.path)))
    run = train(recipe, tmp_path / "run")
    assert (run.path / "labels" / "maps.json").exists()
    assert_same_run(run.path, trained.path)


def test_one_command_trains_the_annotator_too_and_resumes_inside_it(student, tmp_path):
    arguments = dict(relabel="auto", annotator_epochs=3)
    recipe = replace(student, method_args=arguments, fraction=0.1, epochs=2, batch_size=32)
    heard = Sayings()
    train(recipe, tmp_path / "whole", callback=heard)
    assert "training a small CNN that will label the tokens" in heard.lines
    kept = vitling.load_run(tmp_path / "whole" / "annotator")
    assert (kept.recipe.seed, kept.recipe.epochs) == (recipe.seed, 3)
    assert kept.info["data"]["train_images"] == vitling.load_run(tmp_path / "whole").info["data"]["train_images"]
    with pytest.raises(Interrupted, match="annotator at step 3"):
        train(recipe, tmp_path / "parts", callback=StopAt(3, 4))
    assert not (tmp_path / "parts" / "labels").exists()
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_the_annotator_never_sees_the_validation_split(student):
    from vitling.data.pipeline.reading import Reading
    from vitling.data.pipeline.training_data import open_recipe_data, split_training
    from vitling.methods.token_labeling.method import annotator_recipe

    for recipe in (student, replace(student, folds=3, fold=1), replace(student, fraction=0.3, seed=4)):
        data = open_recipe_data(recipe, Reading())
        own, held_out = split_training(data, recipe)
        seen, _ = split_training(data, annotator_recipe(replace(recipe, img_size=16)))
        assert np.array_equal(seen.rows, own.rows)
        assert not set(seen.rows) & set(held_out.rows)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "token labeling needs labels: give one of"),
        ({"method_args.labels": "truth", "method_args.relabel": "auto"}, "token labeling needs labels: give one of"),
        ({"method_args.relabel": "yes"}, "method_args.relabel=yes is not one of auto"),
        ({"method_args.maps": "folder"}, "method_args.maps=folder must be a LabelMaps"),
        ({"method_args.label": "truth"}, r"no argument 'method_args.label'. Did you mean labels"),
        ({"method_args.labels": "nowhere"}, "no label maps in nowhere"),
        ({"method_args.annotator": "nobody"}, "no model at nobody; give a run"),
        (
            {"method_args.labels": "truth", "method_args.annotator_epochs": 3},
            "annotator_epochs=3 is for method_args.relabel=auto",
        ),
        ({"method_args.relabel": "auto", "method_args.annotator_epochs": 0}, "annotator_epochs=0 .* at least 1"),
        ({"method_args.labels": "truth", "model": "resnet18"}, "ResNet has no tokens to label"),
    ],
)
def test_bad_settings_are_refused_before_training(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        train(override(STUDENT, settings), tmp_path / "run")


def test_maps_of_other_data_are_refused(labels, student, tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images * 15).astype(np.uint8)[:1438]
    np.savez(tmp_path / "other.npz", train_images=images, train_labels=digits.target[:1438])
    with pytest.raises(UserError, match="are of other images than other"):
        train(replace(student, data=str(tmp_path / "other.npz")), tmp_path / "run")
    with pytest.raises(UserError, match="labels and pixels would not match"):
        train(replace(student, fit="pad"), tmp_path / "run")


def test_the_command_line_from_annotator_to_evaluation(annotator, tmp_path):
    def vitling_command(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "vitling", *map(str, arguments)], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = vitling_command("relabel", annotator.path, "digits", "--out", "maps")
    assert "1,438 label maps of 2 x 2 cells with 5 of 10 classes: 86.3 KB in maps" in told
    vitling.recipes.save_recipe(replace(STUDENT, epochs=2), tmp_path / "recipe.yaml")
    arguments = ["--recipe", "recipe.yaml", "method_args.labels=maps", "--out", "run"]
    vitling_command("train", "digits", *arguments)
    assert json.loads(vitling_command("evaluate", "run", "--json"))["top1"] > 0.15
    wrong = [sys.executable, "-m", "vitling", "relabel", "run", "digits", "--size", "big"]
    done = subprocess.run(wrong, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "error: --size 'big' is not an image size; write 64, or 64x96 for height x width.\n",
    )


@pytest.mark.skipif(not FLOWERS.exists(), reason="needs the photographs in ../shared/data/flowers10")
def test_photographs_of_many_sizes_are_relabelled_learnt_and_evaluated(tmp_path):
    augment = Augment(crop="resized", crop_scale=(0.35, 1.0), hflip=0.5)
    look = dict(data=str(FLOWERS), img_size=32, train_size=40, augment=augment)
    cnn = train(replace(ANNOTATOR, **look, epochs=4), tmp_path / "cnn")
    maps = vitling.relabel(cnn, str(FLOWERS), tmp_path / "maps", size=48)
    assert maps.header.grid == (6, 6)
    look["augment"] = replace(augment, randaugment=POLICY, erase=0.25)
    run = train(replace(STUDENT, **look, epochs=6, method_args=dict(labels=str(maps.folder))), tmp_path / "vit")
    records = run.metrics()
    assert records[-1]["train_loss"] < records[0]["train_loss"]
    assert vitling.evaluate(run).top1 > 0.15
