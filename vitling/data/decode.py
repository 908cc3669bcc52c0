"""From stored images to the one size a model sees: fit one image, decode many, and their mean and deviation."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitling.data.images import ArrayImages, BadImage, Images, evenly
from vitling.errors import UserError, did_you_mean

FITS = ("resize", "pad", "crop")
CHUNK = 32  # images per task of the thread pool


def fit_image(array: np.ndarray, size: tuple[int, int], fit: str, channels: int, white: int = 255) -> np.ndarray:
    """Bring H x W x C pixels, uint8 or uint16, to uint8 C x height x width (antialiased bicubic, timm's default).

    fit="resize" stretches, "pad" keeps the shape and fills up with black, "crop" keeps it and cuts the longer sides.
    `white` is the value of 16-bit pixels that becomes 255.
    """
    if array.shape[-1] == 3 and channels == 1:
        array = _luminance(array)
    elif array.shape[-1] not in (1, channels) or (array.shape[-1] == 1 and channels not in (1, 3)):
        raise UserError(
            f"the image has {array.shape[-1]} channels where {channels} are wanted; only grey and colour (1 and 3) "
            "are turned into each other"
        )
    height, width = size
    h, w = array.shape[:2]
    inner, box = (height, width), (0.0, 0.0, float(w), float(h))
    if fit == "pad":
        scale = min(height / h, width / w)
        inner = (max(1, round(h * scale)), max(1, round(w * scale)))
    elif fit == "crop":
        scale = max(height / h, width / w)
        left, top = (w - width / scale) / 2, (h - height / scale) / 2
        box = (max(left, 0.0), max(top, 0.0), min(w - left, float(w)), min(h - top, float(h)))
    elif fit != "resize":
        raise UserError(f"unknown fit '{fit}'. {did_you_mean(fit, FITS)}")
    pixels = _resize(array, inner, box)
    if array.dtype == np.uint16:
        pixels = np.clip(np.rint(pixels * (255 / white)), 0, 255).astype(np.uint8)
    pixels = pixels.transpose(2, 0, 1)
    if inner != (height, width):
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
        canvas = np.zeros((pixels.shape[0], height, width), np.uint8)
        canvas[:, top : top + inner[0], left : left + inner[1]] = pixels
        pixels = canvas
    return np.ascontiguousarray(np.broadcast_to(pixels, (channels, height, width)))


def load_image(images: Images, i: int, size: tuple[int, int], fit: str, channels: int, white: int = 255) -> np.ndarray:
    """Read and fit image i. Decoding into memory and streaming both come here, so that both give the same pixels."""
    # A JPEG many times too large is decoded at a fraction of its size; twice the target is left for the resampling.
    array = images.read(i, at_least=2 * max(size))
    try:
        return fit_image(array, size, fit, channels, white)
    except UserError as error:
        raise BadImage(images.names[i], str(error)) from None


def decode(
    images: Images,
    *,
    size: tuple[int, int],
    fit: str = "resize",
    channels: int,
    white: int = 255,
    threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """All images as one uint8 tensor, N x C x height x width. `on_progress` is told (done, total)."""
    if fit not in FITS:
        raise UserError(f"unknown fit '{fit}'. {did_you_mean(fit, FITS)}")
    decoded = torch.empty(len(images), channels, *size, dtype=torch.uint8)
    pixels = decoded.numpy()
    as_stored = (
        isinstance(images, ArrayImages)
        and images.array.dtype == np.uint8
        and images.array.shape[1:] == (*size, channels)
    )

    def load(start: int) -> int:
        stop = min(start + CHUNK, len(images))
        if as_stored:
            pixels[start:stop] = images.array[images.rows[start:stop]].transpose(0, 3, 1, 2)
        else:
            for i in range(start, stop):
                pixels[i] = load_image(images, i, size, fit, channels, white)
        return stop

    for stop in map_threads(load, range(0, len(images), CHUNK), threads):
        if on_progress:
            on_progress(stop, len(images))
    return decoded


def map_threads(function: Callable, items, threads: int | None = None):
    """Results in order, from a thread pool (Pillow decodes outside the GIL); the first error cancels what is left."""
    with ThreadPoolExecutor(threads or min(16, os.cpu_count() or 1)) as pool:
        try:
            yield from pool.map(function, items)
        finally:
            pool.shutdown(cancel_futures=True)


def channel_statistics(data: Tensor | Images, *, sample: int = 2048, **decoding) -> tuple[list[float], list[float]]:
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


def _luminance(array: np.ndarray) -> np.ndarray:
    """ITU-R 601 in Pillow's integers, for both depths."""
    weighted = array.astype(np.uint32) @ np.array([19595, 38470, 7471], np.uint32)
    return ((weighted + 0x8000) >> 16).astype(array.dtype)[..., None]


def _resize(array: np.ndarray, size: tuple[int, int], box: tuple[float, float, float, float]) -> np.ndarray:
    """Resample a box of the array. 16 bits give floating-point numbers, so that nothing is lost before scaling."""
    h, w, channels = array.shape
    if size == (h, w) and box == (0, 0, w, h):
        return array
    if array.dtype == np.uint8 and channels == 3:
        return np.asarray(Image.fromarray(array).resize(size[::-1], Image.Resampling.BICUBIC, box))
    # Channel by channel: with four at once Pillow would take the last for transparency.
    planes = np.ascontiguousarray(array.transpose(2, 0, 1))
    if array.dtype == np.uint16:
        planes = planes.astype(np.float32)
    resized = [Image.fromarray(plane).resize(size[::-1], Image.Resampling.BICUBIC, box) for plane in planes]
    return np.stack([np.asarray(plane) for plane in resized], axis=-1)
