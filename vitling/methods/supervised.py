"""Supervised: learn from the labels, with mixup, cutmix and label smoothing."""

import torch.nn.functional as F
from torch import Tensor

from vitling.methods.method import Batch
from vitling.methods.mixing import MixingMethod


class Supervised(MixingMethod):
    """Cross-entropy on (mixed, smoothed) labels: over the classes, or of each of several labels by itself."""

    weighs_images = True
    target_kinds = ("classes", "several")

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        if self.target.kind == "several":
            return {"loss": self._several(batch)}
        images, targets, _ = self.mixed(batch)
        loss = F.cross_entropy(self.model(images).float(), targets, weight=self.class_weights)
        return {"loss": loss}

    def _several(self, batch: Batch) -> Tensor:
        """The mean over images and labels; class weights are those of a label's positives."""
        images, targets, weights = self.mix.mix_several(batch["image"], batch["target"], batch.get("weight"))
        logits = self.model(images).float()
        losses = F.binary_cross_entropy_with_logits(logits, targets, pos_weight=self.class_weights, reduction="none")
        return losses.mean() if weights is None else (losses.mean(dim=1) * weights).mean()
