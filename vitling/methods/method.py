"""Method: what turns a batch into losses. The whole interface."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from vitling.optim import parameter_groups
from vitling.recipe import Optim

Batch = dict[
    str, Tensor
]  # image (B, C, H, W) normalised floats, label (B,) class numbers, index (B,) place in the split


class Method(nn.Module, ABC):
    """Owns everything trainable. `model` is what is validated, saved and exported at the end.

    A method never sees devices, precision, processes or log files.
    """

    def __init__(self, model: nn.Module, *, num_classes: int, class_weights: Tensor | None = None):
        super().__init__()
        self.model = model
        self.num_classes = num_classes
        self.register_buffer("class_weights", class_weights, persistent=False)

    @abstractmethod
    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """Losses of a batch: `loss` is minimised, the rest is logged. `progress` runs from 0 to 1 over the run."""

    def backward(self, losses: dict[str, Tensor], accelerator, scale: float = 1.0) -> None:
        """Turn losses into gradients. A method that needs more than one gradient overrides this."""
        accelerator.backward(losses["loss"] * scale)

    def parameter_groups(self, optim: Optim, lr: float) -> list[dict]:
        """What the optimiser gets. A method with several networks gives each its own settings here."""
        return parameter_groups(self.model, optim, lr)

    def evaluated(self) -> dict[str, nn.Module]:
        """Further networks whose accuracy is logged beside the model's, by name."""
        return {}

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """timm's optimiser factory asks for this; without the prefix, position embeddings would decay."""
        return {f"model.{name}" for name in getattr(self.model, "no_weight_decay", set)()}
