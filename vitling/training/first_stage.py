"""The first stage of a run with `unlabelled=`: which images may be learnt from, and the run that learns from them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import TrainingData, open_recipe_data
from vitling.data.shared import find_shared
from vitling.data.sources.dataset import canonical_name, open_dataset, takes_root
from vitling.data.sources.parts import part_name, write_parts
from vitling.data.sources.unlabelled import PREFIX, WITH_TEST
from vitling.errors import UserError
from vitling.methods.pretraining.recipe import pretraining_recipe
from vitling.recipes import Recipe, scale_epochs
from vitling.runs.opening import find_kind
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
    share = f"{100 * recipe.unlabelled_time:.0f} % of the time"
    callback.log(
        f"first stage: {recipe.unlabelled_method} on {stage['images']:,} images without labels, {share}; then the labels"
    )
    return train(_stage_recipe(run, recipe, data), FIRST_STAGE, recipe.unlabelled_time)


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
        group="",  # of the labelled images
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
    """How many images that the data tests on the run without labels has learnt from which `init` names; refused unless it is asked for."""
    try:
        kind, place = find_kind(recipe.init)
    except UserError:  # said where the weights are loaded
        return 0
    if kind != "run" or not place.unlabelled or "test" not in data.dataset.splits:
        return 0
    try:
        known = open_recipe_data(
            place.recipe, reading if takes_root(place.recipe.data) else replace(reading, root=None)
        )
    except UserError as error:
        callback.log(f"whether init={recipe.init} has seen images that are tested on cannot be checked: {error}")
        return 0
    test = data.dataset.splits["test"]
    splits = [images for images in known.splits.values() if images.shards is None]
    compare = partial(find_shared, others=[test], task="comparing with test images", callback=callback)
    seen = sum(len(compare(images)) for images in splits)
    if seen and not recipe.unlabelled_test:
        raise UserError(
            f"init={recipe.init} has learnt from {seen:,} images that {recipe.data} tests on; begin from a run without them (unlabelled=IMAGES "
            "leaves them out by itself), or set unlabelled_test=true."
        )
    if seen:
        callback.log(f"{seen_tests(seen)}: the test number is then of images that it has seen")
    return seen


def seen_tests(count: int) -> str:
    return f"{count:,} test images were learnt from without labels (unlabelled_test=true)"


def _divide(run: Run, recipe: Recipe, data: TrainingData, reading: Reading, callback: Callback) -> None:
    """Write down which of the unlabelled images are learnt from: none that is validated or tested on."""
    file = run.path / UNLABELLED
    if file.exists():  # by the process before this one
        return
    name = canonical_name((WITH_TEST if recipe.unlabelled_test else PREFIX) + recipe.unlabelled)
    try:
        found = open_dataset(
            name,
            root=reading.root,
            download=reading.download,
            channels=data.dataset.channels,
            on_bad_image=recipe.on_bad_image,
        ).found
    except UserError as error:
        raise UserError(f"unlabelled={recipe.unlabelled}: {error}") from None
    assert found is not None
    if any(images.shards is not None for images in found.splits.values()):
        raise UserError(
            f"unlabelled={recipe.unlabelled} can only be read from its beginning, so nothing can be left out of it; download it first."
        )
    held = {"validation": data.images["val"]}
    if not recipe.unlabelled_test and "test" in data.dataset.splits:
        held["test"] = data.dataset.splits["test"]
    left_out, parts = dict.fromkeys(held, 0), {}
    for split, images in found.splits.items():
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
    write_parts(file, name, found, {PART: parts})  # last: what it belongs to is recorded
