"""Evaluate a run: top-1, top-5, macro-F1, per class, calibration and the confusion matrix."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import nn

from vitling.callbacks import Callback
from vitling.data.bins import Values
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset, canonical_name, open_dataset
from vitling.data.sources.images import Images
from vitling.errors import UserError, did_you_mean
from vitling.evaluation.loop import predict_logits
from vitling.evaluation.metrics import Evaluation, measure
from vitling.evaluation.numbers import NumbersEvaluation, measure_numbers
from vitling.evaluation.operating_point import Wanted, measure_point
from vitling.evaluation.predictions import Predictions, predict_images, predict_validation
from vitling.evaluation.real_labels import real_accuracy
from vitling.evaluation.several import SeveralEvaluation, measure_several
from vitling.evaluation.temperature import calibrate
from vitling.evaluation.thresholds import UNFITTED, find_thresholds, no_thresholds
from vitling.files import json_with, write_text
from vitling.models import build_model
from vitling.models.weights import load_weights
from vitling.runs.run import Run, check_weights, load_run

SPLITS = ("train", "val", "test")
OF_SINGLE_NETWORKS = (
    "the threshold was fitted on what single networks say of images that each held out; together they are less extreme, so expect more of the "
    "sensitivity or of the specificity than was asked for, and less of the other"
)
SAME_VIEWS = "tta adds nothing: the run asks about these views of an image by itself"
AnyEvaluation = TypeVar("AnyEvaluation", Evaluation, SeveralEvaluation, NumbersEvaluation)


def evaluate_and_keep(
    run: Run | str | Path,
    data: str | None = None,
    *,
    split: str = "test",
    which: str = "best",
    img_size: int | tuple[int, int] | None = None,
    tta: bool = False,
    group: str = "",
    point: Wanted | None = None,
    reading: Reading | None = None,
    dataset: Dataset | None = None,
    callback: Callback | None = None,
) -> tuple[Evaluation | SeveralEvaluation | NumbersEvaluation, Predictions]:
    """Measure a run on a split of its own data, or of other data with the same classes; the numbers are written into the run.

    `group` says which images of other data belong together, as the recipe's key does for its own. `point` asks for an operating point: its
    threshold is fitted on the run's validation images. Beside the numbers come the predictions with their images, for the page of the run. The public `vitling.evaluate` writes that, too.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'. {did_you_mean(split, SPLITS)}")
    check_weights(which)
    run = run if isinstance(run, Run) else load_run(run)
    run.require("model")  # before the data, whose classes may be others
    reading = reading or Reading()
    if group and _is_named_own(run, data):
        raise UserError("group= is for other data here; that of the run's own data stands in its recipe.")
    if point:
        run.require_classes("an operating point is of")
        point.find_class(run.class_names)
        if img_size is not None or tta:
            raise UserError("an operating point is fitted as the run sees its images; leave img_size= and tta= out.")
    dataset = _open(run, data, reading, dataset, group)
    own = _is_own(run, data, dataset)
    if point and own and split != "test":
        raise UserError(
            f"the threshold is fitted on the validation split, so that split={split} would flatter it; use split=test."
        )
    images = _choose_split(run, dataset, split, own)
    size = as_size(img_size)
    if size is not None:
        run.refuse_ensemble("another img_size is for")
    model = run.load_model(which) if size is None else _resized(run, which, size)
    if own and split == "val" and run.members:
        if tta:
            run.refuse_ensemble("tta on the images that were held out is for")
        predictions = predict_validation(run, model, reading=reading, callback=callback)
    else:
        predictions = predict_images(run, model, images, split, size=size, tta=tta, reading=reading, callback=callback)
    notes = [
        *dataset.notes,
        *([OF_SINGLE_NETWORKS] if point and run.members else []),
        *_changes(run, dataset, own),
        *run.plugin_changes("model", *(["data"] if own else [])),
        *([SAME_VIEWS] if tta and run.preprocessing().with_views(run.recipe.augment) == run.preprocessing() else []),
        *([run.validation_note] if own and split == "val" and run.validation_note else []),
    ]
    about: dict[str, Any] = dict(own=own, weights=which, img_size=size, tta=tta)
    measured: dict[str, Any] = dict(data=dataset.name, split=split, groups=predictions.groups)
    result: Evaluation | SeveralEvaluation | NumbersEvaluation
    if run.kind == "several":
        if size is not None or tta:
            notes.append("thresholds and temperature are those of the run's own size and views")
        several = _measure_several(run, which, predictions, own, reading, callback, **measured)
        result = replace(several, notes=[*notes, *several.notes], **about)
        return _keep(run, result), predictions
    if run.kind == "numbers":
        numbers = _measure_numbers(run, which, predictions, reading, callback, **measured)
        return _keep(run, replace(numbers, notes=[*notes, *numbers.notes], **about)), predictions
    result = replace(
        measure(predictions.logits, predictions.labels, run.class_names, grades=run.kind == "grades", **measured),
        **about,
        notes=notes,
        companions=_companions(run, predictions, callback) if which == "best" and size is None and not tta else {},
        real_top1=real_accuracy(predictions.logits.argmax(1), predictions.names, run.class_names),
        operating_point=_measure_point(run, model, which, point, predictions, reading, callback) if point else None,
    )
    return _keep(run, result), predictions


