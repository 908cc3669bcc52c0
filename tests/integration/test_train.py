"""The loop: a resumed run repeats the uninterrupted one, several processes equal one, and what else must hold while training."""

import gc
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file

import vitling
from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.errors import UserError
from vitling.methods import Method
from vitling.recipes import Augment, Optim, Recipe, load_recipe, override, replace
from vitling.runs.device import default_device
from vitling.runs.run import Run
from vitling.training.beginning import train
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

pytestmark = pytest.mark.slow

RECIPE = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=24, depth=2, num_heads=2, drop_path_rate=0.1, proj_drop_rate=0.1),
    method_args=dict(mixup=0.2, cutmix=1.0, label_smoothing=0.1),
    data="digits",
    epochs=3,
    batch_size=128,
    augment=Augment(crop="pad", hflip=0.5, randaugment="rand-m9-mstd0.5-inc1", erase=0.25),
    optim=Optim(lr=2e-3, warmup_epochs=1),
    ema_decay=0.9,
)


class StopAt(Callback):
    """Behaves like a user who presses Ctrl-C in a given step."""

    def __init__(self, step):
        self.at = step

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if epoch * steps + step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


class CrashAt(Callback):
    """The process dies in a given step: nothing is saved on the way out."""

    def __init__(self, step):
        self.at = step

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if epoch * steps + step == self.at:
            raise SystemExit("the power went")


class Sayings(Callback):
    def __init__(self):
        self.lines = []

    def log(self, message):
        self.lines.append(message)


def method_in_training() -> Method:
    """The method whose run is going on, found from outside."""
    gc.collect()
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Method)][-1]


