"""What a resumed run needs is there and unchanged, or it says so before it trains."""

import multiprocessing
import os
import shutil
import signal

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

import vitling
from vitling.callbacks import Callback
from vitling.data.pipeline import contents
from vitling.data.pipeline.reading import Reading
from vitling.errors import UserError
from vitling.files import temporary_place
from vitling.recipes import Optim, Recipe
from vitling.runs.run import LOCK
from vitling.training.beginning import train, train_more
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

pytestmark = pytest.mark.slow

RECIPE = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    data="digits",
    epochs=3,
    fraction=0.3,
    batch_size=32,
    optim=Optim(warmup_epochs=0),
)


class StopAt(Callback):
    """Behaves like a user who presses Ctrl-C in a given step."""

    def __init__(self, step):
        self.at = step

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if epoch * steps + step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


class NoStep(Callback):
    """Nothing may be trained."""

    def on_start(self, facts):
        raise AssertionError("it trains")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "interrupted"
    with pytest.raises(Interrupted):
        train(RECIPE, path, callback=StopAt(20))  # in the second epoch
    assert len(vitling.load_run(path).metrics()) == 1
    return path


def refusal(recipe, path, **options) -> str:
    with pytest.raises(UserError) as caught:
        train(recipe, path, callback=NoStep(), **options)
    assert "\n" not in str(caught.value)
    assert "restore" in str(caught.value).lower()
    assert any(way in str(caught.value) for way in ("train into another folder", "make it again"))
    return str(caught.value)


def shorten(path):
    path.write_bytes(path.read_bytes()[:-7])


def change(path):
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))


