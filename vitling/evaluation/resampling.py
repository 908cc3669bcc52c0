"""95 % intervals by resampling: of what is no proportion of images, and of proportions where images come in groups.

Images of one patient or slide are no independent witnesses: where groups are known, groups are drawn, not images, and an interval is as wide as
so few witnesses make it. Percentiles of seeded draws: the same numbers always give the same interval.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from vitling.evaluation.intervals import wilson_interval

Interval = tuple[float, float]

RESAMPLES = 1000
MOST_SCORES = (
    10**9
)  # images times classes times resamples, about a second: larger ones get fewer resamples, BLOCK at least
BLOCK = 100  # resamples at a time: the weights of 10,000 images then stay in the cache
NO_WIDTH = 1e-9


def share_interval(hits: np.ndarray, groups: np.ndarray | None = None) -> Interval:
    """Of the share of images that are hits: Wilson's, or over groups where there are some.

    Where every draw of groups gives the same share, as when all images are hits, or all are of one group, it is Wilson's for as many images
    as there are groups.
    """
    if groups is None:
        return wilson_interval(int(hits.sum()), len(hits))
    count = len(np.unique(groups))
    return mean_interval(hits, groups) or wilson_interval(hits.mean() * count, count)


def mean_interval(values: np.ndarray, groups: np.ndarray) -> Interval | None:
    """Of the mean over images, by drawing groups; None where every draw gives the same."""
    units = np.unique(groups, return_inverse=True)[1].reshape(-1)
    of_group = np.stack([np.bincount(units, weights=values), np.bincount(units)], axis=1)
    count, rng = len(of_group), np.random.default_rng(0)
    drawn = np.stack([of_group[rng.integers(0, count, count)].sum(axis=0) for _ in range(RESAMPLES)])
    return percentile_interval(drawn[:, 0] / drawn[:, 1])


@dataclass
class Resampled:
    """Intervals of one evaluation; None where every draw gives the same number, which is no knowledge, or none a number."""

    resamples: int
    balanced_accuracy: Interval | None
    kappa: Interval | None
    kappa_quadratic: Interval | None
    auroc: Interval | None
    class_auroc: list[Interval | None] = field(default_factory=list)


def resample(
    probabilities: np.ndarray, labels: np.ndarray, predicted: np.ndarray, groups: np.ndarray | None = None
) -> Resampled:
    """Intervals of balanced accuracy, Cohen's kappa and AUROC (one class against the others, and their mean), from (images, classes)."""
    images, classes = probabilities.shape
    units = np.arange(images) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    count = int(units.max()) + 1
    times = BLOCK * max(1, min(RESAMPLES, MOST_SCORES // (images * classes)) // BLOCK)
    counter = _ConfusionSums(labels, predicted, units, count, classes)

    def rank(c: int) -> Ranking:
        return Ranking(probabilities[:, c], labels == c, units, count)

    # Very many scores have a single block, and need not all be ranked at once.
    rankings = [rank(c) for c in range(classes)] if times > BLOCK else None
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("balanced", "kappa", "quadratic", "auroc")}
    for weights in draw_units(count, times):
        for name, values in counter.agreement(weights).items():
            found[name].append(values)
        found["auroc"].append(np.stack([one.auroc(weights) for one in rankings or map(rank, range(classes))]))
    balanced, kappa, quadratic, auroc = (np.concatenate(parts, axis=-1) for parts in found.values())
    with np.errstate(invalid="ignore"):  # a class that a draw lacks is no part of its mean
        macro = np.nansum(auroc, axis=0) / (~np.isnan(auroc)).sum(axis=0)
    return Resampled(
        times,
        percentile_interval(balanced),
        percentile_interval(kappa),
        percentile_interval(quadratic),
        percentile_interval(macro),
        [percentile_interval(one) for one in auroc],
    )


def draw_units(count: int, times: int) -> Iterator[np.ndarray]:
    """How often each of so many units was drawn, (units, BLOCK), block by block until there are so many draws; always the same ones."""
    rng = np.random.default_rng(0)
    for _ in range(0, times, BLOCK):
        weights = np.empty((count, BLOCK), np.float32)
        for number in range(BLOCK):
            weights[:, number] = np.bincount(rng.integers(0, count, count), minlength=count)
        yield weights


def percentile_interval(values: np.ndarray) -> Interval | None:
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    low, high = np.percentile(values, (2.5, 97.5))
    return (float(low), float(high)) if high - low > NO_WIDTH else None


def sums_of_units(rows: np.ndarray, units: np.ndarray, shape: tuple[int, int]):
    """The sparse matrix that adds the weights of units up: of each image to its row."""
    from scipy.sparse import csr_matrix  # takes long to import

    return csr_matrix((np.ones(len(rows), np.float32), (rows, units)), shape=shape)


class _ConfusionSums:
    """Confusion matrices of resamples, as far as they are not empty."""

    def __init__(self, labels: np.ndarray, predicted: np.ndarray, units: np.ndarray, count: int, classes: int):
        cells, row = np.unique(labels * classes + predicted, return_inverse=True)
        self.truth, self.seen = cells // classes, cells % classes
        self.classes = classes
        self.cells = sums_of_units(row.reshape(-1), units, (len(cells), count))

    def agreement(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Balanced accuracy and kappa, plain and with quadratic weights, of every resample."""
        cells = (self.cells @ weights).astype(np.float64)
        total, on_diagonal = cells.sum(axis=0), self.truth == self.seen
        truth, seen, correct = (np.zeros((self.classes, weights.shape[1])) for _ in range(3))
        np.add.at(truth, self.truth, cells)
        np.add.at(seen, self.seen, cells)
        np.add.at(correct, self.truth[on_diagonal], cells[on_diagonal])
        with np.errstate(invalid="ignore", divide="ignore"):
            balanced = np.nanmean(correct / truth, axis=0)
            chance = (truth * seen).sum(axis=0) / total**2
            kappa = (correct.sum(axis=0) / total - chance) / (1 - chance)
            steps = np.arange(self.classes)[:, None]
            apart = ((self.truth - self.seen)[:, None] ** 2 * cells).sum(axis=0) / total
            # The mean square distance of a truth and a prediction that know nothing of each other, by their moments.
            square = ((steps**2) * (truth + seen)).sum(axis=0) / total
            product = (steps * truth).sum(axis=0) * (steps * seen).sum(axis=0) / total**2
            quadratic = 1 - apart / (square - 2 * product)
        return {"balanced": balanced, "kappa": kappa, "quadratic": quadratic}


class Ranking:
    """AUROC of resamples, of one class against the others: every pair of a positive and a negative, ties half."""

    def __init__(self, scores: np.ndarray, positive: np.ndarray, units: np.ndarray, count: int):
        levels, own = np.unique(scores[positive], return_inverse=True)
        # Negatives matter only by which positives they are below: 2 k below positive level k, 2 k + 1 equal to it.
        place = np.searchsorted(levels, scores[~positive], "left") + np.searchsorted(levels, scores[~positive], "right")
        self.positives = sums_of_units(own.reshape(-1), units[positive], (len(levels), count))
        self.negatives = sums_of_units(place, units[~positive], (2 * len(levels) + 1, count))

    def auroc(self, weights: np.ndarray) -> np.ndarray:
        positives, negatives = (sums @ weights for sums in (self.positives, self.negatives))
        below = np.cumsum(negatives, axis=0, dtype=np.float64)
        won = (positives * (below[:-1:2] + 0.5 * negatives[1::2])).sum(axis=0)
        pairs = positives.sum(axis=0, dtype=np.float64) * below[-1]
        with np.errstate(invalid="ignore", divide="ignore"):
            return won / pairs