def _keep(run: Run, result: AnyEvaluation) -> AnyEvaluation:
    try:
        keep_evaluation(run, result)
    except UserError as error:  # a run that is read-only: the numbers are worth having all the same
        result.kept = False
        result.notes.append(f"the run does not keep these numbers: {error}")
    return result


def _measure_several(
    run: Run, which: str, seen: Predictions, own: bool, reading: Reading, callback: Callback | None, **measured: Any
) -> SeveralEvaluation:
    """The numbers of several labels per image, at thresholds and in probabilities that are fitted on the validation images."""
    held, notes = run.validation if which == "best" else None, []
    try:
        temperature = calibrate(run, which, predictions=held, reading=reading, callback=callback).temperature
        thresholds = find_thresholds(run, which, predictions=held, reading=reading, callback=callback)
    except UserError as error:  # other data, where the run's own is gone
        thresholds, temperature = no_thresholds(run.class_names), 1.0
        notes = [f"thresholds are {UNFITTED:g} and probabilities not calibrated, without validation images: {error}"]
    if own and measured["split"] == "val" and thresholds.images:
        notes.append("the thresholds were fitted on these images, which flatters what depends on them")
    result = measure_several(
        seen.logits, seen.targets, run.class_names, thresholds, temperature=temperature, **measured
    )
    return replace(result, notes=[*notes, *result.notes])


def _measure_numbers(
    run: Run, which: str, seen: Predictions, reading: Reading, callback: Callback | None, **measured: Any
) -> NumbersEvaluation:
    """Predicted numbers, with intervals that are calibrated on the validation images."""
    held, notes = run.validation if which == "best" else None, []
    try:
        temperature = calibrate(run, which, predictions=held, reading=reading, callback=callback).temperature
    except UserError as error:  # other data, where the run's own is gone
        temperature, notes = 1.0, [f"prediction intervals are not calibrated, without validation images: {error}"]
    values = Values.of(seen.logits.double().numpy(), run.target.numbers, temperature)
    return replace(measure_numbers(values, seen.targets, run.target.numbers, **measured), notes=notes)


def _measure_point(
    run: Run,
    model: nn.Module,
    which: str,
    point: Wanted,
    seen: Predictions,
    reading: Reading,
    callback: Callback | None,
) -> dict:
    """The operating point on what was seen, in the calibrated probabilities that predictions have."""
    held = predict_validation(run, model, reading=reading, callback=callback)
    temperature = calibrate(run, which, predictions=held, reading=reading, callback=callback).temperature
    number = point.find_class(run.class_names)

    def scores(of: Predictions) -> tuple[np.ndarray, np.ndarray]:
        return (of.logits.double() / temperature).softmax(1)[:, number].numpy(), (of.labels == number).numpy()

    return measure_point(point, scores(held), scores(seen), seen.groups)