def change_seed(path):
    text = path.read_text()
    assert "seed: 0\n" in text
    path.write_text(text.replace("seed: 0\n", "seed: 3\n"))


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("metrics.jsonl", os.remove, "metrics.jsonl is missing or shorter"),
        ("metrics.jsonl", shorten, "metrics.jsonl is missing or shorter"),
        ("metrics.jsonl", change, "metrics.jsonl has changed"),
        ("timing.jsonl", os.remove, "timing.jsonl is missing or shorter"),
        ("gradients.jsonl", shorten, "gradients.jsonl is missing or shorter"),
        ("best", shutil.rmtree, "the best weights so far are lost"),
        ("best/model.safetensors", os.remove, "the best weights so far are lost"),
        ("best/model.safetensors", shorten, "the best weights so far are lost"),
        ("best/config.json", os.remove, "the best weights so far are lost"),
        ("best/config.json", shorten, "the best weights so far are lost"),
        ("recipe.yaml", os.remove, "recipe.yaml is missing"),
        ("recipe.yaml", change_seed, "recipe.yaml is of another recipe"),
    ],
)
def test_what_is_missing_shortened_or_changed_is_said_before_training(interrupted, tmp_path, file, damage, message):
    shutil.copytree(interrupted, tmp_path / "run")
    damage(tmp_path / "run" / file)
    left = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert message in refusal(RECIPE, tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == left


def test_a_recipe_that_was_shortened_before_the_first_checkpoint_is_noticed_too(interrupted, tmp_path):
    shutil.copytree(interrupted, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    lines = (tmp_path / "run" / "recipe.yaml").read_text().splitlines()
    (tmp_path / "run" / "recipe.yaml").write_text("\n".join(lines[:8]))
    assert "recipe.yaml is corrupted: it lacks" in refusal(RECIPE, tmp_path / "run")


@pytest.mark.parametrize(
    ("lost", "message"),
    [("metrics.jsonl", "metrics.jsonl is missing or shorter"), ("checkpoint", "no whole state to train further from")],
)
def test_a_finished_run_is_whole_or_not_trained_further_and_stays_finished(interrupted, tmp_path, lost, message):
    shutil.copytree(interrupted, tmp_path / "run")
    train(RECIPE, tmp_path / "run")
    os.rename(tmp_path / "run" / lost, tmp_path / "lost")
    with pytest.raises(UserError, match=message):
        train_more(tmp_path / "run", 5.0, callback=NoStep())
    assert vitling.load_run(tmp_path / "run").finished


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_anew(interrupted, tmp_path):
    class Sayings(Callback):
        def __init__(self):
            self.lines = []

        def log(self, message):
            self.lines.append(message)

    shutil.copytree(interrupted, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    heard = Sayings()
    assert train(RECIPE, tmp_path / "run", callback=heard).finished
    assert any("is gone; the run begins anew" in line for line in heard.lines)


def test_equal_runs_are_equal_files(interrupted, tmp_path):
    shutil.copytree(interrupted, tmp_path / "resumed")
    train(RECIPE, tmp_path / "resumed")
    train(RECIPE, tmp_path / "whole")
    for file in ("metrics.jsonl", "gradients.jsonl", "recipe.yaml"):
        assert (tmp_path / "resumed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    for file in ("best/model.safetensors", "best/config.json", "last/model.safetensors", "last/config.json"):
        assert (tmp_path / "resumed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_what_a_killed_process_left_half_written_is_removed_by_the_next_one(interrupted, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(interrupted, run)
    left = [
        temporary_place(run / name) for name in ("run.json", "best/model.safetensors", "checkpoint/step-000000021.pt")
    ]
    left.append(run / "first" / LOCK)  # of a nested run whose process was killed as well
    left.append(temporary_place(run / "first" / "run.json"))
    (run / "first").mkdir()
    for path in left:
        path.write_bytes(b"half")
    (run / ".notes").write_text("mine")
    assert train(RECIPE, run).finished
    assert not [path for path in left if path.exists()]
    assert (run / ".notes").read_text() == "mine"


class RemoveAt(Callback):
    """Removes the folder of the run in a given step."""

    def __init__(self, path, step):
        self.path, self.at = path, step

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if epoch * steps + step == self.at:
            shutil.rmtree(self.path)


@pytest.mark.parametrize("seconds", [0, 60])  # what is written next: a checkpoint, or a line of a log
def test_a_run_whose_folder_was_removed_is_one_line_and_never_half_a_run(tmp_path, seconds):
    run, where = tmp_path / "run", Settings(checkpoint_seconds=seconds)
    with pytest.raises(UserError, match="was removed or moved while it was written to; the same command begins anew"):
        train(RECIPE, run, settings=where, callback=RemoveAt(run, 20))
    assert not run.exists()
    assert len(train(RECIPE, run).metrics()) == RECIPE.epochs


# -- the data ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    """Bitmaps, whose sizes do not depend on what they show."""
    rng = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(100):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / "data" / name / f"{i}.bmp")
    return tmp_path / "data"


READINGS = {"resident": Reading(), "streamed": Reading(memory_gb=0, workers=0)}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("name", ["ant/17.bmp", "bee/99.bmp"])
def test_changed_pixels_of_equal_size_are_noticed(pictures, tmp_path, reading, name):
    recipe = vitling.override(RECIPE, {"data": str(pictures), "fraction": 1.0})
    where = Settings(reading=READINGS[reading])
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "run", settings=where, callback=StopAt(3))
    path = pictures / name
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # one bit of one channel of one pixel
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "has changed since" in refusal(recipe, tmp_path / "run", settings=where)
    path.write_bytes(content)
    assert train(recipe, tmp_path / "run", settings=where).finished


def test_data_that_was_copied_or_is_read_in_another_way_resumes(pictures, tmp_path):
    recipe = vitling.override(RECIPE, {"data": str(pictures), "fraction": 1.0})
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "run", settings=Settings(reading=READINGS["resident"]), callback=StopAt(3))
    for path in pictures.rglob("*.bmp"):
        os.utime(path, (1, 1))
    assert train(recipe, tmp_path / "run", settings=Settings(reading=READINGS["streamed"])).finished


def test_of_many_files_an_even_sample_is_compared_and_of_decoded_ones_every_pixel(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "SAMPLE_BYTES", 5000)  # twenty of the bitmaps
    recipe = vitling.override(RECIPE, {"data": str(pictures), "fraction": 1.0})
    changed = sorted(pictures.rglob("*.bmp"))[3]
    content = changed.read_bytes()
    for name in READINGS:
        where = Settings(reading=READINGS[name])
        with pytest.raises(Interrupted):
            train(recipe, tmp_path / name, settings=where, callback=StopAt(3))
        changed.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        if name == "resident":
            assert "has changed since" in refusal(recipe, tmp_path / name, settings=where)
        else:
            assert train(recipe, tmp_path / name, settings=where).finished
        changed.write_bytes(content)


# -- a reading process that dies -----------------------------------------------------------------------------------


class KillReader(Callback):
    """Kills the processes that read, as the system does when memory runs out."""

    def __init__(self, step):
        self.at = step

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if epoch * steps + step == self.at:
            for reader in multiprocessing.active_children():
                os.kill(reader.pid, signal.SIGKILL)


@pytest.mark.parametrize("step", [1, 14, 20])  # in the first epoch, at its end, in the second
def test_a_reading_process_that_is_killed_is_one_line_and_the_run_resumes(tmp_path, step):
    where = Settings(reading=Reading(memory_gb=0, workers=2), checkpoint_seconds=0)
    with pytest.raises(UserError) as caught:
        train(RECIPE, tmp_path / "run", settings=where, callback=KillReader(step))
    assert str(caught.value).startswith("a process that reads images died")
    assert "\n" not in str(caught.value)
    train(RECIPE, tmp_path / "run", settings=where)
    train(RECIPE, tmp_path / "whole")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()
    found, wanted = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("run", "whole"))
    assert all(found[key].equal(wanted[key]) for key in wanted)
