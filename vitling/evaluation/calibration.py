"""Calibration: is a model correct as often as it is confident?

Probabilities are (images, classes). Binning is torchmetrics' (equal width, upper edges included), which however computes in
float32 and does not hand out the bins that a reliability diagram draws; the tests hold the two together.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.errors import UserError

BINS = 15


@dataclass
class Reliability:
    """Accuracy against confidence in bins; empty bins have NaN for both."""

    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def gaps(self) -> Tensor:
        return (self.accuracy - self.confidence).abs().nan_to_num()

    @property
    def shares(self) -> Tensor:
        return self.counts / self.counts.sum()


def _check(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    probs, labels = torch.as_tensor(probs), torch.as_tensor(labels)
    if probs.ndim != 2 or len(probs) != len(labels) or not len(probs):
        raise UserError(
            f"probabilities of shape {tuple(probs.shape)} and {len(labels)} labels; expected (images, classes) and (images,)."
        )
    if probs.min() < 0 or probs.max() > 1 + 1e-6:
        raise UserError(
            f"probabilities lie in 0..1, these in {probs.min():.3g}..{probs.max():.3g}; apply softmax first."
        )
    return probs, labels


def _bin(confidence: Tensor, correct: Tensor, index: Tensor, bins: int) -> Reliability:
    counts = torch.bincount(index, minlength=bins).to(confidence)
    sums = [torch.bincount(index, weights=values.to(confidence), minlength=bins) for values in (confidence, correct)]
    return Reliability(counts, *(total / counts for total in sums))


def _equal_width(confidence: Tensor, correct: Tensor, bins: int) -> Reliability:
    edges = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)
    return _bin(confidence, correct, (torch.bucketize(confidence, edges) - 1).clamp(0, bins - 1), bins)


def reliability_curve(probs: Tensor, labels: Tensor, *, bins: int = BINS) -> Reliability:
    """Confidence in the predicted class against how often it is correct, in bins of equal width."""
    probs, labels = _check(probs, labels)
    confidence, prediction = probs.max(dim=1)
    return _equal_width(confidence, prediction == labels, bins)


def expected_calibration_error(probs: Tensor, labels: Tensor, *, bins: int = BINS, norm: str = "l1") -> Tensor:
    """Mean distance of confidence and accuracy over bins of equal width: mean ("l1"), root mean square ("l2") or "max"."""
    curve = reliability_curve(probs, labels, bins=bins)
    if norm == "l1":
        return (curve.shares * curve.gaps).sum()
    if norm == "l2":
        return (curve.shares * curve.gaps.square()).sum().sqrt()
    if norm == "max":
        return curve.gaps.max()
    raise UserError(f"norm={norm!r} is unknown; use 'l1', 'l2' or 'max'.")


def label_calibration_error(probs: Tensor, targets: Tensor, *, bins: int = BINS) -> Tensor:
    """Of several labels per image: mean distance of a label's probability and how often it is there, over all labels of all images."""
    curve = _equal_width(probs.flatten(), targets.flatten(), bins)
    return (curve.shares * curve.gaps).sum()


def adaptive_calibration_error(probs: Tensor, labels: Tensor, *, bins: int = BINS) -> Tensor:
    """The same with bins that hold equally many images."""
    probs, labels = _check(probs, labels)
    confidence, prediction = probs.max(dim=1)
    order = confidence.argsort(stable=True)
    sizes = torch.tensor([len(part) for part in order.tensor_split(bins)], device=order.device)
    index = torch.repeat_interleave(torch.arange(bins, device=order.device), sizes)
    curve = _bin(confidence[order], (prediction == labels)[order], index, bins)
    return (curve.shares * curve.gaps).sum()


def classwise_calibration_error(probs: Tensor, labels: Tensor, *, bins: int = BINS) -> Tensor:
    """Mean over classes of the distance between the probability of a class and how often it is the true one."""
    probs, labels = _check(probs, labels)
    curves = [_equal_width(p.contiguous(), labels == k, bins) for k, p in enumerate(probs.unbind(dim=1))]
    return torch.stack([(curve.shares * curve.gaps).sum() for curve in curves]).mean()


def brier_score(probs: Tensor, labels: Tensor) -> Tensor:
    """Squared distance of the probabilities from the truth, summed over classes."""
    probs, labels = _check(probs, labels)
    return (probs - F.one_hot(labels, probs.shape[1])).square().sum(dim=1).mean()
