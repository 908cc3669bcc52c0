"""What one pass of a model over the images found."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from torch import Tensor

from vitling.diagnose.cka import CkaMatrix


class Layer(SimpleNamespace):
    """A block, an attention module or the whole model: its `name`, a field for each thing measured, and `numbers` for the JSON."""


@dataclass
class Measurements:
    """One model on one set of images."""

    images: int
    blocks: list[Layer]
    attention: list[Layer]
    model: Layer
    cka: CkaMatrix | None
    logits: Tensor  # (images, classes)
    labels: Tensor | None
    notes: list[str] = field(default_factory=list)  # what could not be measured, and why
