"""Supervised: learn from the labels, with mixup, cutmix and label smoothing."""

import torch.nn.functional as F
from torch import Tensor

from vitling.methods.method import Batch
from vitling.methods.mixing import MixingMethod


class Supervised(MixingMethod):
    """Cross-entropy on (mixed, smoothed) labels."""

    weighs_images = True

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        images, targets, _ = self.mixed(batch)
        loss = F.cross_entropy(self.model(images).float(), targets, weight=self.class_weights)
        return {"loss": loss}