MARKS: dict[type, tuple[str, ...]] = {  # by which a file of each is known
    Evaluation: ("top1", "per_class", "confusion"),
    SeveralEvaluation: ("map", "per_label"),
    NumbersEvaluation: ("mae", "truth"),
}


def keep_evaluation(run: Run, result: Evaluation | SeveralEvaluation | NumbersEvaluation) -> None:
    """Write the numbers into the run, and that its test split was looked at."""
    marks = MARKS[type(result)]
    write_text(run.path / result.file_name, result.to_json(), ours=json_with(*marks))
    if result.own and result.split == "test":
        run.update(test_looks=run.info.get("test_looks", 0) + 1)
    run.publish()


def _resized(run: Run, which: str, size: tuple[int, int]) -> nn.Module:
    """The run's model for images of another size."""
    recipe = run.recipe
    model = build_model(
        recipe.model,
        num_classes=len(run.class_names),
        in_chans=run.preprocessing().channels,
        img_size=size,
        **recipe.model_args,
    )
    load_weights(model, run.path / which)
    return model.eval()


def _companions(run: Run, seen: Predictions, callback: Callback | None) -> dict[str, float]:
    """Top-1 of the networks that were trained beside the model, on the same images."""
    found = {}
    for name, network in run.load_companions().items():
        logits = predict_logits(network, seen.source, seen.preprocessing, callback=callback)
        found[name] = (logits.argmax(1) == seen.labels).double().mean().item()
    return found


def read_evaluation(run: Run) -> Evaluation:
    """What a run reached on its own test split, as it was written when that was looked at."""
    return Evaluation.read(run.path / "evaluation-test.json")


def _open(run: Run, data: str | None, reading: Reading, opened: Dataset | None, group: str) -> Dataset:
    """The data, with classes and channels as the run's model knows them; its own with the run's test split."""
    if data is None:
        run.require("data")
    open_as = partial(
        open_dataset,
        data or run.recipe.data,
        root=reading.root,
        download=reading.download,
        channels=run.preprocessing().channels,
        on_bad_image=run.recipe.on_bad_image,
        class_names=run.class_names,
        labels=run.kind,
    )
    named = _is_named_own(run, data)
    group = run.recipe.group if named else group
    dataset = open_as(test_split=run.recipe.test_split if named else "test", group=group, opened=opened)
    if not _is_own(run, data, dataset):
        return dataset
    return open_as(test_split=run.recipe.test_split, group=group, opened=dataset)


def _is_own(run: Run, data: str | None, dataset: Dataset) -> bool:
    """Whether this is the data that the run was trained on: by its name or place, or by its content."""
    return _is_named_own(run, data) or dataset.fingerprint == run.data_fingerprint


def _is_named_own(run: Run, data: str | None) -> bool:
    return data is None or canonical_name(data) == canonical_name(run.recipe.data)


def _changes(run: Run, dataset: Dataset, own: bool) -> list[str]:
    """A note where a run's own data is no longer what it was trained on."""
    if not own or run.data_fingerprint in (None, dataset.fingerprint):
        return []
    return [f"{dataset.name} has changed since the training, so its splits may differ from those used then"]


def _choose_split(run: Run, dataset: Dataset, split: str, own: bool) -> Images:
    if own and split == "train" and run.members:
        raise UserError(
            f"every training image was learnt from by some of {run.path}'s members; split=val shows each by the one that did not."
        )
    if own and split != "test" and "train" in dataset.splits:
        train, val = split_training(dataset, run.recipe)  # as the run divided them: no image is in both
        return train if split == "train" else val
    if split not in dataset.splits:
        held = ", ".join(sorted(dataset.splits))
        hint = "; split=val shows the part held out of training" if own else ""
        raise UserError(f"{dataset.name} has no {split} split (it has {held}){hint}.")
    return dataset.splits[split]
