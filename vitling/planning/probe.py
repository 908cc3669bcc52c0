"""What can be had without a network: a linear classifier on the images' own patches, tried on thumbnails in seconds.

Method: Coates et al. 2011, "An analysis of single-layer networks in unsupervised feature learning": whitened patches of the images are
the filters. It orders datasets as training does, so its error says what to expect of a trained network (expectation.py).
"""

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


def probe_accuracy(thumbnails: Tensor, labels: Tensor) -> float:
    """The share of images, uint8 (N, C, side, side), that the others classify correctly."""
    generator = torch.Generator().manual_seed(0)
    kept = torch.randperm(len(labels), generator=generator)[:IMAGES]
    if len(kept) < 2:
        return 0.0
    pixels, labels = thumbnails[kept].float(), labels[kept]
    pixels = (pixels - pixels.mean((0, 2, 3), keepdim=True)) / pixels.std((0, 2, 3), keepdim=True).clamp(min=1e-3)
    return _leave_one_out(_features(pixels, _patch_filters(pixels, generator)), labels)


def _patch_filters(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Patches of the images themselves, whitened and of length 1; the whitening is part of the filter."""
    patches = F.unfold(pixels[:PATCH_IMAGES], PATCH).transpose(1, 2).flatten(0, 1)
    patches = patches[torch.randperm(len(patches), generator=generator)[:PATCHES]]
    centred = patches - patches.mean(dim=0)
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    whitening = directions * (variances.clamp(min=0) + FLOOR).rsqrt() @ directions.T
    filters = F.normalize(centred[:FILTERS] @ whitening, dim=1) @ whitening
    return filters.view(-1, pixels.shape[1], PATCH, PATCH)


def _features(pixels: Tensor, filters: Tensor) -> Tensor:
    """How strongly each filter, and its negative, responds in each quarter of an image; standardised, (N, 8 x filters)."""
    pooled = []
    for part in pixels.contiguous(memory_format=torch.channels_last).split(BATCH):
        response = F.conv2d(part, filters, stride=STRIDE)
        both = torch.cat([F.relu(response - THRESHOLD), F.relu(-response - THRESHOLD)], dim=1)
        pooled.append(F.adaptive_avg_pool2d(both, 2).flatten(1))
    features = torch.cat(pooled).sqrt()
    return (features - features.mean(dim=0)) / features.std(dim=0).clamp(min=1e-6)


def _leave_one_out(features: Tensor, labels: Tensor) -> float:
    """The accuracy of ridge regression to one-hot labels, each image left out once: one inverse tells it of all."""
    kernel = features @ features.T
    kernel.diagonal().add_(PENALTY * kernel.diagonal().mean() + 1e-6)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(kernel))
    targets = F.one_hot(labels.long()).float()
    targets -= targets.mean(dim=0)
    left_out = targets - inverse @ targets / inverse.diagonal()[:, None]
    return (left_out.argmax(dim=1) == labels).float().mean().item()
