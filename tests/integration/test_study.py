"""Studies end to end on digits: what is trained, what is not trained again, and what the table says."""

import json
import math
import os
import re
import signal
import threading
import time
from urllib.parse import unquote

import pytest
from command import call
from page_checks import check_page, needs_chromium

import vitling
from vitling.callbacks import Callback, StudyCallback
from vitling.errors import UserError
from vitling.recipes import Augment, Optim, Recipe, override, save_recipe
from vitling.studies.study import Study, study
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

pytestmark = pytest.mark.slow

SMALL = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    epochs=2,
    batch_size=256,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(lr=3e-3, warmup_epochs=0.5),
)
FAST = override(SMALL, ["optim.lr=1e-2"])
DEEP = override(SMALL, ["model_args.depth=6"])
ONE_THREAD = Settings(threads=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two recipes, two fractions, two seeds."""
    folder = tmp_path_factory.mktemp("studies") / "finished"
    recipes = {"small": SMALL, "fast": FAST}
    return study(recipes, folder, seeds=2, fractions=(0.5, 1.0), settings=ONE_THREAD)


class StopAt(StudyCallback):
    """A user who presses Ctrl-C in a given step of a given run."""

    def __init__(self, label, step):
        self.label, self.step = label, step

    def on_run_start(self, label):
        outer = self

        class Run(Callback):
            def on_step(self, epoch, step, steps, loss, images_per_second):
                if label == outer.label and epoch * steps + step == outer.step:
                    os.kill(os.getpid(), signal.SIGINT)

        return Run()


def test_rows_hold_the_scores_of_their_runs_and_differences_are_paired_by_seed(finished):
    rows = {(row.name, row.fraction): row for row in finished.rows()}
    assert list(rows) == [("small", 0.5), ("fast", 0.5), ("small", 1.0), ("fast", 1.0)]
    reached = {key: 100 * vitling.evaluate(run).top1 for key, run in finished.runs.items()}
    for fraction in (0.5, 1.0):
        small, fast = rows["small", fraction], rows["fast", fraction]
        assert small.scores == [reached["small", fraction, seed] for seed in (0, 1)]
        first, second = (reached["fast", fraction, s] - reached["small", fraction, s] for s in (0, 1))
        assert fast.difference == pytest.approx((first + second) / 2)
        # two values: half their distance times t(0.975, 1) = 12.7062
        assert fast.difference_ci95 == pytest.approx(abs(first - second) / 2 * 12.7062, rel=1e-5)
        assert small.difference == 0
        assert math.isnan(small.difference_ci95)
        assert fast.parameters == sum(p.numel() for p in finished.runs["fast", fraction, 0].load_model().parameters())
        assert fast.epochs == 2
        assert fast.macs > fast.parameters / 10
        assert min(fast.wall_seconds, fast.images_per_second) > 0


def test_the_tables_and_the_page_are_written(finished):
    assert (finished.folder / "table.md").read_text() == finished.to_markdown()
    assert len((finished.folder / "table.csv").read_text().splitlines()) == 5
    assert [row["name"] for row in json.loads(finished.to_json())["rows"]] == ["small", "fast"] * 2
    page = (finished.folder / "study.html").read_text()
    assert page.count("<svg") == 2 + 1 + 2 * 2  # result, data efficiency, learning curves per fraction
    assert "Data efficiency" in page


def test_the_page_leads_to_those_of_its_runs_and_they_lead_back(finished):
    page = (finished.folder / "study.html").read_text()
    ways = re.findall(r'href="(runs/[^"]+)"', page)
    assert len(ways) == len(finished.runs) == len(set(ways))
    for way in ways:
        report = finished.folder / unquote(way)
        assert f'href="{os.path.relpath(finished.folder / "study.html", report.parent)}"' in report.read_text()
        assert "test accuracy" in report.read_text()


@needs_chromium
def test_the_page_is_quiet_fits_its_window_and_can_be_read(finished, tmp_path):
    check_page(finished.folder / "study.html", tmp_path)


def test_finished_runs_are_found_again_and_only_new_ones_are_trained(tmp_path):
    first = study({"small": SMALL}, tmp_path, seeds=1, settings=ONE_THREAD)
    before = (first.runs["small", 1.0, 0].path / "run.json").read_text()
    began = []

    class Count(StudyCallback):
        def on_run_start(self, label):
            began.append(label)
            return Callback()

    second = study({"small": SMALL, "fast": FAST}, tmp_path, seeds=[0], settings=ONE_THREAD, callback=Count())
    assert began == ["fast, seed 0"]
    assert (second.runs["small", 1.0, 0].path / "run.json").read_text() == before
    assert json.loads(before)["test_looks"] == 1
    assert second.rows()[0] == first.rows()[0]
    assert Study(tmp_path).to_markdown() == second.to_markdown()


def test_an_interrupted_study_goes_on_and_ends_as_the_uninterrupted_one(finished, tmp_path):
    arguments = dict(recipes={"small": SMALL, "fast": FAST}, folder=tmp_path, seeds=1, settings=ONE_THREAD)
    with pytest.raises(Interrupted):
        study(**arguments, callback=StopAt("fast, seed 0", step=3))
    assert Study(tmp_path).runs["fast", 1.0, 0].info["status"] == "interrupted"
    resumed = study(**arguments)
    assert [row.scores for row in resumed.rows()] == [row.scores[:1] for row in finished.rows()[2:]]


def test_two_processes_give_the_results_of_one_and_ctrl_c_saves_what_they_do(finished, tmp_path):
    class Impatient(StudyCallback):
        """Presses Ctrl-C when one run has ended and the other one is in the middle."""

        def __init__(self):
            self.waits_for = {"ended", "validated"}

        def happened(self, what):
            waiting, self.waits_for = self.waits_for, self.waits_for - {what}
            if waiting and not self.waits_for:
                os.kill(os.getpid(), signal.SIGINT)

        def on_run_start(self, label):
            run = Callback()
            if label == "long, seed 0":
                run.on_validation = lambda record, timing: self.happened("validated")
            return run

        def on_run_end(self, label, outcome):
            self.happened("ended")

    recipes = {"small": SMALL, "long": override(SMALL, ["epochs=100000"])}
    with pytest.raises(Interrupted, match="the same command resumes them"):
        study(recipes, tmp_path, seeds=1, jobs=2, settings=ONE_THREAD, callback=Impatient())
    stopped = Study(tmp_path)
    assert stopped.rows()[0].scores == finished.rows()[2].scores[:1]
    assert stopped.runs["long", 1.0, 0].info["status"] == "interrupted"
    assert not list(tmp_path.rglob("*.log"))


def test_a_changed_recipe_is_refused_by_name_and_nothing_is_lost(finished):
    before = (finished.folder / "study.json").read_text()
    changed = {"small": SMALL, "fast": override(FAST, ["optim.lr=0.02"])}
    with pytest.raises(UserError, match=r"another study of 'fast' \(its optim.lr is 0.01, not 0.02\)"):
        study(changed, finished.folder, seeds=2, settings=ONE_THREAD)
    with pytest.raises(UserError, match=r"its budget is none, not 60s"):
        study({"small": SMALL}, finished.folder, budget_seconds=60.0, settings=ONE_THREAD)
    assert (finished.folder / "study.json").read_text() == before


def test_a_budget_gives_the_slower_model_fewer_epochs_and_stays_as_measured(tmp_path):
    # A step per epoch: even a machine with ten other programs has time for several.
    arguments = dict(folder=tmp_path, seeds=1, fractions=[0.3], split="val", budget_seconds=4.0, settings=ONE_THREAD)
    first = study({"small": SMALL, "deep": DEEP}, **arguments)
    small, deep = first.rows()
    assert small.epochs > deep.epochs >= 1
    share = small.epochs / SMALL.epochs
    assert first.runs["small", 0.3, 0].recipe.optim.warmup_epochs == pytest.approx(share * 0.5, abs=1e-3)
    again = study({"small": SMALL, "deep": DEEP}, **arguments)
    assert again.speeds == first.speeds
    assert not (tmp_path / "measuring").exists()
    # chosen on validation data: nobody has looked at the test split
    assert not list(tmp_path.rglob("evaluation-test.json"))
    assert small.scores == [100 * first.runs["small", 0.3, 0].info["best"]["val_top1"]]


def test_a_run_that_fails_is_a_row_with_the_reason_and_the_others_go_on(tmp_path):
    recipe = tmp_path / "small.yaml"
    save_recipe(SMALL, recipe)
    words = [
        f"large batch: {recipe} batch_size=1000",
        str(recipe),
        "epochs=1",
        "--fractions",
        "0.5",
        "--seeds",
        "1",
        "--markdown",
    ]
    code, printed, _ = call("study", *words, "--threads", "1", "--out", str(tmp_path / "out"))
    assert code == 1
    assert "| large batch |" in printed
    assert "batch_size=1000 is larger than the" in printed
    assert json.loads((tmp_path / "out" / "study.json").read_text())["failures"][0][0] == "large batch"
    assert Study(tmp_path / "out").rows()[1].scores


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits/vit_nan"], "unknown recipe 'digits/vit_nan'"),
        (["digits/vit_nano", "epoch=3"], "unknown recipe key 'epoch'"),
        (["digits/vit_nano", "--budget", "soon"], "--budget 'soon' is not a duration"),
        (["digits/vit_nano", "--fractions", "a"], "--fractions 'a' are not fractions"),
        (["digits/vit_nano", "--json", "--csv"], "choose one"),
        (["digits/vit_nano", "--split", "tset"], "unknown split 'tset'"),
        (["digits/vit_nano", "--data", "no/such/folder"], "no/such/folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, tmp_path):
    code, _, error = call("study", *words, "--out", str(tmp_path / "out"))
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_the_command_with_code_130_and_says_how_to_go_on(tmp_path):
    save_recipe(override(SMALL, ["epochs=100000"]), tmp_path / "long.yaml")
    run = tmp_path / "out" / "runs" / "long" / "fraction-1" / "seed-0"

    def press_ctrl_c():
        while not (run / "metrics.jsonl").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press_ctrl_c, daemon=True).start()
    words = ["--seeds", "1", "--threads", "1", "--out", str(tmp_path / "out")]
    code, _, error = call("study", str(tmp_path / "long.yaml"), *words)
    assert code == 130
    assert "the same command resumes it" in error
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"


def test_runs_that_keep_to_the_clock_end_in_time_and_a_repeated_study_finds_them(tmp_path):
    arguments = dict(seeds=1, split="val", budget_seconds=8.0, by_clock=True, settings=ONE_THREAD)
    first = study({"small": SMALL, "fast": FAST}, tmp_path, **arguments)
    assert not first.speeds  # nothing was measured before
    for run in first.runs.values():
        assert run.info["asked"]["budget"] == "8s"
        assert run.info["epochs_trained"] > 2  # the recipe's
        assert (run.path / "budget.jsonl").exists()
    assert "each run keeps to the clock" in first.to_markdown()
    again = study({"small": SMALL, "fast": FAST}, tmp_path, **arguments)
    assert again.rows() == first.rows()


def test_the_clock_without_a_budget_is_refused(tmp_path):
    with pytest.raises(UserError, match="give budget_seconds too"):
        study({"small": SMALL}, tmp_path, by_clock=True)
