"""A run, an exported folder or a study that is corrupted: every command gives the correct answer or one line, never a traceback.

Each file of a real run is corrupted in every way of damage.py. All of it takes many minutes, so the tests take a seeded part; VITLING_DAMAGE=1
takes everything.
"""

import hashlib
import json
import os
import random
import shutil
import signal
from pathlib import Path

import damage
import numpy as np
import pytest
import torch
from command import call
from PIL import Image

import vitling
from vitling.callbacks import Callback
from vitling.recipes import Augment, Optim, Recipe, save_recipe
from vitling.training.signals import Interrupted

pytestmark = pytest.mark.slow

SHARE = float(os.environ.get("VITLING_DAMAGE", "0.02"))  # of the damages of single values
CHEAP = ("evaluate", "predict", "calibrated", "export")
DEAR_ONES = ("cut", "an empty group")  # damages that the slower commands meet too, unless all are asked for
FILES = {
    "recipe.yaml": "yaml",
    "run.json": "json",
    "metrics.jsonl": "json",
    "timing.jsonl": "json",
    "gradients.jsonl": "json",
    "evaluation-test.json": "json",
    "calibration.json": "json",
    "best/config.json": "json",
    "best/model.safetensors": "weights",
    "last/config.json": "json",
    "last/model.safetensors": "weights",
    "checkpoint/manifest.json": "json",
}


