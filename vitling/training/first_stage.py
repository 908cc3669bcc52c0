"""The first stage of a run with `unlabelled=`: which images may be learnt from, and the run that learns from them."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import TrainingData, open_recipe_data
from vitling.data.shared import find_shared
from vitling.data.sources.dataset import Dataset, canonical_name, open_dataset, takes_root
from vitling.data.sources.images import Images
from vitling.data.sources.parts import part_name, write_parts
from vitling.data.sources.unlabelled import PREFIX, WITH_TEST
from vitling.errors import UserError
from vitling.methods.pretraining.recipe import pretraining_recipe
from vitling.recipes import Recipe, scale_epochs
from vitling.runs.opening import run_behind
from vitling.runs.run import FIRST_STAGE, UNLABELLED, Run

PART = "images"
HELD_OUT = 0.05  # of the images, for the loss of the first stage
BATCH = 128  # at least, where there are as many images: that of few labels is smaller than the methods are made for


def train_first_stage(
    run: Run,
    recipe: Recipe,
    data: TrainingData,
    *,
    reading: Reading,
    callback: Callback,
    budgeted: bool,
    once: Callable,
    train: Callable[[Recipe, str, float], Run],
) -> Run:
    """The run that learns from the unlabelled images: trained now, resumed, or found finished."""
    file = run.path / UNLABELLED
    if not file.exists():
        once(lambda: _divide(run, recipe, data, reading, callback))
    stage = run.info["first_stage"]
    for line in stage_lines(stage):
        callback.log(line)
    first = _stage_recipe(run, recipe, data)
    callback.log(
        f"first stage: {recipe.unlabelled_method} on {stage['images']:,} images without labels, {_share(recipe, first, data, stage, budgeted)}; "
        "then the labels"
    )
    return train(first, FIRST_STAGE, recipe.unlabelled_time)


def _share(recipe: Recipe, first: Recipe, data: TrainingData, stage: Mapping, budgeted: bool) -> str:
    """What part of both stages the first one is: of a budget, or of the images that are shown in whole epochs."""
    if not budgeted:
        shown = first.epochs * stage["images"]
        return f"{100 * shown / (shown + recipe.epochs * len(data.train)):.0f} % of the images that are shown in both"
    share = f"{100 * recipe.unlabelled_time:.0f} % of the time"
    if recipe.unlabelled_time == Recipe.unlabelled_time:
        share += " (the best of three shares that were tried: docs/pretraining.md)"
    return share


def open_unlabelled(recipe: Recipe, reading: Reading, *, channels: int, sampled: bool = False) -> Dataset:
    """All the images that `unlabelled=` names; which of them may be learnt from is another matter."""
    name = canonical_name((WITH_TEST if recipe.unlabelled_test else PREFIX) + recipe.unlabelled)
    try:
        opened = open_dataset(
            name,
            root=reading.root,
            download=reading.download,
            channels=channels,
            on_bad_image=recipe.on_bad_image,
            sampled=sampled,
        )
    except UserError as error:
        raise UserError(f"unlabelled={recipe.unlabelled}: {error}") from None
    if any(images.shards is not None for images in opened.splits.values()):
        raise UserError(
            f"unlabelled={recipe.unlabelled} can only be read from its beginning, so nothing can be left out of it; download it first."
        )
    return opened


def _stage_recipe(run: Run, recipe: Recipe, data: TrainingData) -> Recipe:
    stage = pretraining_recipe(recipe, recipe.unlabelled_method, channels=data.dataset.channels)
    images = run.info["first_stage"]["images"]
    # Its share of all the images that are shown in both stages; a budget then says otherwise.
    share = recipe.unlabelled_time / (1 - recipe.unlabelled_time)
    stage = scale_epochs(stage, max(1, round(share * recipe.epochs * len(data.train) / images)))
    return replace(
        stage,
        data=part_name(PART, run.path / UNLABELLED),
        fraction=1.0,
        fraction_rule="vitling",
        folds=0,
        fold=0,
        group="",  # of the labelled images, like the next
        labels="auto",
        test_split="test",
        val_fraction=HELD_OUT,
        batch_size=min(max(stage.batch_size, BATCH), max(2, images // 4)),
    )


def stage_lines(stage: dict) -> list[str]:
    """What a user should know of the images of a first stage."""
    lines = [
        f"{count:,} of the unlabelled images are also in the {split} split of the data, and are left out"
        for split, count in stage["left_out"].items()
        if count
    ]
    if stage["with_test"]:
        lines.append(
            "test images may be among the unlabelled ones (unlabelled_test=true): the test number is then of images it has seen"
        )
    return lines


def count_seen_tests(recipe: Recipe, data: TrainingData, reading: Reading, callback: Callback) -> int:
    """How many images that the data tests on were learnt from without labels on the way to what `init` names; refused unless it is asked for."""
    if "test" not in data.dataset.splits:
        return 0
    test, learnt = data.dataset.splits["test"], []
    try:
        learners = list(_learners_behind(recipe.init))
    except UserError as error:  # of a run on the way that is damaged or gone
        learners = []
        callback.log(f"whether init={recipe.init} has seen images that are tested on cannot be checked: {error}")
    for run in learners:
        try:
            known = open_recipe_data(
                run.recipe, reading if takes_root(run.recipe.data) else replace(reading, root=None)
            )
            learnt += [_read_alike(images, test) for images in _at_hand(known, run.recipe.data)]
        except UserError as error:
            callback.log(f"whether {run.path} has seen images that are tested on cannot be checked: {error}")
    seen = len(find_shared(test, learnt, task="comparing with test images", callback=callback))
    if seen and not recipe.unlabelled_test:
        raise UserError(
            f"init={recipe.init} has learnt from {seen:,} images that {recipe.data} tests on; begin from a run without them (unlabelled=IMAGES "
            "leaves them out by itself), or set unlabelled_test=true."
        )
    if seen:
        callback.log(f"{seen_tests(seen)}: the test number is then of images that it has seen")
    return seen


def _learners_behind(init: str) -> Iterator[Run]:
    """The runs without labels that these weights come from, those that each of them began from included."""
    places: set[Path] = set()
    while (run := run_behind(init) if init else None) and run.path not in places:
        places.add(run.path)
        yield from (learner for learner in (run, run.first_stage) if learner and learner.unlabelled)
        init = run.recipe.init


def _at_hand(dataset: Dataset, name: str) -> list[Images]:
    """Its images, which can be compared with others: those of a stream cannot."""
    if any(images.shards is not None for images in dataset.splits.values()):
        raise UserError(f"{name} can only be read from its beginning.")
    return list(dataset.splits.values())


def _read_alike(images: Images, others: Images) -> Images:
    """The images with transparency where the others have theirs, so that they can be compared."""
    images = copy(images)
    images.alpha = others.alpha
    return images


def seen_tests(count: int) -> str:
    return f"{count:,} test images were learnt from without labels (unlabelled_test=true)"


def _divide(run: Run, recipe: Recipe, data: TrainingData, reading: Reading, callback: Callback) -> None:
    """Write down which of the unlabelled images are learnt from: none that is validated or tested on."""
    file = run.path / UNLABELLED
    if file.exists():  # by the process before this one
        return
    opened = open_unlabelled(recipe, reading, channels=data.dataset.channels)
    found = opened.found
    assert found is not None
    assert opened.request is not None
    held = {"validation": data.images["val"]}
    if not recipe.unlabelled_test and "test" in data.dataset.splits:
        held["test"] = data.dataset.splits["test"]
    left_out, parts = dict.fromkeys(held, 0), {}
    for split, listed in found.splits.items():
        images = _read_alike(listed, data.images["val"])
        kept = np.arange(len(images))
        for title, others in held.items():
            shared = find_shared(
                images.subset(kept), [others], task=f"comparing with {title} images", callback=callback
            )
            left_out[title] += len(shared)
            kept = np.delete(kept, shared)
        if len(kept):
            parts[split] = (split, kept)
    if "train" not in parts or len(parts["train"][1]) < 4:
        raise UserError(
            f"unlabelled={recipe.unlabelled} has no images to learn from beside those that the data validates or tests on; leave it out."
        )
    count = sum(len(rows) for _, rows in parts.values())
    stage = dict(images=count, left_out=left_out, with_test=recipe.unlabelled_test, method=recipe.unlabelled_method)
    run.update(first_stage=stage)
    write_parts(file, opened.request.data, found, {PART: parts})  # last: what it belongs to is recorded
