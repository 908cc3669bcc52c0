"""Knowledge: what a recipe begins from or learns from that may have seen the images that are to judge it."""

from collections.abc import Iterator

import numpy as np

from vitling.callbacks import Callback
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset
from vitling.errors import UserError
from vitling.recipes import Recipe
from vitling.runs.opening import run_behind


def find_knowledge(recipe: Recipe, dataset: Dataset) -> str:
    """Which setting brings knowledge of this data's labels, and why, as the beginning of a sentence; empty where none does."""
    args = recipe.method_args
    if args.get("labels", "truth") != "truth":
        return f"method_args.labels={args['labels']} are label maps, whose annotator may have seen the images that are to be held out"
    for key, source in _sources(recipe):
        if has_learnt_from(source, dataset):
            return f"{key}={source} has learnt from the same images, those that are to be held out among them"
    return ""


def find_known_validation(recipe: Recipe, dataset: Dataset, callback: Callback) -> str:
    """Which setting brings knowledge of the validation images' labels; empty where none does. Another seed holds out other images."""
    for key, source in _sources(recipe):
        try:
            if _has_learnt_from_validation(source, recipe, dataset):
                return f"{key}={source}"
        except UserError as error:  # of a run that is damaged
            callback.log(f"whether {key}={source} has learnt from the validation images cannot be checked: {error}")
    return ""


def _sources(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What a recipe begins from or learns from, by the setting that names it."""
    args = recipe.method_args
    for key, source in (
        ("init", recipe.init),
        ("method_args.teacher", args.get("teacher")),
        ("method_args.annotator", args.get("annotator")),
    ):
        if source and source != "auto":
            yield key, str(source)


def _has_learnt_from_validation(source: str, recipe: Recipe, dataset: Dataset) -> bool:
    run = run_behind(source)
    if run is None or run.unlabelled or "val" in dataset.splits or not has_learnt_from(source, dataset):
        return False
    if run.members:  # each image was learnt from by some of them
        return True
    shown, _ = split_training(dataset, run.recipe)
    _, held = split_training(dataset, recipe)
    return shown.shards is None and bool(np.isin(held.rows, shown.rows).any())


def has_learnt_from(source: str, dataset: Dataset) -> bool:
    """Whether these are weights of a run that was trained on these very images, whatever they were grouped by."""
    run = run_behind(source)
    if run is None:
        return False
    known = run.image_fingerprint or run.data_fingerprint  # earlier versions recorded the one with groups alone
    return known in (dataset.image_fingerprint, dataset.fingerprint)
