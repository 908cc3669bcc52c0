"""What is measured where the answer is a place in an order: distances and rank correlations, each with its 95 % interval.

Intervals are percentiles of resampled images, or groups where there are some, as in `resampling`.
"""

from collections.abc import Callable

import numpy as np

from vitling.evaluation.resampling import BLOCK, MOST_SCORES, RESAMPLES, draw_units, percentile_interval

Numbers = dict[str, np.ndarray]  # of every resample, by name
Measured = dict[str, float | None]
TRUTH_LEVELS = 200  # with more, pairs are too many to count for each resample: no tau


def measure_distances(
    predicted: np.ndarray,
    truth: np.ndarray,
    *,
    likeliest: np.ndarray | None = None,
    inside: np.ndarray | None = None,
    squares: bool = False,
    pairs: bool = False,
    groups: np.ndarray | None = None,
) -> dict:
    """MAE and Spearman's rho of predictions, each with `_interval`; None where a number is not defined.

    With `squares` RMSE and R²; with `pairs` Kendall's tau-b; of the `likeliest` grades a further MAE; where it is known which
    truths lie `inside` their prediction intervals, the share that do.
    """
    predicted, truth = np.asarray(predicted, np.float64), np.asarray(truth, np.float64)
    error = np.abs(predicted - truth)
    means: Numbers = {"mae": error}
    if likeliest is not None:
        means["mae_likeliest"] = np.abs(likeliest - truth)
    if inside is not None:
        means["coverage"] = inside.astype(np.float64)
    ranks = _Ranks(predicted, truth)
    measures: list[Callable[[np.ndarray], Numbers]] = [lambda weights: _means(means, weights), ranks.spearman]
    if squares:
        measures.append(lambda weights: _squares(error, truth, weights))
    if pairs and len(ranks.truth_counts) <= TRUTH_LEVELS:
        measures.append(ranks.kendall)

    def measure(weights: np.ndarray) -> Numbers:
        with np.errstate(invalid="ignore", divide="ignore"):
            return {name: values for one in measures for name, values in one(weights).items()}

    units = np.arange(len(truth)) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    drawn = [measure(weights[units].astype(np.float64)) for weights in draw_units(int(units.max()) + 1, _times(truth))]
    found: dict = {}
    for name, values in measure(np.ones((len(truth), 1))).items():
        found[name] = float(values[0]) if np.isfinite(values[0]) else None
        found[f"{name}_interval"] = percentile_interval(np.concatenate([one[name] for one in drawn]))
    return found


def _times(truth: np.ndarray) -> int:
    return BLOCK * max(1, min(RESAMPLES, MOST_SCORES // (20 * len(truth))) // BLOCK)  # each is about so many sums


def _means(values: Numbers, weights: np.ndarray) -> Numbers:
    return {name: of_images @ weights / weights.sum(axis=0) for name, of_images in values.items()}


def _squares(error: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> Numbers:
    total = weights.sum(axis=0)
    square = error**2 @ weights / total
    centred = truth - truth.mean()  # for the sake of digits
    variance = centred**2 @ weights / total - (centred @ weights / total) ** 2
    r2 = np.where(variance > 1e-12 * centred.var(), 1 - square / variance, np.nan)
    return {"rmse": np.sqrt(square), "r2": r2}


class _Ranks:
    """Two numbers per image as levels from low to high, ties sharing one."""

    def __init__(self, predicted: np.ndarray, truth: np.ndarray):
        # Float32 noise in the last digits is no order.
        levels, self.predicted = np.unique(predicted.astype(np.float32), return_inverse=True)
        self.truth_levels, self.truth = np.unique(truth, return_inverse=True)
        self.predicted, self.truth = self.predicted.reshape(-1), self.truth.reshape(-1)
        self.predicted_counts, self.truth_counts = np.zeros(len(levels)), np.zeros(len(self.truth_levels))

    def spearman(self, weights: np.ndarray) -> Numbers:
        """Pearson's correlation of mean ranks."""
        total = weights.sum(axis=0)
        a = (
            _midranks(_sum_levels(self.predicted, len(self.predicted_counts), weights))[self.predicted]
            - (total + 1) / 2
        )
        b = _midranks(_sum_levels(self.truth, len(self.truth_counts), weights))[self.truth] - (total + 1) / 2
        spread = np.sqrt((weights * a**2).sum(axis=0) * (weights * b**2).sum(axis=0))
        return {"spearman": np.where(spread > 0, (weights * a * b).sum(axis=0) / spread, np.nan)}

    def kendall(self, weights: np.ndarray) -> Numbers:
        """Kendall's tau-b: pairs in the same order less pairs in opposite order, ties left out on both sides."""
        below_truth = np.zeros((len(self.predicted_counts), weights.shape[1]))  # of lower truth, by predicted level
        score = np.zeros(weights.shape[1])
        for level in range(len(self.truth_counts)):
            chosen = self.truth == level
            own = _sum_levels(self.predicted[chosen], len(self.predicted_counts), weights[chosen])
            up_to = np.cumsum(below_truth, axis=0)
            lower, higher = up_to - below_truth, up_to[-1] - up_to
            score += (own * (lower - higher)).sum(axis=0)
            below_truth += own
        all_pairs = _pairs(weights.sum(axis=0))
        ties = [
            _pairs(_sum_levels(levels, len(counts), weights)).sum(axis=0)
            for levels, counts in ((self.predicted, self.predicted_counts), (self.truth, self.truth_counts))
        ]
        scale = np.sqrt((all_pairs - ties[0]) * (all_pairs - ties[1]))
        return {"kendall": np.where(scale > 0, score / scale, np.nan)}


def _sum_levels(levels: np.ndarray, count: int, weights: np.ndarray) -> np.ndarray:
    from scipy.sparse import csr_matrix  # takes long to import

    return csr_matrix((np.ones(len(levels)), (levels, np.arange(len(levels)))), shape=(count, len(levels))) @ weights


def _midranks(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts, axis=0) - (counts - 1) / 2


def _pairs(counts: np.ndarray) -> np.ndarray:
    return counts * (counts - 1) / 2
