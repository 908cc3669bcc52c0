"""Thumbnails: every image small and of one size, for looking at a dataset as a whole."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.pipeline.cache import Loading, PixelCache
from vitling.data.sources.images import BadImage, Images, load_image
from vitling.data.threads import map_threads

SIDE = 32
CHUNK = 64


def make_thumbnails(
    images: Images,
    *,
    channels: int,
    max_value: int,
    task: str = "reading",
    cache: PixelCache | None = None,
    callback: Callback | None = None,
) -> tuple[Tensor, np.ndarray]:
    """Thumbnails, uint8 (N, C, SIDE, SIDE), of the images that can be read, and which those are."""
    pixels = torch.empty(len(images), channels, SIDE, SIDE, dtype=torch.uint8)
    rows, good = pixels.numpy(), np.ones(len(images), bool)
    fit_args: dict[str, Any] = dict(size=(SIDE, SIDE), fit="resize", channels=channels, max_value=max_value)
    shelf = cache.shelf(images, **fit_args) if cache else None
    with Loading(
        lambda i: load_image(images, i, **fit_args), shelf, bytes_each=rows[:1].nbytes, callback=callback
    ) as loading:

        def load(start: int) -> int:
            stop = min(start + CHUNK, len(images))
            for i in range(start, stop):
                try:
                    rows[i] = loading(i)
                except BadImage:
                    good[i] = False
            return stop

        for stop in map_threads(load, range(0, len(images), CHUNK)):
            if callback:
                callback.on_progress(task, stop, len(images))
    return pixels[torch.from_numpy(good)], good
