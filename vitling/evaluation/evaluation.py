"""Evaluate a run: top-1, top-5, macro-F1, per class, calibration and the confusion matrix."""

from pathlib import Path

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading, load_split
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset, open_dataset
from vitling.data.sources.images import Images
from vitling.data.sources.named import match_name
from vitling.errors import UserError, did_you_mean
from vitling.evaluation.loop import predict_logits
from vitling.evaluation.metrics import Evaluation, measure
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
    callback: Callback | None = None,
) -> Evaluation:
    """Measure a run on a split of its own data, or of other data with the same classes.

    A look at the run's own test split is written into the run, because a number is worth less with each look.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'. {did_you_mean(split, SPLITS)}")
    check_weights(which)
    run = run if isinstance(run, Run) else load_run(run)
    reading = reading or Reading()
    dataset = open_dataset(
        data or run.recipe.data,
        root=reading.root,
        download=reading.download,
        channels=run.preprocessing().channels,
        on_bad_image=run.recipe.on_bad_image,
        class_names=run.class_names,
    )
    trained_on = run.info.get("data", {}).get("fingerprint")
    own = data is None or _same_source(data, run.recipe.data) or dataset.fingerprint == trained_on
    if own and trained_on not in (None, dataset.fingerprint):
        dataset.notes.append(
            f"{dataset.name} has changed since the training, so its splits may differ from those used then"
        )
    images = _choose_split(dataset, split, run, own)
    source = load_split(images, split, reading=reading, callback=callback, **run.preprocessing().fit_args())
    logits = predict_logits(run.load_model(which), source, run.preprocessing(), callback=callback)
    result = measure(logits, source.labels, run.class_names, data=dataset.name, split=split)
    result.own, result.weights, result.notes = own, which, dataset.notes
    write_text(run.path / result.file_name, result.to_json())
    if own and split == "test":
        run.update(test_looks=run.info.get("test_looks", 0) + 1)
    return result


def _same_source(data: str | Path, other: str | Path) -> bool:
    """Whether two descriptions of data mean the same files or the same named dataset."""
    name, path = match_name(str(data)), Path(data).expanduser()
    if name or not path.exists():
        return str(data) == str(other) or (name is not None and name == match_name(str(other)))
    return path.resolve() == Path(other).expanduser().resolve()


def _choose_split(dataset: Dataset, split: str, run: Run, own: bool) -> Images:
    if own and split != "test" and "train" in dataset.splits:
        train, val = split_training(dataset, run.recipe)  # as the run divided them: no image is in both
        return train if split == "train" else val
    if split not in dataset.splits:
        held = ", ".join(sorted(dataset.splits))
        hint = "; --split val shows the part held out of training" if own else ""
        raise UserError(f"{dataset.name} has no {split} split (it has {held}){hint}.")
    return dataset.splits[split]


def read_evaluation(run: Run) -> Evaluation:
    """What a run reached on its own test split, as it was written when that was looked at."""
    return Evaluation.from_json((run.path / "evaluation-test.json").read_text())
