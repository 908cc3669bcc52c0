"""What a model gets wrong: per class, most confidently, and more on new images than on those it was trained on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation.metrics import wilson_interval


@dataclass
class ClassAccuracy:
    """One class; accuracy and interval are None where it has no images."""

    label: int
    images: int
    accuracy: float | None
    interval: tuple[float, float] | None  # 95 %, Wilson


def per_class_accuracy(probs: Tensor, labels: Tensor) -> list[ClassAccuracy]:
    """Accuracy of every class with its 95 % interval."""
    prediction = probs.argmax(dim=1)
    result = []
    for label in range(probs.shape[1]):
        mine = labels == label
        images, right = int(mine.sum()), int((prediction[mine] == label).sum())
        interval = wilson_interval(right, images) if images else None
        result.append(ClassAccuracy(label, images, right / images if images else None, interval))
    return result


def confident_mistakes(probs: Tensor, labels: Tensor, *, count: int = 16) -> Tensor:
    """Indices of the wrong predictions, the most confident first: look at these for wrong labels and missing views."""
    confidence, prediction = probs.max(dim=1)
    wrong = (prediction != labels).nonzero().flatten()
    return wrong[confidence[wrong].argsort(descending=True, stable=True)][:count]


@dataclass
class Gap:
    """Accuracy on training images less accuracy on held-out ones, with the 95 % interval of that difference."""

    train: float
    held_out: float
    difference: float
    interval: tuple[float, float]


def generalisation_gap(train_right: int, train_images: int, right: int, images: int) -> Gap:
    """The gap from counts of right answers; the interval is Newcombe's, from the two Wilson intervals."""
    if not train_images or not images:
        raise UserError(f"a gap needs images on both sides; got {train_images} training and {images} held-out ones.")
    a, b = train_right / train_images, right / images
    (low_a, high_a), (low_b, high_b) = wilson_interval(train_right, train_images), wilson_interval(right, images)
    below = ((a - low_a) ** 2 + (high_b - b) ** 2) ** 0.5
    above = ((high_a - a) ** 2 + (b - low_b) ** 2) ** 0.5
    return Gap(a, b, a - b, (a - b - below, a - b + above))


def gradient_norms(model: torch.nn.Module) -> dict[str, float]:
    """Norm of the gradient of every parameter that has one, in order of depth."""
    return {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}