def assert_same_run(a: Path, b: Path):
    for which in ("best", "last"):
        one, other = (load_file(run / which / "model.safetensors") for run in (a, b))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert (a / "metrics.jsonl").read_text() == (b / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    train(RECIPE, path)
    return path


def test_the_loss_falls(uninterrupted):
    losses = [record["train_loss"] for record in vitling.load_run(uninterrupted).metrics()]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("step", [4, 10, 13])  # inside the first epoch, at its end, inside the second
def test_a_resumed_run_repeats_the_uninterrupted_one(uninterrupted, tmp_path, step):
    with pytest.raises(Interrupted, match=f"step {step}; the same command resumes it"):
        train(RECIPE, tmp_path / "run", callback=StopAt(step))
    assert vitling.load_run(tmp_path / "run").info["status"] == "interrupted"
    train(RECIPE, tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


def test_a_streamed_run_that_is_resumed_repeats_the_uninterrupted_one_and_leaves_no_reading_process(tmp_path):
    recipe = replace(RECIPE, batch_size=100)  # no multiple of what a reading process reads at once
    streamed = Settings(reading=Reading(memory_gb=0, workers=2))
    train(recipe, tmp_path / "whole", settings=streamed)
    for step in (5, 17):
        with pytest.raises(Interrupted):
            train(recipe, tmp_path / "run", settings=streamed, callback=StopAt(step))
    train(recipe, tmp_path / "run", settings=streamed)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    gc.collect()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("step", [1, 9, 10, 11, 20, 29, 30])  # around the ends of epochs, where a validation follows
def test_a_run_that_dies_at_any_step_repeats_the_uninterrupted_one(uninterrupted, tmp_path, step):
    with pytest.raises(SystemExit):
        train(RECIPE, tmp_path / "run", settings=Settings(checkpoint_seconds=0), callback=CrashAt(step))
    train(RECIPE, tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.parametrize(
    "settings",
    [["optim.sam_rho=0.05"], ["optim.name=muon"], ["validate_every=2"], ["balance=sampler", "augment.repeats=3"]],
    ids=lambda settings: settings[0],
)
def test_every_kind_of_run_resumes_exactly(settings, tmp_path):
    recipe = override(RECIPE, settings)
    train(recipe, tmp_path / "whole")
    with pytest.raises(SystemExit):
        train(recipe, tmp_path / "run", settings=Settings(checkpoint_seconds=0), callback=CrashAt(15))
    train(recipe, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


SOUP = override(RECIPE, ["ema_decay=0", "keep=last", "model=resnet9_test", "model_args={}"])


def test_a_soup_is_the_mean_of_the_last_epochs_weights(tmp_path):
    souped = train(override(SOUP, ["soup_epochs=2"]), tmp_path / "souped").load_model("best").state_dict()
    steps = train(override(SOUP, ["epochs=1", "optim.warmup_epochs=0"]), tmp_path / "one").info["steps_trained"]
    with pytest.raises(Interrupted):
        train(SOUP, tmp_path / "plain", callback=StopAt(2 * steps))
    second = Run(tmp_path / "plain").load_model("best").state_dict()
    third = train(SOUP, tmp_path / "plain").load_model("best").state_dict()
    for name, weights in third.items():
        if weights.is_floating_point():
            torch.testing.assert_close(souped[name], (second[name] + weights) / 2)
            assert not torch.equal(second[name], weights)
        else:
            assert torch.equal(souped[name], weights)


@pytest.mark.parametrize("step", [15, 25, 29])
def test_a_soup_that_is_interrupted_is_the_same(step, tmp_path):
    recipe = override(SOUP, ["soup_epochs=2"])
    train(recipe, tmp_path / "whole")
    with pytest.raises(SystemExit):
        train(recipe, tmp_path / "run", settings=Settings(checkpoint_seconds=0), callback=CrashAt(step))
    train(recipe, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_two_ways_to_average_are_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"ema_decay=0\.9 and soup_epochs=2 both say which weights are averaged; leave one out"
    ):
        train(override(RECIPE, ["soup_epochs=2"]), tmp_path / "run")


def test_training_leaves_the_callers_random_state_and_threads_as_they_were(tmp_path):
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate(), torch.get_num_threads()
    train(replace(RECIPE, epochs=1, fraction=0.2, optim=Optim(warmup_epochs=0)), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert (random.getstate(), torch.get_num_threads()) == before[2:]


def test_data_that_changed_meanwhile_is_refused(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (400, 8, 8, 1), dtype=np.uint8)
    arrays = dict(train_labels=np.arange(400) % 4, test_images=images, test_labels=np.arange(400) % 4)
    np.savez(tmp_path / "data.npz", train_images=images, **arrays)
    recipe = replace(RECIPE, data=str(tmp_path / "data.npz"))
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "run", callback=StopAt(3))
    np.savez(tmp_path / "data.npz", train_images=255 - images, **arrays)
    with pytest.raises(UserError, match="has changed since"):
        train(recipe, tmp_path / "run")


def test_a_killed_run_repeats_the_uninterrupted_one(uninterrupted, tmp_path):
    vitling.recipes.save_recipe(RECIPE, tmp_path / "recipe.yaml")
    command = [sys.executable, "-m", "vitling", "train", "digits", "--recipe", str(tmp_path / "recipe.yaml")]
    command += ["--out", str(tmp_path / "run"), "--checkpoint-seconds", "0"]
    for kill_after in (3, 17):  # checkpoints written before the process is killed
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        manifest = tmp_path / "run" / "checkpoint" / "manifest.json"
        while process.poll() is None:
            if manifest.exists() and json.loads(manifest.read_text())[-1]["step"] >= kill_after:
                process.send_signal(signal.SIGKILL)
                process.wait()
            time.sleep(0.005)
        assert process.returncode == -signal.SIGKILL, process.stderr.read()
    subprocess.run(command, check=True, capture_output=True)
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.parametrize(
    ("number", "streamed"),
    [
        (signal.SIGTERM, []),
        (signal.SIGTERM, ["--memory-gb", "0", "--workers", "2"]),
        (signal.SIGINT, ["--memory-gb", "0"]),
    ],
)
def test_a_signal_to_all_processes_saves_says_how_to_resume_and_exits_with_its_code(tmp_path, number, streamed):
    command = [sys.executable, "-m", "vitling", "train", "digits", "--recipe", "digits/vit_nano", "epochs=500"]
    command += ["--out", str(tmp_path / "run"), *streamed]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, start_new_session=True, **pipes)
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    os.killpg(process.pid, number)  # as a terminal and a scheduler do: workers that read images get it too
    out, err = process.communicate()
    assert process.returncode == 128 + number, err
    assert "the same command resumes it" in out
    assert "Traceback" not in err
    assert vitling.load_run(tmp_path / "run").load_checkpoint()[0]["step"] > 0


def test_a_corrupted_checkpoint_is_noticed_and_the_one_before_it_used(uninterrupted, tmp_path):
    for step in (6, 14):
        with pytest.raises(Interrupted):
            train(RECIPE, tmp_path / "run", callback=StopAt(step))
    newest = max((tmp_path / "run" / "checkpoint").glob("step-*.pt"))
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    heard = Sayings()
    train(RECIPE, tmp_path / "run", callback=heard)
    assert any("is corrupted or missing" in line for line in heard.lines)
    assert any("at step 6" in line for line in heard.lines)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_training_from_the_recorded_recipe_repeats_the_run(uninterrupted, tmp_path):
    train(vitling.load_recipe(uninterrupted), tmp_path / "again")
    assert_same_run(tmp_path / "again", uninterrupted)


def test_a_finished_run_is_left_alone(uninterrupted):
    before = (uninterrupted / "last" / "model.safetensors").stat().st_mtime_ns
    assert train(RECIPE, uninterrupted).finished
    assert (uninterrupted / "last" / "model.safetensors").stat().st_mtime_ns == before


def test_another_run_is_never_overwritten(uninterrupted):
    with pytest.raises(UserError, match=r"holds another run \(its epochs is 3, not 4\)"):
        train(replace(RECIPE, epochs=4), uninterrupted)


def test_a_folder_with_other_files_is_never_used(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="already holds other files"):
        train(RECIPE, tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        train(RECIPE, tmp_path / "run", callback=StopAt(3))
    text = (tmp_path / "run" / "recipe.yaml").read_text()
    (tmp_path / "run" / "recipe.yaml").write_text(text.replace("lr: 0.002", "lr: 0.004"))
    with pytest.raises(UserError, match="is of another recipe"):
        train(RECIPE, tmp_path / "run")


def test_timm_loads_what_we_save(uninterrupted):
    model = timm.create_model(f"local-dir:{uninterrupted / 'best'}", pretrained=True).eval()
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(model(x), vitling.load_run(uninterrupted).load_model("best")(x))
    assert model.pretrained_cfg["label_names"] == [str(digit) for digit in range(10)]


def test_accumulated_gradients_equal_one_large_batch(tmp_path):
    plain = override(RECIPE, ["model_args.drop_path_rate=0", "model_args.proj_drop_rate=0", "epochs=2"])
    plain = replace(plain, method_args={})  # mixing is drawn per micro-batch
    train(plain, tmp_path / "one")
    train(replace(plain, accumulate=4), tmp_path / "four")
    one, four = (vitling.load_run(tmp_path / name).metrics() for name in ("one", "four"))
    assert [r["train_loss"] for r in four] == pytest.approx([r["train_loss"] for r in one], rel=1e-4)


def test_two_processes_give_the_losses_of_one(tmp_path):
    plain = override(RECIPE, ["model_args.drop_path_rate=0", "model_args.proj_drop_rate=0", "epochs=2"])
    plain = replace(plain, method_args={})
    vitling.recipes.save_recipe(plain, tmp_path / "recipe.yaml")
    arguments = ["-m", "vitling", "train", "digits", "--recipe", str(tmp_path / "recipe.yaml"), "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run(
        [*torchrun, *arguments, str(tmp_path / "two")], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    train(plain, tmp_path / "one")
    one, two = (vitling.load_run(tmp_path / name).metrics() for name in ("one", "two"))
    assert vitling.load_run(tmp_path / "two").info["processes"] == 2
    for key in ("train_loss", "val_loss", "val_top1"):
        assert [r[key] for r in two] == pytest.approx([r[key] for r in one], rel=1e-4)


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_step(tmp_path):
    with pytest.raises(
        UserError, match=r"loss became (nan|inf) at step \d+ \(loss=(nan|inf)\); last good checkpoint: .*none"
    ):
        train(override(RECIPE, ["optim.lr=1000", "optim.warmup_epochs=0", "ema_decay=0"]), tmp_path / "run")


def test_a_loss_that_is_no_number_leaves_the_last_good_checkpoint(tmp_path):
    class Poison(Callback):
        """Puts a nan into the weights in the twelfth step."""

        def on_step(self, epoch, step, steps, loss, images_per_second):
            if epoch * steps + step == 12:
                method_in_training().model.cls_token.data.fill_(float("nan"))

    with pytest.raises(UserError, match="at step 13"):
        train(RECIPE, tmp_path / "run", settings=Settings(checkpoint_seconds=0), callback=Poison())
    state, corrupted = vitling.load_run(tmp_path / "run").load_checkpoint()
    assert not corrupted
    assert state["step"] == 11  # the weights after step 12 are the poisoned ones
    assert torch.isfinite(state["method"]["model.cls_token"]).all()


def test_weights_that_break_in_the_very_last_step_are_noticed(tmp_path):
    class Poison(Callback):
        def on_step(self, epoch, step, steps, loss, images_per_second):
            if epoch * steps + step == 30:
                method_in_training().model.cls_token.data.fill_(float("nan"))

    with pytest.raises(UserError, match="val_loss=nan"):
        train(replace(RECIPE, ema_decay=0.0), tmp_path / "run", callback=Poison())
    assert not vitling.load_run(tmp_path / "run").finished


def test_early_stopping_says_so(tmp_path):
    recipe = override(RECIPE, ["optim.lr=1e-9", "optim.min_lr=0", "epochs=30", "patience_epochs=2", "ema_decay=0"])
    run = train(recipe, tmp_path / "run")
    assert run.info["stopped"] == "no better validation accuracy for 2 epochs"
    assert len(run.metrics()) < 30


def test_a_budget_fits_the_epochs_and_the_warm_up_to_the_time(tmp_path):
    run = train(
        replace(RECIPE, epochs=100, optim=Optim(warmup_epochs=10)),
        tmp_path / "run",
        settings=Settings(budget_seconds=8),
    )
    epochs = run.recipe.epochs
    assert epochs != 100
    assert run.recipe.optim.warmup_epochs == pytest.approx(epochs / 10, abs=1e-3)
    assert len(run.metrics()) == math.ceil(run.info["epochs_trained"])


def test_patience_counts_validated_epochs_only(tmp_path):
    recipe = override(RECIPE, ["epochs=5", "validate_every=3", "patience_epochs=1", "ema_decay=0"])
    assert [r["epoch"] for r in train(recipe, tmp_path / "run").metrics()] == [3, 5]


def test_a_budget_too_short_for_a_few_steps_says_so(tmp_path):
    with pytest.raises(UserError, match=r"a step of \w+ takes about .* a budget of \d+[smh] would do"):
        train(RECIPE, tmp_path / "run", settings=Settings(budget_seconds=0.01))


def test_fine_tuning_at_another_size_and_class_count_starts_from_a_run(uninterrupted, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 1), dtype=np.uint8)
    labels = np.arange(60) % 3
    np.savez(tmp_path / "three.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    heard = Sayings()
    recipe = override(
        RECIPE, {"data": str(tmp_path / "three.npz"), "init": str(uninterrupted), "freeze": "blocks.*,patch_embed.*",
                 "epochs": 2, "batch_size": 16, "val_fraction": 0.2, "optim.lr_factors": {"head.*": 2.0}},
    )  # fmt: skip
    run = train(recipe, tmp_path / "run", callback=heard)
    before, after = (
        load_file(uninterrupted / "best" / "model.safetensors"),
        load_file(run.path / "last" / "model.safetensors"),
    )
    assert torch.equal(before["blocks.0.attn.qkv.weight"], after["blocks.0.attn.qkv.weight"])
    assert not torch.equal(before["norm.weight"], after["norm.weight"])
    assert after["head.weight"].shape[0] == 3
    assert after["pos_embed"].shape[1] == 17
    assert any(line.startswith(f"init={uninterrupted}") for line in heard.lines)


def test_weights_that_are_not_there_are_one_clear_line(tmp_path):
    with pytest.raises(
        UserError, match="init=nowhere: no model at nowhere; give a run, an exported folder, a weights file"
    ):
        train(replace(RECIPE, init="nowhere"), tmp_path / "run")


@pytest.mark.parametrize(
    "settings",
    [
        ["optim.sam_rho=0.05"],
        ["optim.name=muon", "optim.lr=0.01"],
        ["optim.name=sgd", "optim.schedule=step", "optim.decay_epochs=1", "optim.clip_grad=1"],
        ["balance=sampler", "augment.repeats=3"],
        ["balance=loss", "fraction=0.5"],
        ["folds=5", "fold=2", "validate_every=2"],
        ["optim.layer_decay=0.7", "optim.schedule=constant"],
        ["model=resnet18", "model_args={}"],
    ],
    ids=lambda settings: " ".join(settings),
)
def test_every_option_of_the_loop_trains(settings, tmp_path):
    recipe = replace(RECIPE, epochs=2, model_args={} if "model=resnet18" in settings else RECIPE.model_args)
    recipe = override(recipe, [s for s in settings if s != "model_args={}"])
    recipe = replace(recipe, fraction=0.3) if recipe.model == "resnet18" else recipe
    run = train(recipe, tmp_path / "run")
    records = run.metrics()
    assert records[-1]["epoch"] == 2
    assert all(np.isfinite(record["train_loss"]) for record in records)


def test_a_budget_too_short_for_what_is_trained_first_names_it_and_one_for_all_and_leaves_nothing(tmp_path):
    recipe = replace(load_recipe("claims/lvvit_token_labels"), data="digits")
    for seconds in (2.0, 3.0):  # the second one finds the folder free
        with pytest.raises(UserError, match=r"trained first in 25 % of the budget.* a budget of \d+[smh] would do"):
            train(recipe, tmp_path / "run", settings=Settings(threads=1, budget_seconds=seconds))
        assert not (tmp_path / "run").exists()


def test_bf16_gives_about_the_losses_of_float32(tmp_path, uninterrupted):
    run = train(RECIPE, tmp_path / "run", settings=Settings(precision="bf16"))
    assert run.info["precision"] == "bf16"
    wanted = [r["train_loss"] for r in vitling.load_run(uninterrupted).metrics()]
    found = [r["train_loss"] for r in run.metrics()]
    assert found == pytest.approx(wanted, rel=0.02)
    assert found != wanted
    # Validated in float32: what the saved weights give again, to the last digit.
    best = run.info["best"]
    again = vitling.evaluate(run.path, split="val")
    assert again.top1 == best["val_top1"]
    assert again.loss == pytest.approx(best["val_loss"], rel=1e-6)


def test_a_run_keeps_the_precision_that_it_began_with(tmp_path):
    run = train(replace(RECIPE, epochs=2), tmp_path / "run", planned={"precision": "bf16"})
    assert run.info["precision"] == "bf16"
    run.update(status="running")
    again = train(replace(RECIPE, epochs=2), tmp_path / "run")
    assert again.info["precision"] == "bf16"
    assert again.finished
    assert vitling.train_more(tmp_path / "run", 5.0).info["precision"] == "bf16"


def test_what_is_asked_for_comes_before_what_was_planned(tmp_path):
    where = Settings(precision="no")
    run = train(replace(RECIPE, epochs=2), tmp_path / "run", settings=where, planned={"precision": "bf16"})
    assert run.info["precision"] == "no"


def test_the_number_of_threads_is_chosen_recorded_and_given_back(tmp_path):
    torch.set_num_threads(2)
    try:
        train(replace(RECIPE, epochs=2), tmp_path / "auto")
        train(replace(RECIPE, epochs=2), tmp_path / "two", settings=Settings(threads=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    threads = {name: vitling.load_run(tmp_path / name).info["environment"]["threads"] for name in ("auto", "two")}
    assert threads["auto"] in (1, 2)
    assert threads["two"] == 2


def test_fp16_without_a_gpu_is_refused(tmp_path):
    if default_device().type != "cpu":
        pytest.skip("this machine has a GPU")
    with pytest.raises(UserError, match="precision=fp16 needs a GPU"):
        train(RECIPE, tmp_path / "run", settings=Settings(precision="fp16"))


def test_compile_auto_says_that_a_short_run_does_not_repay_it(tmp_path):
    heard = Sayings()
    train(override(RECIPE, ["compile=auto", "epochs=2", "batch_size=64"]), tmp_path / "run", callback=heard)
    assert any("not compiling" in line for line in heard.lines)


def test_a_compiled_run_gives_the_losses_of_an_eager_one(tmp_path):
    plain = override(RECIPE, ["model_args.drop_path_rate=0", "model_args.proj_drop_rate=0", "epochs=2"])
    eager, compiled = (train(replace(plain, compile=mode), tmp_path / mode).metrics() for mode in ("off", "on"))
    assert [r["train_loss"] for r in compiled] == pytest.approx([r["train_loss"] for r in eager], rel=1e-4)


def test_tensorboard_gets_the_metrics(tmp_path):
    run = train(replace(RECIPE, epochs=2), tmp_path / "run", settings=Settings(trackers=("tensorboard",)))
    assert list(run.path.rglob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model=vit_tinny_patch16_224"], "unknown model 'vit_tinny_patch16_224'. Did you mean vit_tiny_patch16_224"),
        (["img_size=10"], "img_size=10x10 does not divide by the patch of 4"),
        (["batch_size=4096"], "batch_size=4096 is larger than the 1294 training images"),
        (["model_args.depht=3"], "model=vit_tiny_patch16_224 cannot be built with"),
        (["method=supervized"], "unknown method 'supervized'. Did you mean supervised"),
        (["method_args.mixupp=1"], "has no argument 'method_args.mixupp'. Did you mean mixup"),
        (["optim.name=adamv"], "unknown optimiser optim.name=adamv"),
        (["freeze=nothing.*"], "freeze: no parameter is called 'nothing.*'"),
        (["data=digitz"], "Did you mean digits"),
        (["mean=0.5,0.5", "std=1,1"], "mean has 2 values, but the images have 1 channels"),
        (["mean=0.5"], "mean and std belong together"),
        (["optim.lr=1e-6"], "is below optim.min_lr"),
        (["optim.lr_factors.backbone=0.1"], "no parameter is called 'backbone'"),
        (["optim.betas=2,3"], "optim.betas=2.0 is out of range"),
        (["method_args.mixup=x"], "method_args.mixup=x must be a number"),
        (
            ["method_args.label_smoothing=2"],
            "method_args.label_smoothing=2 is out of range; it must be at least 0 and at most 1",
        ),
        (["model_args.drop_path_rate=5"], "model_args.drop_path_rate=5 is out of range"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_settings_are_one_clear_line_and_leave_no_run_behind(settings, message, tmp_path):
    with pytest.raises(UserError) as error:
        train(override(RECIPE, settings), tmp_path / "run")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_failed_start_leaves_the_folder_that_the_user_made(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError):
        train(override(RECIPE, ["img_size=10"]), tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_full_disk_is_one_clear_line(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    run = Run(tmp_path)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(UserError, match="no space left on the device"):
        run.append("metrics.jsonl", {"epoch": 1})
