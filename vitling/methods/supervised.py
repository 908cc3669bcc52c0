"""Supervised: learn from the labels, with mixup, cutmix and label smoothing."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.methods.method import Batch
from vitling.methods.mixing import MixingMethod
from vitling.methods.ordered import squared_emd
from vitling.recipes import Recipe
from vitling.validation.values import Weight

DISTANCE_WEIGHT = 1.0  # docs/grades_and_numbers.md


class Supervised(MixingMethod):
    """Cross-entropy on (mixed, smoothed) labels: over the classes, or of each of several labels by itself.

    Of grades the squared earth mover's distance counts as well, `distance_weight` times. Numbers are learnt as distributions over bins.
    """

    weighs_images = True
    target_kinds = ("classes", "several", "grades", "numbers")

    def __init__(self, model: nn.Module, *, distance_weight: Weight | None = None, **mixing: Any):
        super().__init__(model, **mixing)
        self.distance_weight = DISTANCE_WEIGHT if distance_weight is None else distance_weight

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        if self.target.kind == "several":
            return {"loss": self._several(batch)}
        if self.target.kind == "numbers":
            return {"loss": self._numbers(batch)}
        images, targets, _ = self.mixed(batch)
        logits = self.model(images).float()
        loss = F.cross_entropy(logits, targets, weight=self.class_weights)
        if self.target.kind == "grades" and self.distance_weight:
            distance = self._distance(logits, targets)
            return {"loss": loss + self.distance_weight * distance, "label": loss, "distance": distance}
        return {"loss": loss}

    def _several(self, batch: Batch) -> Tensor:
        """The mean over images and labels; class weights are those of a label's positives."""
        images, targets, weights = self.mix.mix_several(batch["image"], batch["target"], batch.get("weight"))
        logits = self.model(images).float()
        losses = F.binary_cross_entropy_with_logits(logits, targets, pos_weight=self.class_weights, reduction="none")
        return losses.mean() if weights is None else (losses.mean(dim=1) * weights).mean()

    def _distance(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over images; targets of a weighted image sum to its weight, and class weights count as in cross-entropy."""
        weights = targets.sum(dim=1, keepdim=True)
        counts = targets if self.class_weights is None else targets * self.class_weights
        return (squared_emd(logits, targets / weights.clamp(min=1e-12)) * counts.sum(dim=1)).mean()

    def _numbers(self, batch: Batch) -> Tensor:
        """Cross-entropy with the Gaussian around each number."""
        around = torch.from_numpy(self.target.numbers.distribute(batch["target"].cpu().numpy()))
        images, targets, weights = self.mix.mix_several(
            batch["image"], around.to(batch["image"].device), batch.get("weight")
        )
        losses = F.cross_entropy(self.model(images).float(), targets, reduction="none")
        return losses.mean() if weights is None else (losses * weights).mean()

    @classmethod
    def refuse(cls, recipe: Recipe) -> None:
        args = recipe.method_args
        if args.get("distance_weight") is not None and recipe.labels != "grades":
            raise UserError(
                f"method_args.distance_weight={args['distance_weight']:g} is for labels=grades; set that, or leave it out."
            )
        if args.get("label_smoothing") and recipe.labels == "numbers":
            raise UserError(
                f"method_args.label_smoothing={args['label_smoothing']:g} would pull every number towards the middle of their range, and a Gaussian is "
                "smooth already; set method_args.label_smoothing=0."
            )
