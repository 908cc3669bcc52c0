"""How large training images are kept so that random crops can be cut from the picture itself.

A picture is kept as it is, or smaller where it has more than crops of the mean area need to fill the model's input. Crops smaller than
that are then less sharp than the file would give them; keeping all of every photograph would take several times the memory. What is kept depends on nothing but the recipe and the picture, so images in
memory and streamed ones give the same crops.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.augment.ragged import Ragged
from vitling.data.pipeline.cache import Loading, PixelCache, Shelf
from vitling.data.pipeline.decoding import CHUNK, decode
from vitling.data.sources.images import ArrayImages, Images, load_image
from vitling.data.threads import map_threads
from vitling.recipes import Recipe

HEADS = 1000  # images whose sizes are looked up to learn how much memory all would take


@dataclass(frozen=True)
class Keeping:
    """What is kept of pictures that crops of `size` are cut from.

    `spare` is how many times longer than the model's sides a picture stays. With `whole` all of it stays; else what `fit` shows, as
    crops that only move the picture need it.
    """

    size: tuple[int, int]
    fit: str
    channels: int
    max_value: int = 255
    interpolation: str = "bicubic"
    spare: float = 1.0
    whole: bool = True

    def kept_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which a picture of this size is kept; never more than it has."""
        most = [math.ceil(self.spare * side) for side in self.size]
        if self.fit == "resize":  # each side by itself, because the picture is stretched anyway
            return min(height, most[0]), min(width, most[1])
        if self.fit == "crop" and self.whole:
            scale = min(1.0, max(most[0] / height, most[1] / width))
            return max(1, round(height * scale)), max(1, round(width * scale))
        scales = height / self.size[0], width / self.size[1]
        scale = min(self.spare, min(scales) if self.fit == "crop" else max(scales))
        return max(1, round(self.size[0] * scale)), max(1, round(self.size[1] * scale))

    def fit_args(self, height: int, width: int) -> dict[str, Any]:
        """The arguments of `load_image` for a picture of this size."""
        fit = "resize" if self.fit == "crop" and self.whole else self.fit
        how = dict(channels=self.channels, max_value=self.max_value, interpolation=self.interpolation)
        return dict(size=self.kept_size(height, width), fit=fit, **how)

    def load(self, images: Images, i: int) -> np.ndarray:
        """Image i as it is kept, (C, height, width)."""
        return load_image(images, i, **self.fit_args(*images.size(i)))

    def shelf(self, cache: PixelCache | None, images: Images) -> Shelf | None:
        """What a cache knows of pictures that are kept so."""
        return cache.shelf(images, kept_for="crops", **asdict(self)) if cache else None

    def bytes_for(self, images: Images) -> int:
        """What all images take, from the sizes of some."""
        some = images.sample(1 if isinstance(images, ArrayImages) else HEADS)
        sizes = map_threads(images.size, some.tolist())
        return round(self.channels * len(images) * _mean(math.prod(self.kept_size(*size)) for size in sizes))


def keeping_for(recipe: Recipe, **what: Any) -> Keeping | None:
    """How this recipe's training images are kept; None where they are fitted to a size before they are cropped."""
    if recipe.train_size is not None:
        return None
    if recipe.augment.crop == "resized":
        return Keeping(spare=_mean(recipe.augment.crop_scale) ** -0.5, **what)
    if recipe.augment.crop == "pad" and recipe.augment.crop_at == "original":
        return Keeping(whole=False, **what)
    return None


def crops_show_whole_pictures(recipe: Recipe) -> bool:
    """Whether crops may show any part of a picture, also what its fit would cut off, and nothing else."""
    return recipe.train_size is None and recipe.augment.crop == "resized" and recipe.fit != "pad"


def keep_images(
    images: Images,
    keeping: Keeping,
    *,
    task: str = "decoding",
    callback: Callback | None = None,
    cache: PixelCache | None = None,
) -> Tensor | Ragged:
    """All images as they are kept, uint8: one tensor (N, C, H, W) where all have one size, else each of its own."""
    if isinstance(images, ArrayImages) and len(images):
        return decode(images, task=task, callback=callback, **keeping.fit_args(*images.size(0)))
    shelf = keeping.shelf(cache, images)

    def kept_size(i: int) -> tuple[int, int]:
        return (shelf.size(i) if shelf else None) or keeping.kept_size(*images.size(i))

    # One buffer of the size that is known now: a second copy would double the memory.
    sizes = torch.tensor(list(map_threads(kept_size, range(len(images))))).view(-1, 2)
    buffer = torch.empty(keeping.channels * int(sizes.prod(dim=1).sum()), dtype=torch.uint8)
    kept = Ragged.unpack(buffer, sizes)
    order = images.rows.argsort(kind="stable").tolist()  # as they lie in the source, which may be read in order only
    how, wanted = keeping.fit_args(1, 1), [(height, width) for height, width in sizes.tolist()]

    def fit(i: int) -> np.ndarray:
        return load_image(images, i, **{**how, "size": wanted[i]})

    with Loading(fit, shelf, bytes_each=len(buffer) / max(1, len(images)), callback=callback) as loading:

        def load(start: int) -> int:
            stop = min(start + CHUNK, len(images))
            for i in order[start:stop]:
                kept.images[i].numpy()[...] = loading(i)
            return stop

        for stop in map_threads(load, range(0, len(images), CHUNK)):
            if callback:
                callback.on_progress(task, stop, len(images))
    if len(images) and bool((sizes == sizes[0]).all()):
        return buffer.view(len(images), keeping.channels, *sizes[0].tolist())
    return kept


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / max(1, len(values))
