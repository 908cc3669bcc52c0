"""What can be had without a network: a linear classifier on the images' own patches, tried on thumbnails in seconds.

Method: Coates et al. 2011, "An analysis of single-layer networks in unsupervised feature learning": whitened patches of the images are
the filters. It orders datasets as training does, so its error says what to expect of a trained network (expectation.py).
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PATCH, STRIDE = 5, 2
FILTERS = 192
PATCH_IMAGES, PATCHES = 500, 20_000  # that the whitening is measured on
IMAGES = 3000  # that are classified, each by all the others
FLOOR = 0.1  # of a patch's variance: what varies less is noise
THRESHOLD = 0.5  # that a filter's response must exceed
PENALTY = 0.3  # of the ridge, as a share of the features' mean square
BATCH = 128


@dataclass(frozen=True)
class Probe:
    """A linear classifier on fixed features of some images, and what it says of each of them when that one, or its group, is left out."""

    kept: Tensor  # which of the images, by number
    labels: Tensor  # of those
    left_out: Tensor  # (kept, classes): scores by all the others, highest for the class that is predicted
    pixel_scale: tuple[Tensor, Tensor]
    filters: Tensor
    feature_scale: tuple[Tensor, Tensor]
    weights: Tensor
    offset: Tensor

    @property
    def accuracy(self) -> float:
        """The share of the images that the others classify correctly."""
        return (self.left_out.argmax(dim=1) == self.labels).float().mean().item() if len(self.labels) > 1 else 0.0

    def scores(self, thumbnails: Tensor) -> Tensor:
        """Of other images, or of changed ones; of those that it was fitted to they are no test."""
        features = _pooled(_standardised(thumbnails.float(), self.pixel_scale), self.filters)
        return _standardised(features, self.feature_scale) @ self.weights + self.offset


def fit_probe(thumbnails: Tensor, labels: Tensor, images: int = IMAGES, groups: np.ndarray | None = None) -> Probe:
    """The classifier of a random part of the images, uint8 (N, C, side, side), two of them at least.

    With `groups`, one per image, an image is classified by the other groups alone.
    """
    generator = torch.Generator().manual_seed(0)
    kept = torch.randperm(len(labels), generator=generator)[:images]
    pixels, labels = thumbnails[kept].float(), labels[kept]
    pixel_scale = (pixels.mean((0, 2, 3), keepdim=True), pixels.std((0, 2, 3), keepdim=True).clamp(min=1e-3))
    pixels = _standardised(pixels, pixel_scale)
    filters = _patch_filters(pixels, generator)
    features = _pooled(pixels, filters)
    feature_scale = (features.mean(dim=0), features.std(dim=0).clamp(min=1e-6))
    features = _standardised(features, feature_scale)
    left_out, weights, offset = _leave_one_out(features, labels, None if groups is None else groups[kept.numpy()])
    return Probe(kept, labels, left_out, pixel_scale, filters, feature_scale, weights, offset)


def probe_accuracy(thumbnails: Tensor, labels: Tensor, groups: np.ndarray | None = None) -> float:
    """The share of images, uint8 (N, C, side, side), that the others classify correctly: those of other groups, where there are groups."""
    return fit_probe(thumbnails, labels, groups=groups).accuracy if len(labels) > 1 else 0.0


def _standardised(values: Tensor, scale: tuple[Tensor, Tensor]) -> Tensor:
    return (values - scale[0]) / scale[1]


def _patch_filters(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Patches of the images themselves, whitened and of length 1; the whitening is part of the filter."""
    patches = F.unfold(pixels[:PATCH_IMAGES], PATCH).transpose(1, 2).flatten(0, 1)
    patches = patches[torch.randperm(len(patches), generator=generator)[:PATCHES]]
    centred = patches - patches.mean(dim=0)
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    whitening = directions * (variances.clamp(min=0) + FLOOR).rsqrt() @ directions.T
    filters = F.normalize(centred[:FILTERS] @ whitening, dim=1) @ whitening
    return filters.view(-1, pixels.shape[1], PATCH, PATCH)


def _pooled(pixels: Tensor, filters: Tensor) -> Tensor:
    """How strongly each filter, and its negative, responds in each quarter of an image, (N, 8 x filters)."""
    pooled = []
    for part in pixels.contiguous(memory_format=torch.channels_last).split(BATCH):
        response = F.conv2d(part, filters, stride=STRIDE)
        both = torch.cat([F.relu(response - THRESHOLD), F.relu(-response - THRESHOLD)], dim=1)
        pooled.append(F.adaptive_avg_pool2d(both, 2).flatten(1))
    return torch.cat(pooled).sqrt()


def _leave_one_out(features: Tensor, labels: Tensor, groups: np.ndarray | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Ridge regression to one-hot labels: scores of each image left out once (one inverse tells them of all), weights and offset."""
    kernel = features @ features.T
    kernel.diagonal().add_(PENALTY * kernel.diagonal().mean() + 1e-6)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(kernel))
    targets = F.one_hot(labels.long()).float()
    offset = targets.mean(dim=0)
    targets -= offset
    dual = inverse @ targets
    if groups is None:
        left_out = targets - dual / inverse.diagonal()[:, None]
    else:
        left_out = _leave_groups_out(inverse, targets, groups)
    return left_out, features.T @ dual, offset


def _leave_groups_out(inverse: Tensor, targets: Tensor, groups: np.ndarray) -> Tensor:
    """Scores of each image by the images of other groups, from the inverse of the kernel of all.

    With an offset that is fitted along: of few groups, means over all of them would tell the labels of the one that is left out.
    """
    sums = inverse.sum(dim=1, keepdim=True)
    inverse = inverse - sums @ sums.T / sums.sum()
    dual, left_out = inverse @ targets, torch.zeros_like(targets)
    names, numbers = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        return left_out
    for rows in map(
        torch.as_tensor, np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    ):
        left_out[rows] = targets[rows] - torch.linalg.solve(inverse[rows][:, rows], dual[rows])
    return left_out
