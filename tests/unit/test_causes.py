"""Causes, from evidence made by hand: what is named, what another cause explains, and that every command can be typed."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch

from vitling.data.probe import Probe
from vitling.data.sources.images import ArrayImages
from vitling.diagnose.causes import find_causes
from vitling.diagnose.curve import Curve
from vitling.diagnose.evidence import Copies, Evidence, Seen
from vitling.diagnose.rate import RateTrial
from vitling.recipes import Augment, Optim, Recipe, load_recipe, override, save_recipe
from vitling.runs.run import Run

NAMES = [str(i) for i in range(10)]


@pytest.fixture
def run(tmp_path):
    """What a finished run leaves behind, without its weights."""
    path = tmp_path / "run"
    path.mkdir()
    recipe = Recipe(
        model="dhvt_test", data="digits", epochs=40, img_size=(16, 16), channels=1, optim=Optim(warmup_epochs=2),
        augment=Augment(crop="pad", hflip=0.0),
    )  # fmt: skip
    save_recipe(recipe, path / "recipe.yaml")
    preprocessing = dict(
        size=[16, 16], fit="resize", channels=1, max_value=255, mean=[0.3], std=[0.4], test_crop=None, interpolation="bicubic",
    )  # fmt: skip
    info = {"status": "finished", "class_names": NAMES, "preprocessing": preprocessing, "wall_seconds": 60.0}
    (path / "run.json").write_text(json.dumps(info))
    return Run(path)


def seen(accuracy: float, images: int = 1000) -> Seen:
    """Images of which the network names so many correctly, spread over the classes."""
    labels = np.arange(images) % 10
    guesses = np.where(np.arange(images) // 10 % 100 < 100 * accuracy, labels, (labels + 1) % 10)
    logits = 4 * torch.nn.functional.one_hot(torch.as_tensor(guesses), 10).float()
    held = ArrayImages(np.zeros((images, 8, 8, 1), np.uint8), labels)
    return Seen(held, logits, torch.zeros(images, 1, 8, 8, dtype=torch.uint8))


def probe(accuracy: float, images: int = 1000) -> Probe:
    """A linear classifier that names so many correctly; it doubts each of its guesses, so that it says nothing about labels."""
    one, nothing = seen(accuracy, images), torch.zeros(1)
    scale = nothing, nothing
    return Probe(torch.arange(images), one.labels, one.logits, scale, nothing, scale, nothing, nothing)


def course(accuracy, val_loss=None, train_loss=None) -> Curve:
    accuracy = np.asarray(accuracy, float)
    falling = np.geomspace(2.3, 0.1, len(accuracy))
    return Curve(
        np.arange(1.0, len(accuracy) + 1),
        falling if train_loss is None else np.asarray(train_loss, float),
        falling if val_loss is None else np.asarray(val_loss, float),
        accuracy,
        1000,
    )


def healthy(run: Run, **changes) -> Evidence:
    evidence = Evidence(
        run=run,
        recipe=run.recipe,
        class_names=NAMES,
        counts=np.full(10, 120),
        curve=course([*np.linspace(0.3, 0.95, 20), *[0.95] * 20]),
        train=seen(0.99),
        val=seen(0.95),
        unchanged=0.9,
        asked=600,
        mirrored={"hflip": 0.3, "vflip": 0.3},
        copies={"train": Copies([], 1200), "val": Copies([], 200), "test": Copies([], 400)},
        input_mean=np.array([0.0]),
        input_std=np.array([1.0]),
        parameters=200_000,
    )
    return replace(evidence, **changes)


def problems(evidence: Evidence) -> list[str]:
    return [finding.name for finding in find_causes(evidence) if finding.state == "problem"]


RIGHT = RateTrial({1.0: 1.0, 0.1: 1.8, 10.0: 1.4}, 100, 2.3)


def test_nothing_is_wrong_with_a_healthy_run(run):
    assert problems(healthy(run)) == []


def test_copies_of_training_images_in_the_test_split_come_before_everything_else(run):
    leaking = Copies([(f"a{i}", f"b{i}") for i in range(20)], 400)
    few = np.array([3, *[120] * 9])
    assert problems(healthy(run, copies={"test": leaking}, counts=few)) == ["leak", "too few images of a class"]
    assert problems(healthy(run, copies={"test": Copies([("a", "b")], 400)})) == []  # one in 400 moves nothing


@pytest.mark.parametrize(("losses", "cause"), [
    ({1.0: 2.5, 0.1: 0.6, 10.0: 9.0, 0.01: 1.2}, "rate too high"),
    ({1.0: float("inf"), 0.1: 0.6, 10.0: float("inf"), 0.01: 1.2}, "rate too high"),
    ({1.0: 2.25, 0.1: 2.3, 10.0: 1.5, 100.0: 1.2}, "rate too low"),
])  # fmt: skip
def test_a_rate_at_which_others_learn_more_explains_why_it_learned_little(run, losses, cause):
    evidence = healthy(
        run, rates=RateTrial(losses, 100, 2.3), train=seen(0.4), val=seen(0.4), curve=course(np.linspace(0.1, 0.4, 10))
    )
    assert problems(evidence) == [cause]
    command = find_causes(evidence)[0].command
    assert command.startswith("vitling train digits optim.lr=")


def test_a_run_that_diverged_is_a_rate_too_high(run):
    losses = dict.fromkeys((1.0, 0.1, 10.0), float("inf"))
    evidence = healthy(
        run, train=None, val=None, curve=None, failure="loss became nan at step 6", rates=RateTrial(losses, 100, 2.3)
    )
    assert problems(evidence) == ["rate too high"]


def test_a_run_that_was_killed_is_called_interrupted_not_too_short(run):
    (run.path / "run.json").write_text(json.dumps({**run.info, "status": "running"}))
    half = healthy(Run(run.path), curve=course([0.2, 0.4, 0.6]), train=seen(0.6), val=seen(0.6), rates=RIGHT)
    assert problems(half) == ["interrupted"]
    assert find_causes(half)[0].command.startswith("vitling train digits --recipe ")


def test_pixels_far_from_zero_and_one_are_a_wrong_normalisation_and_constants_of_another_dataset_are_not(run):
    given = override(run.recipe, {"mean": [0.9], "std": [0.01]})
    far = dict(input_mean=np.array([20.0]), input_std=np.array([50.0]))
    assert problems(healthy(run, recipe=given, **far)) == ["wrong normalisation"]
    assert problems(healthy(run, recipe=given, input_mean=np.array([-1.8]), input_std=np.array([0.6]))) == []
    constant = dict(input_mean=np.array([0.0]), input_std=np.array([0.0]))  # a channel that is black in all images
    assert problems(healthy(run, **constant)) == []


def test_mirroring_what_looks_otherwise_in_a_mirror_is_named_and_mirroring_photographs_is_not(run):
    mirroring = override(run.recipe, {"augment.hflip": 0.5})
    assert problems(healthy(run, recipe=mirroring)) == ["augmentation destroys the class"]
    assert problems(healthy(run, recipe=mirroring, mirrored={"hflip": 0.88, "vflip": 0.2})) == []
    assert problems(healthy(run, recipe=mirroring, mirrored={"hflip": 0.6}, asked=10)) == []  # 9 and 6 images: chance


def test_a_run_that_rises_to_its_end_was_too_short(run):
    rising = healthy(run, curve=course(np.linspace(0.2, 0.6, 4)), train=seen(0.6), val=seen(0.6), rates=RIGHT)
    assert problems(rising) == ["too short"]


def test_a_run_whose_validation_loss_rose_for_most_of_it_was_too_long(run):
    loss = [*np.linspace(2, 0.8, 8), *np.linspace(0.8, 1.6, 32)]
    long = healthy(run, curve=course([*np.linspace(0.3, 0.7, 8), *[0.7] * 32], loss), train=seen(1.0), val=seen(0.7))
    assert problems(long) == ["too long"]
    epochs = next(word for word in shlex.split(find_causes(long)[0].command) if word.startswith("epochs="))
    assert int(epochs.removeprefix("epochs=")) < 20


def test_thousands_of_parameters_per_image_are_too_many_where_a_linear_classifier_does_better(run):
    poor = dict(parameters=6_000_000, train=seen(1.0), val=seen(0.6))
    assert problems(healthy(run, **poor, probe=probe(0.8)))[0] == "network too large"
    assert problems(healthy(run, **poor, probe=probe(0.5))) == []  # a CNN has as many, and is the best that there is
    begun = override(run.recipe, {"init": "hf-hub:somebody/network"})
    assert problems(healthy(run, **poor, probe=probe(0.8), recipe=begun)) == []
    assert problems(healthy(run, parameters=6_000_000)) == []  # it does well all the same


def test_a_network_that_stopped_learning_early_at_a_right_rate_is_too_small_where_a_linear_classifier_does_better(run):
    flat = [2.3, 1.9, *[1.6] * 38]
    early = dict(
        curve=course([0.2, *[0.4] * 39], flat, flat), train=seen(0.42), val=seen(0.4), rates=RIGHT, parameters=500
    )
    assert problems(healthy(run, **early, probe=probe(0.7))) == ["network too small"]
    unsure = healthy(run, **early, probe=probe(0.4))  # it may be the images that tell no more
    assert [finding.name for finding in find_causes(unsure) if finding.state == "watch"] == ["network too small"]


def test_rates_that_learnt_nothing_judge_nothing(run):
    untold = RateTrial({1.0: 2.34, 0.1: 2.2, 10.0: 5.4}, 80, 2.3)
    flat = [2.3, 1.9, *[1.6] * 38]
    early = healthy(run, curve=course([0.2, *[0.4] * 39], flat, flat), train=seen(0.42), val=seen(0.4), rates=untold)
    assert problems(replace(early, probe=probe(0.9))) == []


def test_a_rate_at_which_the_whole_run_got_further_than_the_trial_at_another_was_not_wrong(run):
    faster = RateTrial({1.0: 1.6, 0.1: 2.1, 10.0: 1.2}, 80, 2.3)
    assert "rate too low" in problems(healthy(run, rates=faster, train=seen(0.5), val=seen(0.5)))
    assert problems(healthy(run, rates=faster, train=seen(0.85), val=seen(0.85))) == []


def test_a_gap_is_a_problem_where_remedies_were_left_unused_and_else_a_lack_of_images(run):
    gap = dict(train=seen(1.0), val=seen(0.7), curve=course([*np.linspace(0.3, 0.7, 30), *[0.7] * 10]))
    bare = override(run.recipe, {"augment.crop": "none"})
    assert problems(healthy(run, recipe=bare, **gap)) == ["overfitting"]
    found = {finding.name: finding for finding in find_causes(healthy(run, **gap))}
    assert found["too little data"].state == "watch"
    assert found["too little data"].command.endswith("--learning-curve")


def test_mixing_which_our_measurements_do_not_support_is_not_advised_nor_mirroring_where_it_changes_the_image(run):
    gap = dict(train=seen(1.0), val=seen(0.7), curve=course([*np.linspace(0.3, 0.7, 30), *[0.7] * 10]))
    recipe = override(run.recipe, {"augment.crop": "none", "epochs": 200})
    (finding,) = (f for f in find_causes(healthy(run, recipe=recipe, **gap)) if f.name == "overfitting")
    assert "augment.crop=pad" in finding.command
    assert "cutmix" not in finding.command
    assert "hflip" not in finding.command


def test_weights_that_no_longer_reach_what_was_recorded_were_changed(run):
    run.update(best={"val_top1": 0.9, "val_loss": 0.3, "epoch": 3}, data={"val_images": 1000})
    assert problems(healthy(run, val=seen(0.5)))[0] == "changed since training"


def test_a_weak_class_is_noted_with_what_it_is_taken_for(run):
    one = seen(0.98)
    one.logits[one.labels == 3] = 4 * torch.nn.functional.one_hot(torch.tensor(5), 10).float()
    (finding,) = (f for f in find_causes(healthy(run, val=one)) if f.name == "weak class")
    assert finding.state == "watch"
    assert "'3'" in finding.sentence
    assert "'5'" in finding.sentence


def test_every_command_is_one_that_the_recipe_and_the_network_allow(run):
    recipe = load_recipe(run.path / "recipe.yaml")
    for evidence in (
        healthy(run, recipe=override(run.recipe, {"augment.hflip": 0.5})),
        healthy(run, recipe=override(run.recipe, {"mean": [0.9], "std": [0.01]}), input_mean=np.array([20.0])),
        healthy(run, counts=np.array([3, *[120] * 9])),
        healthy(run, rates=RateTrial({1.0: 2.5, 0.1: 0.6, 10.0: 9.0}, 100, 2.3), train=seen(0.4), val=seen(0.4)),
    ):
        command = shlex.split(find_causes(evidence)[0].command)
        assert command[:3] == ["vitling", "train", "digits"]
        override(recipe, [word for word in command[3:] if "=" in word])
        assert command[command.index("--recipe") + 1] == str(run.path / "recipe.yaml")
