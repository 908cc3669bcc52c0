"""Where data lies and how it is read: decoded into memory, or streamed."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import numpy as np
import torch

from vitling.callbacks import Callback
from vitling.data.augment.ragged import Ragged
from vitling.data.pipeline.cache import Loading, PixelCache, Shelf, open_cache
from vitling.data.pipeline.decoding import CHUNK, decode
from vitling.data.pipeline.keeping import Keeping, keep_images
from vitling.data.pipeline.loader import Fitted, Resident, ResidentPictures, Source, Streamed, StreamedShards
from vitling.data.sources.images import Images, load_image
from vitling.data.sources.streams import StreamImages
from vitling.data.threads import map_threads
from vitling.validation.memory import total_memory
from vitling.validation.values import Processes, Range, check_fields

Kind = TypeVar("Kind", Resident, ResidentPictures, Streamed)


@dataclass(frozen=True)
class Reading:
    """Where data lies and how it is read: nothing that changes a result."""

    root: str | os.PathLike | None = None
    download: bool = True
    memory_gb: Annotated[float, Range(0, 1e6)] = field(default_factory=lambda: default_memory_gb())
    workers: Processes = field(default_factory=lambda: min(8, os.cpu_count() or 1))
    cache: bool = True  # decoded images are kept on disk for the next start

    def __post_init__(self) -> None:
        check_fields(self)

    def open_cache(self) -> PixelCache | None:
        return open_cache(self.cache)


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
) -> Fitted:
    """Decode a split into memory where it fits the limit; else read it batch by batch."""
    how: dict[str, Any] = dict(test_crop=test_crop, interpolation=interpolation)
    args: dict[str, Any] = dict(size=size, fit=fit, channels=channels, max_value=max_value, **how)
    cache = reading.open_cache()
    told: dict[str, Any] = dict(task=f"reading {name}", callback=callback)
    bytes_each = channels * size[0] * size[1]
    if len(images) * bytes_each > reading.memory_gb * 2**30:
        shelf = cache.shelf(images, **args) if cache else None
        _fill(shelf, lambda i: load_image(images, i, **args), bytes_each, **told)
        return _stream(images, reading, shelf, **args)
    return _as_learnt(Resident(decode(images, cache=cache, **told, **args), torch.as_tensor(images.labels)), images)


def load_pictures(
    images: Images, name: str, keeping: Keeping, *, reading: Reading, callback: Callback | None = None
) -> Source:
    """The same for training images that crops are cut from, each as large as it is kept."""
    cache = reading.open_cache()
    told: dict[str, Any] = dict(task=f"reading {name}", callback=callback)
    needed = keeping.bytes_for(images)
    if needed > reading.memory_gb * 2**30:
        shelf = keeping.shelf(cache, images)
        _fill(shelf, lambda i: keeping.load(images, i), needed / len(images), **told)
        return _stream(images, reading, shelf, keeping=keeping)
    kept, labels = keep_images(images, keeping, cache=cache, **told), images.labels
    if isinstance(kept, Ragged):
        return _as_learnt(ResidentPictures(kept, torch.as_tensor(labels)), images)
    return _as_learnt(Resident(kept, torch.as_tensor(labels)), images)


def _stream(images: Images, reading: Reading, shelf: Shelf | None, **how: Any) -> Streamed | StreamedShards:
    """Images batch by batch: in any order, or as their shards give them where they do not lie in the cache."""
    if isinstance(images, StreamImages) and (shelf is None or shelf.missing):
        return StreamedShards(images, workers=reading.workers, **how)
    return _as_learnt(Streamed(images, workers=reading.workers, shelf=shelf, **how), images)


def _as_learnt(source: Kind, images: Images) -> Kind:
    """A stream is shuffled in the same way wherever its images are kept, and they have the same targets."""
    source.shards = None if images.shards is None else torch.as_tensor(images.shards)
    source.targets = None if images.targets is None else torch.as_tensor(images.targets)
    return source


def _fill(
    shelf: Shelf | None,
    load: Callable[[int], np.ndarray],
    bytes_each: float,
    *,
    task: str,
    callback: Callback | None,
) -> None:
    """Decode once what would be decoded in every epoch, where all of it has room in the cache."""
    if shelf is None or not (missing := shelf.missing) or len(shelf.keys) * bytes_each > shelf.cache.limit:
        return
    with Loading(load, shelf, bytes_each=bytes_each, callback=callback) as loading:

        def load_some(start: int) -> int:
            some = missing[start : start + CHUNK]
            for i in some:
                loading(i)
            return start + len(some)

        if loading.writer:
            for done in map_threads(load_some, range(0, len(missing), CHUNK)):
                if callback:
                    callback.on_progress(task, done, len(missing))
    shelf.find()
