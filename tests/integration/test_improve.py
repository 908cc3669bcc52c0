"""Improving end to end on digits: what is trained, what stays closed, and that a killed one goes on."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from command import call, error
from page_checks import check_page, needs_chromium

import vitling
from vitling.callbacks import Callback, ImproveCallback
from vitling.data.sources.dataset import open_dataset
from vitling.errors import UserError
from vitling.recipes import Augment, Optim, Recipe, load_recipe
from vitling.runs.run import Run
from vitling.training.beginning import train
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

pytestmark = pytest.mark.slow

# Far too short, with far too low a rate: nearly anything is better.
POOR = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    epochs=1,
    batch_size=64,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(lr=1e-4, warmup_epochs=0),
)
BUDGET = 60.0
REPORT = "report.html"
ONE_THREAD = dict(threads=1, checkpoint_seconds=1.0)


@pytest.fixture(scope="module")
def poor(tmp_path_factory):
    return vitling.train(POOR, tmp_path_factory.mktemp("runs") / "poor", settings=Settings(threads=1))


@pytest.fixture(scope="module")
def improved(poor):
    """Everything of the run itself stays as it was; only its page is written again."""
    before = files_of(poor)
    assert "improve.html" not in before.pop(REPORT).decode()
    result = vitling.improve(poor.path, BUDGET, settings=Settings(**ONE_THREAD))
    after = files_of(poor)
    del after[REPORT]
    assert after == before
    return result


def files_of(run: Run) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_the_page_of_the_run_that_was_improved_is_written_again_with_what_came_of_it(poor, improved):
    page = (poor.path / REPORT).read_text()
    assert f'href="../{improved.folder.name}/improve.html"' in page
    assert improved.sentence[1:] in page


@needs_chromium
def test_its_page_and_that_of_the_better_run_lead_to_each_other_and_can_be_read(improved, tmp_path):
    assert 'href="winner/report.html"' in (improved.folder / "improve.html").read_text()
    assert 'href="../improve.html"' in (improved.folder / "winner" / "report.html").read_text()
    check_page(improved.folder / "improve.html", tmp_path)


def test_a_poor_run_is_improved_and_the_sentence_says_by_how_much(improved):
    record = improved.record
    assert improved.better
    assert improved.sentence.startswith(f"{record['winner']} is better by ")
    assert improved.sentence.endswith(
        f"points on {record['holdout']['confirm']:,} images that took no part in the choice"
    )
    found = record["confirmation"]
    assert found["difference"] == pytest.approx(100 * (found["winner_top1"] - found["start_top1"]))
    assert found["low"] < found["difference"] < found["high"]


def test_no_run_has_opened_the_images_that_confirm(improved):
    folder = improved.folder
    rows = json.loads((folder / "parts.json").read_text())["parts"]
    everything = len(open_dataset("digits").splits["train"])
    used = {row for part in rows.values() for split in ("train", "val") for row in part[split]["rows"]}
    assert everything - len(used) == improved.record["holdout"]["confirm"]
    runs = [path.parent for path in folder.rglob("run.json")]
    assert len(runs) >= 4
    for path in runs:
        assert Run(path).recipe.data.startswith(("part:trial:", "part:final:"))
        assert "test_looks" not in Run(path).info


def test_each_round_has_equal_time_and_the_runs_own_recipe(improved):
    rounds = improved.rounds
    baseline = next(iter(improved.candidates))
    for number, entry in enumerate(rounds):
        assert baseline in entry["scores"]
        runs = [Run(path.parent) for path in (improved.folder / f"round-{number + 1}").rglob("run.json")]
        assert {run.info["asked"]["budget"] for run in runs} == {f"{entry['seconds']:g}s"}
        assert {run.recipe.seed for run in runs} == {0}
    assert len(rounds[-1]["names"]) == 2


def test_what_is_left_out_is_named_with_its_reason(improved):
    left = {entry["name"]: entry["reason"] for entry in improved.record["omitted"]}
    assert left["weaker augmentation"] == "there is none"
    assert "one block" in left["smaller"]
    assert all(left.values())


def test_the_winner_is_a_run_and_its_recipe_is_of_the_whole_data(improved):
    recipe = load_recipe(improved.folder / "recipe.yaml")
    assert recipe.data == "digits"
    assert recipe.val_fraction == POOR.val_fraction
    assert improved.winner.finished
    assert vitling.evaluate(improved.winner).images == len(open_dataset("digits").splits["test"])


def test_the_page_shows_the_tree_and_is_whole(improved):
    page = (improved.folder / "improve.html").read_text()
    assert improved.sentence[1:] in page
    assert "Left out" in page
    assert page.count("<svg") >= 2
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")  # nothing from elsewhere


def test_the_command_finds_it_finished_prints_json_and_ends_with_the_sentence(improved, poor):
    code, out, _ = call("improve", poor.path, "--budget", f"{BUDGET:g}s", "--json")
    assert code == 0
    assert json.loads(out)["sentence"] == improved.sentence
    assert json.loads(out)["better"] is True
    code, out, _ = call("improve", poor.path, "--budget", f"{BUDGET:g}s")
    assert out.strip().splitlines()[-1] == improved.sentence


def test_another_budget_in_the_same_folder_is_refused(improved, poor):
    assert "its budget_seconds is 60.0, not 300.0" in error("improve", poor.path, "--budget", "5m")


class StopIn(ImproveCallback):
    """A user who presses Ctrl-C in the tenth step of a given run."""

    def __init__(self, label):
        self.label = label

    def on_run_start(self, label):
        outer = self

        class Steps(Callback):
            def on_step(self, epoch, step, steps, loss, images_per_second):
                if label == outer.label and epoch * steps + step == 10:
                    os.kill(os.getpid(), signal.SIGINT)

        return Steps()


def finished_runs(folder) -> dict:
    """What the finished runs hold, by their folders."""
    runs = [Run(path.parent) for path in folder.rglob("run.json")]
    return {run.path: (run.info, run.metrics(), run.weights_digest()) for run in runs if run.finished}


def test_an_interrupted_and_then_killed_improvement_goes_on_and_repeats_nothing(poor, tmp_path):
    folder = tmp_path / "out"
    with pytest.raises(Interrupted):
        vitling.improve(poor.path, BUDGET, folder, settings=Settings(**ONE_THREAD), callback=StopIn("longer, seed 0"))
    first, parts = finished_runs(folder), (folder / "parts.json").read_bytes()
    plan = json.loads((folder / "improve.json").read_text())
    assert first.keys() == {folder / "start"}

    command = [
        sys.executable,
        "-m",
        "vitling",
        "improve",
        str(poor.path),
        "--budget",
        f"{BUDGET:g}s",
        "--out",
        str(folder),
    ]
    command += ["--threads", "1", "--checkpoint-seconds", "1", "--quiet"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 240
    while len(finished_runs(folder)) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.5)
    process.kill()
    process.wait()
    second = finished_runs(folder)
    assert second.keys() > first.keys()

    result = vitling.improve(poor.path, BUDGET, folder, settings=Settings(**ONE_THREAD))
    assert result.finished
    assert (folder / "parts.json").read_bytes() == parts
    last = finished_runs(folder)
    assert {path: last[path] for path in second} == second
    for key in ("candidates", "omitted", "bracket", "holdout"):
        assert (
            result.record[key][: len(plan[key])] == plan[key]
            if isinstance(plan[key], list)
            else result.record[key] == plan[key]
        )
    assert result.rounds[0]["seconds"] == plan["rounds"][0]["seconds"]
    assert result.record["spent_seconds"] > plan["rounds"][0]["seconds"]


def test_several_trials_at_a_time_in_processes_of_their_own(poor, tmp_path):
    result = vitling.improve(poor.path, 200.0, tmp_path / "out", jobs=2, settings=Settings(**ONE_THREAD))
    assert result.record["bracket"]["jobs"] == 2
    assert all("scores" in entry for entry in result.rounds)


def test_trials_on_an_engine_keep_their_seconds_there_and_the_winner_is_trained_here(poor, tmp_path):
    on = dict(jobs=2, engine="slurm:cluster=local,time=60")
    result = vitling.improve(poor.path, 100.0, tmp_path / "out", **on, settings=Settings(checkpoint_seconds=1.0))
    trials = [Run(path.parent) for path in result.folder.glob("round-*/runs/**/seed-0/run.json")]
    assert trials
    for trial in trials:
        number = int(trial.path.relative_to(result.folder).parts[0].removeprefix("round-"))
        assert trial.info["asked"]["budget"] == f"{result.rounds[number - 1]['seconds']:g}s"
        assert trial.info["environment"]["threads"] == 1  # theirs, not what this machine would share among two
    assert all(entry["scores"] for entry in result.rounds)
    reasons = [reason for entry in result.rounds for reason in entry["failures"].values()]
    assert all("of the budget of" in reason for reason in reasons), (
        reasons
    )  # too slow for its seconds, and nothing else
    assert result.finished
    assert not list(result.folder.glob("round-*/.vitling-jobs-*"))


def test_data_in_place_of_a_run_is_planned_trained_and_improved(tmp_path):
    result = vitling.improve("digits", 80.0, tmp_path / "out", settings=Settings(**ONE_THREAD))
    start = Run(tmp_path / "out" / "start")
    assert start.info["asked"]["budget"] == "12s"
    assert result.record["start"]["run"] == str(start.path)
    assert result.finished


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN"], "improve needs the time that it may take"),
        (["RUN", "--budget", "soon"], "is not a duration"),
        (["RUN", "--budget", "1s"], "budget_seconds=1.0 is out of range"),
        (["RUN", "epochs=3", "--budget", "1h"], "settings (epochs=3) are for data"),
        (["nowhere", "--budget", "1h"], "unknown dataset 'nowhere'"),
        (["RUN", "--budget", "1h", "--init", "nothing.safetensors"], "no model at nothing.safetensors"),
        (["RUN", "--budget", "1h", "--on", "moon"], "unknown engine 'moon'"),
        (["RUN", "--budget", "1h", "--on", "slurm:time=soon,cluster=local"], "time=soon is not a number of minutes"),
        (["RUN", "--budget", "1h", "--jobs", "0"], "'--jobs'"),
        (["RUN", "--budget", "1h", "--out", "RUN/inside"], "lies in the run that is improved"),
        (["RUN", "--budget", "1h", "--out", "FILE"], "is a file"),
    ],
)
def test_bad_input_is_one_line(poor, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    stand_in = {"RUN": str(poor.path), "RUN/inside": str(poor.path / "inside"), "FILE": str(tmp_path / "file")}
    assert message in error("improve", *(stand_in.get(word, word) for word in arguments))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_budget_without_room_for_a_trial_leaves_nothing_that_a_larger_one_would_be_refused_for(poor, tmp_path):
    with pytest.raises(UserError, match="raise the budget"):
        vitling.improve(poor.path, 20.0, tmp_path / "out", seeds=50, settings=Settings(**ONE_THREAD))
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_not_finished_is_refused(poor, tmp_path):
    class Stop(Callback):
        def on_step(self, *progress):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(POOR, tmp_path / "half", callback=Stop())
    with pytest.raises(UserError, match="is not finished"):
        vitling.improve(tmp_path / "half", 3600, tmp_path / "out")


def test_a_run_that_begins_with_one_on_the_same_images_is_refused(poor, tmp_path):
    run = train(vitling.override(POOR, {"init": str(poor.path)}), tmp_path / "further")
    with pytest.raises(UserError, match="has learnt from the same images"):
        vitling.improve(run.path, 3600, tmp_path / "out")
