"""Linear probe: how well does a layer already separate the classes?"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.diagnose.indicator import Indicator, first_quarter, mean_of
from vitling.diagnose.measures.measure import BlockMeasure, blocks_of, layer_chart
from vitling.diagnose.result import Diagnosis
from vitling.errors import UserError
from vitling.models.inspect import Layout


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


def early_probe(d: Diagnosis) -> float | None:
    return mean_of([b.probe.test_accuracy for b in first_quarter(d.measurements.blocks) if b.probe])


class LinearProbe(BlockMeasure):
    """A probe on the mean token of each block; None without labels or with values that are not finite."""

    indicators = (
        Indicator(
            "early probe",
            early_probe,
            "A linear probe on the first quarter of its layers reaches an accuracy of {value:.0%}.",
            "low",
            blocks=2,
        ),
    )

    def __init__(self):
        self.pooled: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.images = self.classes = 0

    def see_tokens(self, tokens: Tensor, layout: Layout) -> None:
        if self.images < self.keep_images:
            self.pooled.append(tokens.mean(dim=1).float().cpu()[: self.keep_images - self.images])
        self.images += len(tokens)

    def see_output(self, logits: Tensor, labels: Tensor | None) -> None:
        if labels is not None:
            self.labels.append(labels)
            self.classes = max(self.classes, logits.shape[1], int(labels.max()) + 1)

    def result(self) -> dict[str, object]:
        """Fitted to every other image and tested on the rest."""
        x = torch.cat(self.pooled)
        if not self.labels or len(x) < 2 or not x.isfinite().all():
            return {"probe": None}
        labels = torch.cat(self.labels)[: len(x)]
        return {"probe": ridge_probe(x[::2], labels[::2], x[1::2], labels[1::2], classes=self.classes)}

    @staticmethod
    def as_dict(fields: dict[str, Any]) -> dict[str, object]:
        probe = fields["probe"]
        return {"probe_accuracy": probe and probe.test_accuracy}

    @staticmethod
    def parts(results: list[Diagnosis]) -> list:
        caption = "How well each layer already separates the classes (ridge regression on its mean token, half of the images to fit, half to test)."
        return layer_chart(
            blocks_of(results), lambda b: b.probe and b.probe.test_accuracy, "accuracy of a linear probe", caption
        )
