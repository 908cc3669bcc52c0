"""Operating point: the threshold of one class's probability above which an image counts as that class, and what it gives on other images.

The threshold is fitted on the validation images, for the sensitivity or specificity that is wanted there. What it gives on the test images is
measured, never chosen: a threshold that was picked on them would flatter the model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitling.errors import UserError, did_you_mean
from vitling.evaluation.metrics import share_of


@dataclass(frozen=True)
class Wanted:
    """A class against all others, with the least sensitivity or the least specificity that is wanted on validation."""

    positive: str
    sensitivity: float | None = None
    specificity: float | None = None

    def __post_init__(self) -> None:
        if (self.sensitivity is None) == (self.specificity is None):
            raise UserError(
                "an operating point is at a sensitivity or at a specificity; give one of the two, such as sensitivity 0.95."
            )
        if not 0 < self.at_least <= 1:
            raise UserError(
                f"{self.name}={self.at_least:g} is out of range; it must be above 0 and at most 1, such as 0.95."
            )

    @property
    def name(self) -> str:
        return "specificity" if self.sensitivity is None else "sensitivity"

    @property
    def at_least(self) -> float:
        value = self.specificity if self.sensitivity is None else self.sensitivity
        assert value is not None  # one of the two was given
        return value

    def find_class(self, class_names: Sequence[str]) -> int:
        """The number of the positive class."""
        if self.positive not in class_names:
            raise UserError(
                f"there is no class '{self.positive}' to be positive. {did_you_mean(self.positive, class_names)}"
            )
        return list(class_names).index(self.positive)


def fit_threshold(scores: np.ndarray, positive: np.ndarray, wanted: Wanted) -> float:
    """The threshold that reaches what is wanted and gives the most of the other: an image is positive at this score or above."""
    chosen = np.sort(scores[positive if wanted.name == "sensitivity" else ~positive])
    if not len(chosen):
        kind = "of" if wanted.name == "sensitivity" else "of other classes than"
        raise UserError(f"no validation image is {kind} '{wanted.positive}', so that no threshold can be fitted.")
    needed = math.ceil(wanted.at_least * len(chosen) - 1e-9)
    if wanted.name == "sensitivity":
        return float(chosen[len(chosen) - needed])
    return float(np.nextafter(chosen[needed - 1], np.inf))


def measure_point(
    wanted: Wanted,
    validation: tuple[np.ndarray, np.ndarray],
    measured: tuple[np.ndarray, np.ndarray],
    groups: np.ndarray | None = None,
) -> dict:
    """Fit the threshold on validation and apply it to other images; both are scores of the class, and whether an image is of it."""
    threshold = fit_threshold(*validation, wanted)
    held, truth = validation
    point: dict = {
        "positive": wanted.positive,
        "wanted": wanted.name,
        "at_least": wanted.at_least,
        "threshold": threshold,
        "val_images": len(held),
        "val_sensitivity": float((held[truth] >= threshold).mean()) if truth.any() else 0.0,
        "val_specificity": float((held[~truth] < threshold).mean()) if not truth.all() else 0.0,
    }
    scores, truth = measured
    for what, chosen, hit in (("sensitivity", truth, scores >= threshold), ("specificity", ~truth, scores < threshold)):
        point[what], point[f"{what}_interval"] = share_of(hit[chosen], None if groups is None else groups[chosen])
    return point
