"""How an image becomes what the model sees."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import torch
from torch import Tensor

from vitling._deprecated import renamed_attribute
from vitling.data.sources.images import Images, evenly
from vitling.errors import UserError
from vitling.inputs.values import Channels, Range, Side, check

SMALL_SIDE = 96  # images of one size and no longer than this keep their size; others are photographs


class PreprocessingRecord(TypedDict):
    """How JSON keeps it."""

    size: tuple[Side, Side]
    channels: Channels
    fit: Literal["resize", "pad", "crop"]
    max_value: Annotated[int, Range(1, 65_535)]
    mean: list[Annotated[float, Range(-1000, 1000)]]
    std: list[Annotated[float, Range(above=0, high=1000)]]


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes what the model sees. Travels with the run, so that prediction repeats it."""

    size: tuple[int, int]
    channels: int
    fit: str
    max_value: int  # the pixel value that becomes 255
    mean: tuple[float, ...]
    std: tuple[float, ...]

    white = renamed_attribute("white", "max_value")

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> "Preprocessing":
        """As JSON keeps it; runs and exports of vitling 0.1 call the largest value `white`."""
        known = {"max_value" if name == "white" else name: value for name, value in entries.items()}
        check(known, PreprocessingRecord, "preprocessing")
        if not len(known["mean"]) == len(known["std"]) == known["channels"]:
            raise UserError(
                f"preprocessing has {len(known['mean'])} means and {len(known['std'])} deviations for {known['channels']} channels."
            )
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
        return cls(**{name: fields[name] for name in PreprocessingRecord.__required_keys__})

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> float32 with the training split's mean and spread."""
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1) * 255
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1) * 255
        return (images.float() - mean) / std

    def fit_args(self) -> dict[str, Any]:
        return dict(size=self.size, fit=self.fit, channels=self.channels, max_value=self.max_value)


def natural_size(images: Images) -> tuple[int, int] | None:
    """The size that small images share; None for photographs, which take the size that the model was made for."""
    sizes = {images.read(i).shape[:2] for i in evenly(len(images), 16)}
    height, width = next(iter(sizes))
    return (height, width) if len(sizes) == 1 and max(height, width) <= SMALL_SIDE else None


def as_size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (size, size) if isinstance(size, int) else size
