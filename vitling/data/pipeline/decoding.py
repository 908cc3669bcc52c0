"""Many images at once: decoded into one tensor by threads, and their mean and deviation."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.augment.ragged import Ragged
from vitling.data.pipeline.cache import Loading, PixelCache
from vitling.data.sources.images import FITS, INTERPOLATIONS, ArrayImages, Images, enlarged, load_image
from vitling.data.threads import map_threads
from vitling.errors import UserError, did_you_mean

CHUNK = 32  # images per task of the thread pool
SAMPLE = 2048  # images that mean and deviation are taken from where not all are decoded


def decode(
    images: Images,
    *,
    size: tuple[int, int],
    fit: str = "resize",
    channels: int,
    max_value: int = 255,
    test_crop: float | None = None,
    interpolation: str = "bicubic",
    threads: int | None = None,
    task: str = "decoding",
    callback: Callback | None = None,
    cache: PixelCache | None = None,
) -> Tensor:
    """All images as one uint8 tensor, N x C x height x width. The callback gets its progress as `task`.

    What lies decoded in the `cache` is taken from there, and what does not is left there.
    """
    for what, value, allowed in (("fit", fit, FITS), ("interpolation", interpolation, INTERPOLATIONS)):
        if value not in allowed:
            raise UserError(f"unknown {what} '{value}'. {did_you_mean(value, allowed)}")
    decoded = torch.empty(len(images), channels, *size, dtype=torch.uint8)
    pixels = decoded.numpy()
    how: dict[str, Any] = dict(test_crop=test_crop, interpolation=interpolation)
    stored = images.array if isinstance(images, ArrayImages) and enlarged(size, test_crop) == size else None
    if stored is not None and (stored.dtype != np.uint8 or stored.shape[1:] != (*size, channels)):
        stored = None  # has to be fitted

    fit_args: dict[str, Any] = dict(size=size, fit=fit, channels=channels, max_value=max_value, **how)
    shelf = cache.shelf(images, **fit_args) if cache else None
    order = images.rows.argsort(kind="stable").tolist()  # as they lie in the source, which may be read in order only
    with Loading(
        lambda i: load_image(images, i, **fit_args), shelf, bytes_each=pixels[:1].nbytes, callback=callback
    ) as loading:

        def load(start: int) -> int:
            stop = min(start + CHUNK, len(images))
            if stored is not None:
                pixels[start:stop] = stored[images.rows[start:stop]].transpose(0, 3, 1, 2)
            else:
                for i in order[start:stop]:
                    pixels[i] = loading(i)
            return stop

        for stop in map_threads(load, range(0, len(images), CHUNK), threads):
            if callback:
                callback.on_progress(task, stop, len(images))
    return decoded


def channel_statistics(
    data: Tensor | Ragged | Images, *, sample: int = SAMPLE, **decoding: Any
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel, in 0..1.

    Exact for decoded images; those of different sizes count equally. Of Images, an evenly spaced sample is decoded first
    (`decoding`: the arguments of `decode`). A channel that never changes gets the deviation 1, so that dividing by it is harmless.
    """
    if isinstance(data, Images):
        data = decode(data.subset(data.sample(sample)), **decoding)
    if not len(data):
        raise UserError("there are no images to take mean and deviation from")
    if isinstance(data, Ragged):
        histogram = sum(_histogram(image[None]) / image[0].numel() for image in data.images)
    else:
        histogram = sum(_histogram(batch) for batch in data.split(256))
    values, share = np.arange(256) / 255, histogram / histogram.sum(axis=1, keepdims=True)
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(axis=1))
    return mean.tolist(), np.where((histogram > 0).sum(axis=1) == 1, 1.0, std).tolist()


def _histogram(images: Tensor) -> np.ndarray:
    """How often each channel of images (B, C, H, W) has each value, (C, 256)."""
    return np.stack([np.bincount(channel.numpy().reshape(-1), minlength=256) for channel in images.unbind(1)])
