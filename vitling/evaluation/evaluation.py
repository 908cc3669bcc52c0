"""Evaluate a run: top-1, top-5, macro-F1, per class, calibration and the confusion matrix."""

from dataclasses import replace
from pathlib import Path

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset, canonical_name, open_dataset
from vitling.data.sources.images import Images
from vitling.errors import UserError, did_you_mean
from vitling.evaluation.metrics import Evaluation, measure
from vitling.evaluation.predictions import predict_images
from vitling.files import write_text
from vitling.runs.run import Run, check_weights, load_run

SPLITS = ("train", "val", "test")


def evaluate(
    run: Run | str | Path,
    data: str | None = None,
    *,
    split: str = "test",
    which: str = "best",
    reading: Reading | None = None,
    dataset: Dataset | None = None,
    callback: Callback | None = None,
) -> Evaluation:
    """Measure a run on a split of its own data, or of other data with the same classes.

    `dataset` is that data where it has been opened already, as for the training. A look at the run's own test split is written
    into the run, because a number is worth less with each look.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'. {did_you_mean(split, SPLITS)}")
    check_weights(which)
    run = run if isinstance(run, Run) else load_run(run)
    reading = reading or Reading()
    dataset = _open(run, data, reading, dataset)
    own = _is_own(run, data, dataset)
    images = _choose_split(run, dataset, split, own)
    predictions = predict_images(run, run.load_model(which), images, split, reading=reading, callback=callback)
    result = measure(predictions.logits, predictions.labels, run.class_names, data=dataset.name, split=split)
    notes = [*dataset.notes, *_changes(run, dataset, own)]
    result = replace(result, own=own, weights=which, notes=notes)
    write_text(run.path / result.file_name, result.to_json())
    if own and split == "test":
        run.update(test_looks=run.info.get("test_looks", 0) + 1)
    return result


def read_evaluation(run: Run) -> Evaluation:
    """What a run reached on its own test split, as it was written when that was looked at."""
    return Evaluation.read(run.path / "evaluation-test.json")


def _open(run: Run, data: str | None, reading: Reading, opened: Dataset | None) -> Dataset:
    """The data, with classes and channels as the run's model knows them."""
    return open_dataset(
        data or run.recipe.data,
        root=reading.root,
        download=reading.download,
        channels=run.preprocessing().channels,
        on_bad_image=run.recipe.on_bad_image,
        class_names=run.class_names,
        opened=opened,
    )


def _is_own(run: Run, data: str | None, dataset: Dataset) -> bool:
    """Whether this is the data that the run was trained on: by its name or place, or by its content."""
    if data is None or canonical_name(data) == canonical_name(run.recipe.data):
        return True
    return dataset.fingerprint == run.data_fingerprint


def _changes(run: Run, dataset: Dataset, own: bool) -> list[str]:
    """A note where a run's own data is no longer what it was trained on."""
    if not own or run.data_fingerprint in (None, dataset.fingerprint):
        return []
    return [f"{dataset.name} has changed since the training, so its splits may differ from those used then"]


def _choose_split(run: Run, dataset: Dataset, split: str, own: bool) -> Images:
    if own and split != "test" and "train" in dataset.splits:
        train, val = split_training(dataset, run.recipe)  # as the run divided them: no image is in both
        return train if split == "train" else val
    if split not in dataset.splits:
        held = ", ".join(sorted(dataset.splits))
        hint = "; split=val shows the part held out of training" if own else ""
        raise UserError(f"{dataset.name} has no {split} split (it has {held}){hint}.")
    return dataset.splits[split]
