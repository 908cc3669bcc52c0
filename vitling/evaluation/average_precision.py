"""Average precision: of one label, and its mean over labels; of the images as they are, and of resamples of them.

torchmetrics and scikit-learn have the first, and the tests hold the three together; here a ranking is made once for a thousand resamples.
"""

import numpy as np

from vitling.evaluation.resampling import BLOCK, draw_units, sums_of_units

ERROR_RESAMPLES = BLOCK  # of the standard error that a validation is asked for


class Precision:
    """Average precision of one label: the mean, over its positives, of the precision at their place in the ranking. Ties share a place."""

    def __init__(self, scores: np.ndarray, positive: np.ndarray, units: np.ndarray, count: int):
        levels, own = np.unique(scores[positive], return_inverse=True)
        # What lies between two levels of positives counts at the lower one; what lies below all of them never does.
        place = np.searchsorted(levels, scores, "right") - 1
        counted = place >= 0
        self.positives = sums_of_units(own.reshape(-1), units[positive], (len(levels), count))
        self.found = sums_of_units(place[counted], units[counted], (len(levels), count))

    def average(self, weights: np.ndarray) -> np.ndarray:
        """Of every resample, given how often it drew each unit; nan where it drew no positive."""
        positives, found = ((sums @ weights)[::-1].astype(np.float64) for sums in (self.positives, self.found))
        true, called = np.cumsum(positives, axis=0), np.cumsum(found, axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = np.where(called > 0, true / called, 0.0)
            return (positives * precision).sum(axis=0) / true[-1]


def mean_average_precision(scores: np.ndarray, truth: np.ndarray) -> float | None:
    """Over the labels that have positives, from (images, labels); None where none has."""
    found = [_average_precision(scores[:, k], truth[:, k] > 0) for k in range(truth.shape[1]) if truth[:, k].any()]
    return float(np.mean(found)) if found else None


def standard_error(scores: np.ndarray, truth: np.ndarray, groups: np.ndarray | None = None) -> float:
    """Of the mean average precision: its deviation over resamples of the images, or groups."""
    units = np.arange(len(truth)) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    count = int(units.max()) + 1
    rankings = [
        Precision(scores[:, k], truth[:, k] > 0, units, count) for k in range(truth.shape[1]) if truth[:, k].any()
    ]
    if not rankings:
        return 0.0
    weights = next(draw_units(count, ERROR_RESAMPLES))
    return float(np.std(mean_over_labels(np.stack([one.average(weights) for one in rankings]))))


def mean_over_labels(values: np.ndarray) -> np.ndarray:
    """Of (labels, resamples): a label without a positive in a resample is no part of its mean."""
    with np.errstate(invalid="ignore"):
        return np.nansum(values, axis=0) / (~np.isnan(values)).sum(axis=0)


def _average_precision(scores: np.ndarray, positive: np.ndarray) -> float:
    """Of the images as they are, without sparse sums."""
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], np.cumsum(positive[order])
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))  # of each place that ties share
    true = hits[last]
    return float((np.diff(true, prepend=0) * true / (last + 1)).sum() / true[-1])
