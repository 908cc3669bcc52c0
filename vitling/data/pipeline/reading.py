"""Where data lies and how it is read: decoded into memory, or streamed."""

import os
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from vitling.callbacks import Callback
from vitling.data.pipeline.decoding import decode
from vitling.data.pipeline.loader import Resident, Streamed
from vitling.data.sources.images import Images
from vitling.inputs.memory import total_memory
from vitling.inputs.values import Processes, Range, check_fields


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
    reading: Reading,
    callback: Callback | None = None,
) -> Resident | Streamed:
    """Decode a split into memory where it fits the limit; else read it batch by batch."""
    args: dict[str, Any] = dict(size=size, fit=fit, channels=channels, max_value=max_value)
    if len(images) * channels * size[0] * size[1] > reading.memory_gb * 2**30:
        return Streamed(images, workers=reading.workers, **args)
    return Resident(decode(images, task=f"reading {name}", callback=callback, **args), torch.as_tensor(images.labels))
