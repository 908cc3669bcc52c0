"""Many images at once: decoded into one tensor by threads, and their mean and deviation."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.sources.images import FITS, ArrayImages, Images, evenly, load_image
from vitling.data.threads import map_threads
from vitling.errors import UserError, did_you_mean

CHUNK = 32  # images per task of the thread pool


def decode(
    images: Images,
    *,
    size: tuple[int, int],
    fit: str = "resize",
    channels: int,
    max_value: int = 255,
    threads: int | None = None,
    task: str = "decoding",
    callback: Callback | None = None,
) -> Tensor:
    """All images as one uint8 tensor, N x C x height x width. The callback gets its progress as `task`."""
    if fit not in FITS:
        raise UserError(f"unknown fit '{fit}'. {did_you_mean(fit, FITS)}")
    decoded = torch.empty(len(images), channels, *size, dtype=torch.uint8)
    pixels = decoded.numpy()
    stored = images.array if isinstance(images, ArrayImages) else None
    if stored is not None and (stored.dtype != np.uint8 or stored.shape[1:] != (*size, channels)):
        stored = None  # has to be fitted

    def load(start: int) -> int:
        stop = min(start + CHUNK, len(images))
        if stored is not None:
            pixels[start:stop] = stored[images.rows[start:stop]].transpose(0, 3, 1, 2)
        else:
            for i in range(start, stop):
                pixels[i] = load_image(images, i, size, fit, channels, max_value)
        return stop

    for stop in map_threads(load, range(0, len(images), CHUNK), threads):
        if callback:
            callback.on_progress(task, stop, len(images))
    return decoded


def channel_statistics(
    data: Tensor | Images, *, sample: int = 2048, **decoding: Any
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel, in 0..1.

    Exact for a decoded tensor. Of Images, an evenly spaced sample is decoded first (`decoding`: the arguments of
    `decode`). A channel that never changes gets the deviation 1, so that dividing by it is harmless.
    """
    pixels = data if isinstance(data, Tensor) else decode(data.subset(evenly(len(data), sample)), **decoding)
    if not len(pixels):
        raise UserError("there are no images to take mean and deviation from")
    histogram = np.zeros((pixels.shape[1], 256), np.int64)
    for batch in pixels.split(256):
        for c, channel in enumerate(batch.unbind(1)):
            histogram[c] += np.bincount(channel.numpy().reshape(-1), minlength=256)
    values, share = np.arange(256) / 255, histogram / histogram.sum(axis=1, keepdims=True)
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(axis=1))
    return mean.tolist(), np.where((histogram > 0).sum(axis=1) == 1, 1.0, std).tolist()
