"""Budgets that are kept, repeated when a run resumes, and extended: `Settings.budget_seconds` and `train_more`."""

import json
import time
from itertools import count

import pytest
import torch
from command import error, start
from safetensors.torch import load_file

import vitling
from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.recipes import Augment, Optim, Recipe
from vitling.training.settings import Settings

pytestmark = pytest.mark.slow

RECIPE = Recipe(
    model="hybrid_vit_test",
    data="digits",
    epochs=10,
    batch_size=64,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(name="muon", lr=0.01, warmup_epochs=1),
    ema_decay=0.9,
)


class Said(Callback):
    def __init__(self):
        self.lines = []

    def log(self, message):
        self.lines.append(message)


class CrashAtStep(Callback):
    """The process dies in a given step, counted over the whole run."""

    def __init__(self, step):
        self.at, self.steps = step, count(1)

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if next(self.steps) == self.at:
            raise SystemExit("the power went")


class SlowAfter(Callback):
    """Another program that takes the machine from a given step on: every step takes so much longer."""

    def __init__(self, step, seconds):
        self.at, self.seconds, self.steps = step, seconds, count(1)

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if next(self.steps) >= self.at:
            time.sleep(self.seconds)


def looks(run) -> list[dict]:
    return [json.loads(line) for line in (run.path / "budget.jsonl").read_text().splitlines()]


def test_a_run_that_is_slowed_down_takes_fewer_steps_and_completes_its_schedule(tmp_path):
    where = Settings(budget_seconds=8.0, began=time.monotonic(), threads=1)
    run = vitling.train(RECIPE, tmp_path / "run", settings=where, callback=SlowAfter(40, 0.05))
    first, *later = looks(run)
    assert later[-1]["end"] < first["end"] / 2
    assert run.info["steps_trained"] == later[-1]["end"]
    assert run.metrics()[-1]["step"] == run.info["steps_trained"]
    assert run.metrics()[-1]["lr"] < 0.1 * max(record["lr"] for record in run.metrics())


def test_a_run_that_dies_repeats_the_decisions_of_its_budget(tmp_path):
    path = tmp_path / "run"
    where = dict(budget_seconds=6.0, threads=1, checkpoint_seconds=0.0)
    slow = SlowAfter(30, 0.02)
    with pytest.raises(SystemExit):
        vitling.train(RECIPE, path, settings=Settings(**{**where, "checkpoint_seconds": 1e6}), callback=CrashAtStep(1))
    with pytest.raises(SystemExit):  # the last checkpoint is that of the step before
        vitling.train(RECIPE, path, settings=Settings(**where), callback=CrashAtStep(60))
    known = looks(vitling.load_run(path))
    run = vitling.train(RECIPE, path, settings=Settings(**where), callback=slow)
    after = looks(run)
    assert after[: len(known)] == known
    assert len(after) > len(known)
    assert [look["step"] for look in after] == sorted({look["step"] for look in after})
    assert run.finished


def test_a_finished_run_is_trained_further_and_keeps_both_histories(tmp_path):
    path = tmp_path / "run"
    run = vitling.train(RECIPE, path, settings=Settings(threads=1))
    vitling.evaluate(run, split="val")
    before, records, weights = run.info, run.metrics(), run.weights_digest("best")
    run = vitling.train_more(path, 3.0, settings=Settings(threads=1))
    after = run.info
    assert run.finished
    assert after["parts"] == [
        {**{name: before[name] for name in after["parts"][0] if name != "weights"}, "weights": weights}
    ]
    replaced = run.weights_digest("best") != weights  # a number of these weights is no number of those
    assert (path / "evaluation-val.json").exists() is not replaced
    assert (path / "part-1-evaluation-val.json").exists() is replaced
    assert after["parts"][0]["steps_trained"] < after["steps_trained"]
    assert after["more_seconds"] == [3.0]
    assert after["best"]["val_top1"] >= before["best"]["val_top1"]
    assert run.metrics()[: len(records)] == records
    assert {record["part"] for record in run.metrics()[len(records) :]} == {2}
    assert run.part_recipe(2).optim.lr == RECIPE.optim.lr / 2
    assert run.recipe == vitling.load_run(path).part_recipe(1)
    said = Said()
    run.update(wall_seconds=0.4)
    run = vitling.train_more(path, 2.0, settings=Settings(threads=1), callback=said)
    assert [line for line in said.lines if "may be a larger network" in line]
    assert run.info["more_seconds"] == [3.0, 2.0]
    assert run.part_recipe(3).optim.lr == RECIPE.optim.lr / 2
    peak = max(record["lr"] for record in run.metrics() if record.get("part") == 3)
    assert 0.1 * RECIPE.optim.lr < peak <= RECIPE.optim.lr / 2


@pytest.mark.parametrize("step", [1, 25])
def test_a_further_part_that_dies_resumes_as_itself(tmp_path, step):
    path = tmp_path / "run"
    vitling.train(RECIPE, path, settings=Settings(threads=1))
    weights = load_file(path / "last" / "model.safetensors")
    where = Settings(threads=1, checkpoint_seconds=0.0)
    with pytest.raises(SystemExit):
        vitling.train_more(path, 10.0, settings=where, callback=CrashAtStep(step))
    with pytest.raises(UserError, match=r"was to be trained for 10 s more"):
        vitling.train_more(path, 90.0, settings=where)
    run = vitling.train_more(path, 10.0, settings=Settings(threads=1))
    assert run.finished
    assert run.info["more_seconds"] == [10.0]
    steps = [record["step"] for record in run.metrics()]
    assert steps == sorted(set(steps))
    changed = load_file(path / "last" / "model.safetensors")
    assert any(not torch.equal(changed[name], weights[name]) for name in weights)


def test_a_further_part_that_cannot_begin_leaves_the_run_finished(tmp_path):
    path = tmp_path / "run"
    before = vitling.train(RECIPE, path, settings=Settings(threads=1)).info
    with pytest.raises(UserError, match=r"of the budget of 0\.01 s, less than"):
        vitling.train_more(path, 0.01, settings=Settings(threads=1))
    after = vitling.load_run(path).info
    assert after.pop("more_seconds") == after.pop("parts") == []
    assert after == before


def test_what_is_not_finished_is_not_trained_further(tmp_path):
    with pytest.raises(SystemExit):
        vitling.train(
            RECIPE,
            tmp_path / "run",
            settings=Settings(threads=1, checkpoint_seconds=0.0),
            callback=CrashAtStep(5),
        )
    with pytest.raises(UserError, match=r"is not finished; repeat the command"):
        vitling.train_more(tmp_path / "run", 5.0)
    with pytest.raises(UserError, match=r"no run at"):
        vitling.train_more(tmp_path / "nothing", 5.0)


def test_the_command_trains_a_finished_run_further(tmp_path):
    run = tmp_path / "run"
    train = ["train", "digits", "--recipe", "digits/vit_nano", "epochs=1", "optim.warmup_epochs=0", "--out", run]
    assert start(*train).returncode == 0
    shown = start("train", "digits", "--out", run, "--more", "20s")
    assert shown.returncode == 0, shown.stderr
    assert vitling.load_run(run).info["more_seconds"] == [20.0]
    assert "epochs are done" in shown.stdout
    assert "was trained on" in error("train", tmp_path, "--out", run, "--more", "8s")
    assert "say which, with --out" in error("train", "digits", "--more", "8s")
    assert "leave recipe, settings and --budget out" in error(
        "train", "digits", "epochs=3", "--out", run, "--more", "8s"
    )
    assert "--more 'soon' is not a duration" in error("train", "digits", "--out", run, "--more", "soon")
