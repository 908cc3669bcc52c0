"""Supervised: learn from the labels, with mixup, cutmix and label smoothing."""

import torch.nn.functional as F
from torch import Tensor, nn

from vitling.methods.method import Batch, Method
from vitling.methods.mixing import Mix


class Supervised(Method):
    """Cross-entropy on (mixed, smoothed) labels."""

    def __init__(
        self,
        model: nn.Module,
        *,
        num_classes: int,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mix_prob: float = 1.0,
        mix_switch_prob: float = 0.5,
        mix_mode: str = "batch",
    ):
        super().__init__(model, num_classes=num_classes, class_weights=class_weights)
        self.mix = Mix(
            mixup_alpha=mixup,
            cutmix_alpha=cutmix,
            prob=mix_prob,
            switch_prob=mix_switch_prob,
            mode=mix_mode,
            label_smoothing=label_smoothing,
            num_classes=num_classes,
        )

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        images, targets = self.mix(batch["image"], batch["label"])
        loss = F.cross_entropy(self.model(images).float(), targets, weight=self.class_weights)
        return {"loss": loss}
