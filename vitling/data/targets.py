"""Target: what the labels of a data set are, and what follows from that: outputs, names, strata of a split, the score of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from vitling.data.bins import Bins
from vitling.data.grades import read_grades
from vitling.errors import UserError

Kind = Literal["classes", "several", "grades", "numbers"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COMMON = 10  # images, or groups: so many of one combination of labels are a stratum of their own
LEAST = 2  # of a stratum: one to learn from and one to validate
PARTS = 10  # strata of numbers, from low to high, of COMMON images or groups at least: validation has one of each


@dataclass(frozen=True)
class Score:
    """The number of a validation that says which weights are the best."""

    key: str  # of a measurement; in a run's files val_KEY
    name: str  # in a sentence, after "validation"
    short: str  # where there is little room
    of_images: bool  # a share of the images, with the intervals and the standard error of one
    beside: tuple[str, ...] = ()  # further measurements, which the same files keep

    @property
    def recorded(self) -> str:
        """What metrics.jsonl and run.json call it."""
        return f"val_{self.key}"

    @property
    def best(self) -> str:
        """What callbacks call the best one so far."""
        return f"best_{self.key}"

    def show(self, value: float, digits: int = 1) -> str:
        """In words, to be read after its name."""
        return f"{100 * value:.{digits}f} %" if self.of_images else f"{value:.{digits + 2}f}"


ACCURACY = Score("top1", "accuracy", "top-1", of_images=True)
# How much of the error of always saying the training median is gone. R² would be decided by the one worst image.
SKILL = Score("skill", "skill", "skill", of_images=False, beside=("mae",))
SCORES: dict[Kind, Score] = {
    "classes": ACCURACY,
    "grades": ACCURACY,
    "numbers": SKILL,
    "several": Score("map", "mean average precision", "mAP", of_images=False),
}


@dataclass(frozen=True)
class Target:
    """What a model is to give for an image."""

    kind: Kind = "classes"
    names: tuple[str, ...] = ()  # of its outputs
    bins: Bins | None = None  # of numbers, once there are training images to decide them from

    @property
    def has_classes(self) -> bool:
        """Whether an image has one class; grades are classes in an order."""
        return self.kind in ("classes", "grades")

    @property
    def numbers(self) -> Bins:
        """The bins of a model that predicts numbers."""
        assert self.bins is not None, "bins are decided when training begins"
        return self.bins

    @property
    def grades(self) -> np.ndarray:
        """The number of each grade."""
        return read_grades(self.names, "the model")

    def with_bins(self, numbers: np.ndarray | None) -> "Target":
        """The same with bins for these training numbers, where it is of numbers."""
        if self.kind != "numbers":
            return self
        assert numbers is not None, "images of numbers have targets"
        bins = Bins.of(numbers)
        return Target(self.kind, tuple(bins.names), bins)

    @property
    def outputs(self) -> int:
        return len(self.names)

    @property
    def score(self) -> Score:
        return SCORES[self.kind]

    @property
    def in_words(self) -> str:
        """How many it has of what, for a line."""
        if self.kind == "numbers":
            return f"numbers in {self.outputs} bins"
        what = {"several": "labels, several per image", "grades": "grades"}.get(self.kind, "classes")
        return f"{self.outputs} {what}"

    def strata(self, labels: np.ndarray, targets: np.ndarray | None, groups: np.ndarray | None = None) -> np.ndarray:
        """The number of each image's stratum, by which a split is proportional: its class, its combination of labels, or its part of the numbers."""
        if targets is None:
            return labels
        return number_strata(targets, groups) if self.kind == "numbers" else combination_strata(targets, groups)

    def require_classes(self, what: str, data: str) -> None:
        """For what knows images of one class each; `what` begins the sentence."""
        if not self.has_classes:
            have = "numbers" if self.kind == "numbers" else "several labels"
            raise UserError(
                f"{what} images of one class each, and those of {data} have {have} (labels={self.kind}); train, evaluate, predict, export and "
                "serve know these."
            )


CLASSES = Target()


def find_score(record: Mapping) -> Score | None:
    """The score in a record of metrics.jsonl, or in what run.json says of the best epoch; None of what learns without labels."""
    return next((score for score in SCORES.values() if score.recorded in record), None)


def combination_strata(targets: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """The number of each image's combination of labels, rare ones put together.

    Combinations of fewer than COMMON images, or groups where there are some, are put together by the rarest label that they have; what is then
    still alone is put together, or to the largest stratum. So each stratum has two at least, where there are two in all.
    """
    units = np.arange(len(targets)) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    found = np.unique(targets, axis=0, return_inverse=True)[1].reshape(-1)
    rare = _smaller(found, units, COMMON)
    if rare.any():
        first, labels = found.max() + 1, targets.shape[1]
        rarity = np.where(targets > 0, (targets > 0).sum(axis=0), np.inf)
        by_label = np.where((targets > 0).any(axis=1), rarity.argmin(axis=1), labels)
        found = np.where(rare, first + by_label, found)
        found = np.where(rare & _smaller(found, units, LEAST), first + labels + 1, found)
        if (alone := _smaller(found, units, LEAST)).any():
            found[alone] = 0 if alone.all() else np.bincount(found[~alone]).argmax()
    return np.unique(found, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _smaller(found: np.ndarray, units: np.ndarray, least: int) -> np.ndarray:
    """Which images are in a stratum of fewer units than that."""
    pairs = np.unique(np.stack([found, units]), axis=1)
    return np.bincount(pairs[0], minlength=found.max() + 1)[found] < least


def number_strata(numbers: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """The number of each image's part of the numbers from low to high, or of that of its group."""
    if groups is None:
        return _parts(numbers)
    units = np.unique(groups, return_inverse=True)[1].reshape(-1)
    means = np.bincount(units, weights=numbers) / np.bincount(units)
    return _parts(means)[units]


def _parts(numbers: np.ndarray) -> np.ndarray:
    rank = np.argsort(np.argsort(numbers, kind="stable"), kind="stable")
    return (rank * max(1, min(PARTS, len(numbers) // COMMON)) // len(numbers)).astype(np.int64)


def positives(targets: np.ndarray) -> np.ndarray:
    """How many images have each label."""
    return (targets > 0).sum(axis=0)


def lacking(targets: np.ndarray, names: Sequence[str], least: int) -> list[str]:
    """The labels that fewer images than that have."""
    return [name for name, count in zip(names, positives(targets).tolist(), strict=True) if count < least]
