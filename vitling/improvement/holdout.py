"""Holdout: which images choose, which confirm, and which are learnt from.

What is confirmed on must have had no part in anything: in no training, in the choice of no epoch, in no comparison of trials. The test
split is not touched at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset
from vitling.data.sources.images import Images
from vitling.data.sources.parts import part_name, write_parts
from vitling.data.splits import carve_validation, name_some
from vitling.errors import UserError
from vitling.recipes import Recipe, override

MANY = 400  # images: a difference of three points shows on so many
CONFIRM_SHARE, CONFIRM_MOST = 0.1, 0.2  # of the training images, where they have to be taken from those
CHOOSE_SHARE, CHOOSE_MOST = 0.05, 0.15
CHOOSE_LIMIT = 2000  # of a large validation split: trials validate on them again and again
LEAST_TRAINING = 2  # images of a class


@dataclass(frozen=True)
class Rows:
    """Positions among the training images (`train`) and the validation images (`val`) of the run."""

    train: np.ndarray
    val: np.ndarray

    def __len__(self) -> int:
        return len(self.train) + len(self.val)


@dataclass(frozen=True)
class Division:
    """Who gets which images. `again`: the confirming ones were learnt from by the run, so that it has to be trained again without them."""

    confirm: Rows
    choose: Rows  # held out of every trial
    validate: Rows  # held out of the final training, to pick its epoch
    again: bool
    note: str


NONE = np.array([], dtype=np.int64)


def divide(
    train_labels: np.ndarray,
    val_labels: np.ndarray,
    *,
    own_val: bool,
    may_train_again: bool,
    train_groups: np.ndarray | None = None,
    val_groups: np.ndarray | None = None,
) -> Division:
    """Divide what the run learned from (`train_labels`) and was validated on (`val_labels`).

    A large validation split is halved. A small one chooses, and the images that confirm are taken from the training images; that needs the run
    trained again without them. Where there is no time for that, all of it confirms, and the images that choose are taken from training.
    `own_val`: the data brings its validation split, which then is not mixed with training images. Groups, where there are any, stay whole.
    """
    every = np.arange(len(val_labels))
    if len(val_labels) >= 2 * MANY:
        kept, chosen = _carve_some(val_labels, min(0.5, CHOOSE_LIMIT / len(val_labels)), val_groups)
        note = f"the {len(val_labels):,} validation images are divided: {len(chosen):,} choose, {len(kept):,} confirm"
        return Division(Rows(NONE, kept), Rows(NONE, chosen), Rows(NONE, chosen), False, note)
    total = len(train_labels) + len(val_labels)
    choosing = min(max(MANY * 3 / 4, CHOOSE_SHARE * total), CHOOSE_MOST * total)
    if not may_train_again:
        _, chosen = carve_validation(train_labels, fraction=choosing / len(train_labels), groups=train_groups)
        _, validating = _carve_some(train_labels[chosen], 0.5, _of(train_groups, chosen))
        note = (
            f"all {len(val_labels):,} validation images confirm; {len(chosen):,} training images are held out of the trials to choose by, "
            f"and {len(validating):,} of the final training"
        )
        return Division(Rows(NONE, every), Rows(chosen, NONE), Rows(chosen[validating], NONE), False, note)
    confirming = min(max(MANY, CONFIRM_SHARE * total), CONFIRM_MOST * len(train_labels))
    rest, confirm = carve_validation(train_labels, fraction=confirming / len(train_labels), groups=train_groups)
    missing = choosing - (0 if own_val else len(val_labels))
    chosen = NONE
    if missing >= 1 or own_val:
        _, extra = carve_validation(
            train_labels[rest], fraction=max(missing, 1) / len(rest), groups=_of(train_groups, rest)
        )
        chosen = rest[extra]
    choose = Rows(chosen, NONE if own_val else every)
    note = (
        f"{len(val_labels):,} validation images are few: {len(confirm):,} training images are held out to confirm"
        + (f" and {len(chosen):,} more of the trials to choose by" if len(chosen) else "")
    )
    return Division(Rows(confirm, NONE), choose, Rows(NONE, every), True, note)


def _of(groups: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if groups is None else groups[rows]


def _carve_some(labels: np.ndarray, fraction: float, groups: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """`carve_validation`, of classes with an only image too: the second part gets that, together with all of its group."""
    _, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    single = np.flatnonzero(counts[numbers] == 1)
    several = np.flatnonzero(counts[numbers] > 1)
    if groups is not None and len(single):
        single = np.flatnonzero(np.isin(groups, groups[single]))
        several = np.setdiff1d(np.arange(len(labels)), single)
        kept, carved = _carve_some(labels[several], fraction, groups[several]) if len(several) else (NONE, NONE)
        return several[kept], np.sort(np.concatenate([several[carved], single]))
    if not len(several):
        return NONE, single
    kept, carved = carve_validation(
        np.unique(numbers[several], return_inverse=True)[1], fraction=fraction, groups=_of(groups, several)
    )
    return several[kept], np.sort(np.concatenate([several[carved], single]))


@dataclass(frozen=True)
class Holdout:
    """The division of some data, written to a file that recipes name as their data."""

    file: Path
    division: Division
    counts: dict[str, int]  # images that each part trains on and validates on, and that confirm

    def trial(self, recipe: Recipe) -> Recipe:
        """The recipe on what trials learn from, validated on what chooses."""
        return self._on("trial", override(recipe, {"on_bad_image": "error"}))  # the bad ones are out already

    def final(self, recipe: Recipe) -> Recipe:
        """The recipe on all that may be learnt from."""
        return self._on("final", recipe)

    def _on(self, part: str, recipe: Recipe) -> Recipe:
        whole = {"folds": 0, "fold": 0, "fraction": 1.0, "fraction_rule": "vitling", "test_split": "test"}
        return override(recipe, {"data": part_name(part, self.file), **whole})


def hold_out(
    dataset: Dataset, recipe: Recipe, file: Path, *, may_train_again: bool
) -> tuple[Holdout, dict[str, Images]]:
    """Divide the images of a recipe, and write that down; and the images of each role: confirm, validate, and learn (final)."""
    train, val = split_training(dataset, recipe)
    own_val = "val" in dataset.splits
    try:
        division = divide(
            train.labels,
            val.labels,
            own_val=own_val,
            may_train_again=may_train_again,
            train_groups=train.groups,
            val_groups=val.groups,
        )
    except UserError as error:
        raise UserError(f"too few images to hold some out, for choosing and for confirming: {error}") from None
    taken = {name: np.zeros(len(train), bool) for name in ("trial", "final")}
    for name, held in (("trial", division.choose), ("final", division.validate)):
        taken[name][held.train] = taken[name][division.confirm.train] = True
    learned = {name: np.flatnonzero(~mask) for name, mask in taken.items()}
    few = np.bincount(train.labels[learned["trial"]], minlength=len(dataset.class_names)) < LEAST_TRAINING
    if few.any():
        names = [dataset.class_names[c] for c in np.flatnonzero(few)]
        raise UserError(
            f"too few images of {name_some(names, 'class', 'classes')}: some of each are held out to choose and to confirm by, and "
            f"{LEAST_TRAINING} must be left to learn from; add images, or leave the class out"
        )
    assert dataset.found is not None  # opened from a source
    found = dataset.found.splits
    parts = {
        name: {
            "train": ("train", _places(found["train"], train, learned[name])),
            "val": _held_out(found, train, val, held, own_val),
        }
        for name, held in (("trial", division.choose), ("final", division.validate))
    }
    tested = "val" if recipe.test_split == "val" else "test"
    if tested in found and "test" in dataset.splits:
        parts["final"]["test"] = (tested, np.arange(len(found[tested])))
    write_parts(file, recipe.data, dataset.found, parts)
    of_one = {
        role: val.subset(rows.val) if len(rows.val) else train.subset(rows.train)
        for role, rows in (("confirm", division.confirm), ("validate", division.validate))
    }
    counts = {
        "trial_train": len(learned["trial"]),
        "choose": len(division.choose),
        "final_train": len(learned["final"]),
        "validate": len(division.validate),
        "confirm": len(division.confirm),
    }
    return Holdout(file, division, counts), {**of_one, "learn": train.subset(learned["final"])}


def _held_out(
    found: Mapping[str, Images], train: Images, val: Images, held: Rows, own_val: bool
) -> tuple[str, np.ndarray]:
    """The split of the source that held-out images come from, and their places there."""
    if own_val and len(held.val):
        assert not len(held.train), "no split is of two sources"
        return "val", _places(found["val"], val, held.val)
    both = (_places(found["train"], images, rows) for images, rows in ((train, held.train), (val, held.val)))
    return "train", np.sort(np.concatenate(list(both)))


def _places(source: Images, images: Images, indices: np.ndarray) -> np.ndarray:
    """Where some of these images stand in the split of the source that they come from."""
    order = np.argsort(source.rows)
    return order[np.searchsorted(source.rows, images.rows[indices], sorter=order)]