class StopAt(Callback):
    """Behaves like a user who presses Ctrl-C in a given step."""

    def __init__(self, step):
        self.at = step

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if epoch * steps + step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, a recipe, a finished run of it that was evaluated, one that was interrupted, an exported folder, a study, and an image."""
    place = tmp_path_factory.mktemp("damaged")
    rng = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 32), ("val", 8), ("test", 8)):
        labels = np.arange(n) % 2
        arrays[f"{split}_images"] = (rng.integers(0, 100, (n, 8, 8, 3)) + 100 * labels[:, None, None, None]).astype(
            np.uint8
        )
        arrays[f"{split}_labels"] = labels
    np.savez(place / "data.npz", **arrays, class_names=np.array(["cat", "dog"]))
    Image.fromarray(arrays["test_images"][1]).save(place / "image.png")
    recipe = Recipe(
        model="vit_tiny_patch16_224",
        model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
        data=str(place / "data.npz"),
        epochs=3,
        batch_size=8,
        augment=Augment(crop="none"),
        optim=Optim(lr=2e-3, warmup_epochs=1),
        seed=3,
    )
    save_recipe(recipe, place / "r.yaml")
    assert succeeds(place, "train", place / "data.npz", "--recipe", place / "r.yaml", "--out", place / "run")
    assert succeeds(place, "evaluate", place / "run")
    assert succeeds(place, "export", place / "run", "--to", "timm", "--out", place / "folder")
    with pytest.raises(Interrupted):
        vitling.train(recipe, place / "stopped", callback=StopAt(9))
    assert succeeds(place, "study", f"one: {place / 'r.yaml'}", "--seeds", "1", "--out", place / "study")
    return place


def succeeds(place, *arguments) -> bool:
    code, out, err = call(*arguments, "--quiet")
    assert code == 0, out + err
    return True


def answer(command: str, place: Path, target: Path) -> dict | list | str | None:
    """What a command answers, as far as it must not depend on damage; None where it ends with one line and code 2."""
    arguments = {
        "evaluate": ("evaluate", target, "--json"),
        "predict": ("predict", target, place / "image.png", "--raw-probabilities", "--json"),
        "calibrated": ("predict", target, place / "image.png", "--json"),
        "diagnose": ("diagnose", target, "--images", "8", "--quiet"),
        "export": ("export", target, "--to", "timm", "--out", target / "exported", "--json"),
        "train": ("train", place / "data.npz", "--recipe", place / "r.yaml", "--out", target, "--quiet"),
        "study": ("study", f"one: {place / 'r.yaml'}", "--seeds", "1", "--out", target, "--json"),
    }[command]
    code, out, err = call(*arguments)
    if code == 2:
        lines = err.strip().splitlines()
        assert len(lines) == 1, err
        assert lines[0].startswith("error: "), err
        return None
    assert code in (0, 1), (code, out, err)
    if command == "evaluate":
        return {key: json.loads(out)[key] for key in ("top1", "confusion", "class_names", "correct", "images")}
    if command in ("predict", "calibrated"):
        return [(row["classes"], row["probabilities"]) for row in json.loads(out)]
    if command == "export":
        return json.loads(out)["metadata"] | {"temperature": None}
    if command == "study":
        return [row["scores"] for row in json.loads(out)["rows"]]
    return "done"


COMMANDS = ("evaluate", "predict", "calibrated", "diagnose", "export", "train")


@pytest.fixture(scope="module")
def answers(place):
    """What the commands answer on what is whole."""
    whole = shutil.copytree(place / "run", place / "whole")
    return {command: answer(command, place, whole) for command in COMMANDS}


def damages_of(path: Path, kind: str, seed: int) -> list:
    """All damages of a file as a whole, and a seeded part of those of its values."""
    found = list(damage.BYTES.items()) + ([] if kind == "weights" else list(damage.TEXTS.items()))
    values = [] if kind == "weights" else list(damage.of_values(path))
    return found + random.Random(seed).sample(values, round(SHARE * len(values)))


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_of_a_run_gives_the_correct_answer_or_one_line(place, answers, tmp_path, file):
    for name, change in damages_of(place / "run" / file, FILES[file], seed=len(file)):
        target = shutil.copytree(place / "run", tmp_path / "run")
        change(target / file)
        for command in COMMANDS if name in DEAR_ONES or SHARE == 1 else CHEAP:
            found = answer(command, place, target)
            if command == "calibrated" and file == "calibration.json":
                continue  # it is fitted again, or cannot be kept
            assert found in (None, answers[command]), (file, name, command, found)
        shutil.rmtree(target)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "README.md"])
def test_a_damaged_file_of_an_exported_folder_gives_the_correct_answer_or_one_line(place, answers, tmp_path, file):
    kind = "json" if file == "config.json" else "weights"
    for name, change in damages_of(place / "folder" / file, kind, seed=1):
        target = shutil.copytree(place / "folder", tmp_path / "folder")
        change(target / file)
        found = answer("predict", place, target)
        assert found in (None, answers["predict"]), (file, name, found)
        shutil.rmtree(target)


RESUMED = [file for file in FILES if not file.startswith(("last", "evaluation", "calibration"))]


@pytest.mark.parametrize("file", RESUMED)
def test_a_damaged_file_of_an_interrupted_run_lets_it_resume_to_the_same_end_or_says_why_not(place, tmp_path, file):
    expected = [{k: v for k, v in record.items() if k != "lr"} for record in vitling.load_run(place / "run").metrics()]
    for name, change in damages_of(place / "stopped" / file, FILES[file], seed=2):
        target = shutil.copytree(place / "stopped", tmp_path / "run")
        change(target / file)
        ended = answer("train", place, target)
        if ended and file != "metrics.jsonl" and vitling.load_run(target).finished:
            records = [{k: v for k, v in record.items() if k != "lr"} for record in vitling.load_run(target).metrics()]
            assert records == expected, (file, name)
        shutil.rmtree(target)


def craft(target: Path, state) -> None:
    """A checkpoint of a stranger, with a checksum that fits."""
    manifest = target / "checkpoint" / "manifest.json"
    entry = json.loads(manifest.read_text())[-1]
    path = target / "checkpoint" / entry["file"]
    torch.save(state, path)
    manifest.write_text(json.dumps([{**entry, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}]))


def test_a_crafted_checkpoint_is_refused_in_one_line(place, tmp_path):
    entry = json.loads((place / "stopped" / "checkpoint" / "manifest.json").read_text())[-1]
    whole = torch.load(place / "stopped" / "checkpoint" / entry["file"], weights_only=True)
    crafted = [
        [],
        {},
        3,
        {**whole, "method": {}},
        {**whole, "optimizer": {}},
        {**whole, "course": {"length": 1, "turns": []}},
    ]
    crafted += [{**whole, "method": {name: x[..., :1] for name, x in whole["method"].items()}}]
    crafted += [{**whole, "logs": {"../outside.txt": 0}}, {**whole, "logs": {"metrics.jsonl": -1}}]
    crafted += [
        {**whole, key: value}
        for key in whole
        for value in ("text", -1, float("nan"), [[]])
        if key not in ("recipe", "data")
    ]
    # These alone may be missing: a run of 0.2 has none.
    needed = whole.keys() - {"souped", "best_part"}
    crafted += [{name: value for name, value in whole.items() if name != key} for key in sorted(needed)]
    (tmp_path / "outside.txt").write_text("mine")
    for number, state in enumerate(crafted):
        target = shutil.copytree(place / "stopped", tmp_path / "run")
        craft(target, state)
        assert answer("train", place, target) is None, number
        shutil.rmtree(target)
    assert (tmp_path / "outside.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "file", ["/dev/zero", "../../outside.pt", "../run.json", "pipe.pt", "step-1.pt/../../run.json", "a\0b"]
)
def test_a_manifest_names_nothing_but_checkpoints_of_its_run(place, tmp_path, file):
    target = shutil.copytree(place / "stopped", tmp_path / "run")
    os.mkfifo(target / "checkpoint" / "pipe.pt")
    (target / "checkpoint" / "manifest.json").write_text(json.dumps([{"file": file, "step": 1, "sha256": "0" * 64}]))
    assert answer("train", place, target) is None


STUDY = [
    "study.json",
    *(
        f"runs/one/fraction-1/seed-0/{file}"
        for file in ("run.json", "timing.jsonl", "metrics.jsonl", "evaluation-test.json")
    ),
]


@pytest.mark.parametrize("file", STUDY)
def test_a_damaged_file_of_a_study_gives_the_same_scores_or_one_line(place, tmp_path, file):
    expected = answer("study", place, shutil.copytree(place / "study", tmp_path / "whole"))
    for name, change in damages_of(place / "study" / file, "json", seed=4):
        target = shutil.copytree(place / "study", tmp_path / "study")
        change(target / file)
        found = answer("study", place, target)
        assert found in (None, expected, [[]]), (file, name, found)  # [[]]: the run failed, and the table says why
        shutil.rmtree(target)
