"""How much each image counts: scikit-learn's sample_weight and class_weight as one number per image."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vitling.errors import UserError

BALANCED = "balanced"


def image_weights(
    sample_weight: Any, class_weight: Mapping | str | None, labels: np.ndarray, classes: np.ndarray
) -> np.ndarray | None:
    """A weight per image, 1 on average over those that count at all; None where all count the same.

    Only proportions matter: the mean is kept, and with it what a learning rate means.
    """
    if sample_weight is None and class_weight is None:
        return None
    weights = np.ones(len(labels)) if sample_weight is None else _check_samples(sample_weight, len(labels))
    weights = weights * _class_factors(class_weight, labels[weights > 0], classes)[labels]
    if not weights.any():
        raise UserError("every weight is zero, so there is nothing to learn from; give some images more.")
    return weights / weights[weights > 0].mean()


def _check_samples(given: Any, count: int) -> np.ndarray:
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError("sample_weight is not made of numbers; give one per image.") from None
    if weights.ndim == 0:
        weights = np.full(count, float(weights))
    if weights.shape != (count,):
        raise UserError(f"sample_weight has the shape {weights.shape}; {count} images need {(count,)}.")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise UserError("sample_weight holds negative numbers, NaN or infinity; weights are 0 or more.")
    return weights


def _class_factors(given: Mapping | str | None, labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The factor of each class; those that a mapping leaves out have 1."""
    factors = np.ones(len(classes))
    if given is None:
        return factors
    if isinstance(given, str) and given == BALANCED:
        counts = np.bincount(labels, minlength=len(classes))
        return len(labels) / (len(classes) * np.maximum(counts, 1))
    if not isinstance(given, Mapping):
        raise UserError(f"class_weight={given!r} is not allowed; give 'balanced' or a dict of class and weight.")
    place = {name: i for i, name in enumerate(classes.tolist())}
    for name, factor in given.items():
        if name not in place:
            some = ", ".join(map(repr, list(place)[:5]))
            raise UserError(f"class_weight has {name!r}, which is no class of y; its classes are {some}.")
        if not isinstance(factor, int | float | np.number) or not 0 <= factor < np.inf:
            raise UserError(f"class_weight[{name!r}]={factor!r} must be a number, 0 or more.")
        factors[place[name]] = factor
    return factors
