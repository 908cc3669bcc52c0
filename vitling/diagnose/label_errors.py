"""Labels that are probably wrong: confident learning.

Method: Northcutt et al. 2021, "Confident learning: estimating uncertainty in dataset labels". A class's threshold is the mean
probability that images labelled so get for it. An image that reaches the threshold of another class is counted there. The probabilities
must come from a model that did not learn from the image's own label. What we do not take from a library: the method is these few
lines, and a dependency would bring a second data frame, its own classifiers and its own plots.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitling.evaluation.intervals import wilson_interval

MOST_CONFIDENT = 0.1  # of the images: where a good model errs so confidently, the label is the suspect
FEWEST_CONFIDENT = 12


@dataclass(frozen=True)
class LabelErrors:
    """Images whose label is probably wrong, the surest first."""

    index: Tensor  # rows of the probabilities
    suggested: Tensor  # the class of each
    images: int
    joint: Tensor  # (classes, classes): images by given and by probable class

    @property
    def share(self) -> float:
        return len(self.index) / self.images if self.images else 0.0


def find_label_errors(probabilities: Tensor, labels: Tensor) -> LabelErrors:
    """Confident learning on out-of-sample probabilities (images, classes)."""
    images, classes = probabilities.shape
    probabilities, labels = probabilities.double(), labels.long()
    own = probabilities.gather(1, labels[:, None])[:, 0]
    counts = torch.bincount(labels, minlength=classes)
    sums = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, own)
    thresholds = torch.where(
        counts > 0, sums / counts.clamp(min=1), torch.inf
    )  # nobody can be of a class without images
    reached = torch.where(probabilities >= thresholds, probabilities, -1.0)
    best, guess = reached.max(dim=1)
    counted = best >= 0
    joint = torch.zeros(classes, classes, dtype=torch.long)
    joint.index_put_(
        (labels[counted], guess[counted]), torch.ones(int(counted.sum()), dtype=torch.long), accumulate=True
    )
    wrong = (counted & (guess != labels)).nonzero().flatten()
    order = (probabilities[wrong, guess[wrong]] - own[wrong]).argsort(descending=True, stable=True)
    return LabelErrors(wrong[order], guess[wrong[order]], images, joint)


def rank_by_doubt(probabilities: Tensor, labels: Tensor) -> Tensor:
    """All images, the least probable labels first: by the probability of the best other class less that of the label."""
    own = probabilities.gather(1, labels.long()[:, None])[:, 0]
    other = probabilities.scatter(1, labels.long()[:, None], -torch.inf).amax(dim=1)
    return (other - own).argsort(descending=True, stable=True)


@dataclass(frozen=True)
class ConfidentErrors:
    """How often the most confident predictions disagree with the label, with its 95 % interval."""

    wrong: int
    images: int

    @property
    def share(self) -> float:
        return self.wrong / self.images

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.wrong, self.images)


def confident_errors(scores: Tensor, labels: Tensor, share: float = MOST_CONFIDENT) -> ConfidentErrors | None:
    """Disagreement among the share of images with the largest lead of one class; None of too few images.

    On clean labels it goes to zero with the confidence, however hard the data. Wrong labels are spread over all images, and stay.
    """
    count = round(share * len(labels))
    if count < FEWEST_CONFIDENT:
        return None
    first, second = scores.topk(2, dim=1).values.unbind(dim=1)
    surest = (first - second).argsort(descending=True, stable=True)[:count]
    return ConfidentErrors(int((scores[surest].argmax(dim=1) != labels[surest]).sum()), count)
