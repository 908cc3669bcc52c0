"""Where data lies and how it is read: decoded into memory, or streamed."""

import os
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from vitling.callbacks import Callback
from vitling.data.augment.ragged import Ragged
from vitling.data.pipeline.decoding import decode
from vitling.data.pipeline.keeping import Keeping, keep_images
from vitling.data.pipeline.loader import Resident, ResidentPictures, Streamed
from vitling.data.sources.images import Images
from vitling.validation.memory import total_memory
from vitling.validation.values import Processes, Range, check_fields


@dataclass(frozen=True)
class Reading:
    """Where data lies and how it is read: nothing that changes a result."""

    root: str | os.PathLike | None = None
    download: bool = True
    memory_gb: Annotated[float, Range(0, 1e6)] = field(default_factory=lambda: default_memory_gb())
    workers: Processes = field(default_factory=lambda: min(8, os.cpu_count() or 1))

    def __post_init__(self) -> None:
        check_fields(self)


def default_memory_gb() -> float:
    """A quarter of the memory there is for us: what decoded images may take before they are streamed instead."""
    return total_memory() / 4 / 2**30


def load_split(
    images: Images,
    name: str,
    *,
    size: tuple[int, int],
    fit: str,
    channels: int,
    max_value: int,
    test_crop: float | None = None,
    interpolation: str = "bicubic",
    reading: Reading,
    callback: Callback | None = None,
) -> Resident | Streamed:
    """Decode a split into memory where it fits the limit; else read it batch by batch."""
    how: dict[str, Any] = dict(test_crop=test_crop, interpolation=interpolation)
    args: dict[str, Any] = dict(size=size, fit=fit, channels=channels, max_value=max_value, **how)
    if len(images) * channels * size[0] * size[1] > reading.memory_gb * 2**30:
        return Streamed(images, workers=reading.workers, **args)
    return Resident(decode(images, task=f"reading {name}", callback=callback, **args), torch.as_tensor(images.labels))


def load_pictures(
    images: Images, name: str, keeping: Keeping, *, reading: Reading, callback: Callback | None = None
) -> Resident | ResidentPictures | Streamed:
    """The same for training images that crops are cut from, each as large as it is kept."""
    if keeping.bytes_for(images) > reading.memory_gb * 2**30:
        return Streamed(images, workers=reading.workers, keeping=keeping)
    kept, labels = keep_images(images, keeping, task=f"reading {name}", callback=callback), images.labels
    if isinstance(kept, Ragged):
        return ResidentPictures(kept, torch.as_tensor(labels))
    return Resident(kept, torch.as_tensor(labels))
