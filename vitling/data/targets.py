"""Target: what the labels of a data set are, and what follows from that: outputs, names, strata of a split, the score of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from vitling.errors import UserError

Kind = Literal["classes", "several", "grades", "numbers"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COMMON = 10  # images, or groups: so many of one combination of labels are a stratum of their own
LEAST = 2  # of a stratum: one to learn from and one to validate


@dataclass(frozen=True)
class Score:
    """The number of a validation that says which weights are the best."""

    key: str  # of a measurement; in a run's files val_KEY
    name: str  # in a sentence, after "validation"
    short: str  # where there is little room
    of_images: bool  # a share of the images, with the intervals and the standard error of one

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


SCORES: dict[Kind, Score] = {
    "classes": Score("top1", "accuracy", "top-1", of_images=True),
    "several": Score("map", "mean average precision", "mAP", of_images=False),
}


@dataclass(frozen=True)
class Target:
    """What a model is to give for an image."""

    kind: Kind = "classes"
    names: tuple[str, ...] = ()  # of its outputs

    @property
    def outputs(self) -> int:
        return len(self.names)

    @property
    def score(self) -> Score:
        return SCORES[self.kind]

    @property
    def in_words(self) -> str:
        """How many it has of what, for a line."""
        return f"{self.outputs} {'labels, several per image' if self.kind == 'several' else 'classes'}"

    def strata(self, labels: np.ndarray, targets: np.ndarray | None, groups: np.ndarray | None = None) -> np.ndarray:
        """The number of each image's stratum, by which a split is proportional: its class, or its combination of labels."""
        return labels if targets is None else combination_strata(targets, groups)

    def require_classes(self, what: str, data: str) -> None:
        """For what knows images of one class each; `what` begins the sentence."""
        if self.kind != "classes":
            raise UserError(
                f"{what} images of one class each, and those of {data} have several labels (labels=several); train, evaluate, predict, export and "
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


def check_kind(labels: str) -> None:
    """Refuse kinds of labels that nothing learns from yet, also in a run or a file of a later version."""
    if labels in ("grades", "numbers"):
        raise UserError(f"labels={labels} is not supported; use auto, classes or several.")


def positives(targets: np.ndarray) -> np.ndarray:
    """How many images have each label."""
    return (targets > 0).sum(axis=0)


def lacking(targets: np.ndarray, names: Sequence[str], least: int) -> list[str]:
    """The labels that fewer images than that have."""
    return [name for name, count in zip(names, positives(targets).tolist(), strict=True) if count < least]
