"""Linear probe: how well does a layer already separate the classes?"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.errors import UserError


@dataclass
class Probe:
    """A linear classifier on one layer and what it reaches."""

    weight: Tensor  # (channels, classes), on standardised features
    train_accuracy: float
    test_accuracy: float


def ridge_probe(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    classes: int | None = None,
    l2: float = 1.0,
) -> Probe:
    """Ridge regression onto the classes, in closed form: nothing to tune, nothing random. Features are (images, channels)."""
    if len(train) != len(train_labels) or len(test) != len(test_labels) or not len(train) or not len(test):
        counts = f"{len(train)} and {len(test)} features, {len(train_labels)} and {len(test_labels)} labels"
        raise UserError(f"a probe needs images to fit and others to test, each with its label; got {counts}.")
    train, test = (x if x.dtype == torch.float64 else x.double() for x in (train, test))
    classes = classes or int(max(train_labels.max(), test_labels.max())) + 1
    mean, std = train.mean(dim=0), train.std(dim=0, correction=0)
    std = torch.where(std > 0, std, 1.0)  # a dead channel says nothing, at any scale
    B = (train - mean) / std
    targets = F.one_hot(train_labels.long(), classes).to(B)
    share = targets.mean(dim=0)
    normal = B.T @ B + l2 * torch.eye(B.shape[1], dtype=B.dtype, device=B.device)
    weight = torch.linalg.solve(normal, B.T @ (targets - share))

    def accuracy(x: Tensor, labels: Tensor) -> float:
        return (((x - mean) / std @ weight + share).argmax(dim=1) == labels).double().mean().item()

    return Probe(weight, accuracy(train, train_labels), accuracy(test, test_labels))
