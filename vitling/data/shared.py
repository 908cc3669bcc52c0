"""The same images in two places: found by what they hold, whatever they are called."""

import hashlib
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np

from vitling.callbacks import Callback
from vitling.data.sources.images import BadImage, Images
from vitling.data.threads import map_threads


def find_shared(
    images: Images,
    others: Iterable[Images],
    *,
    task: str = "looking for shared images",
    callback: Callback | None = None,
) -> np.ndarray:
    """Positions of the images that are also among others: the same pixels, however they are stored.

    Grey is grey with one channel or three, and a file may have been saved again without loss. Another size or quality is another image.
    """
    others = [one for one in others if len(one)]
    if not others:
        return np.empty(0, np.int64)
    total, done = sum(map(len, (images, *others))), 0

    def keys(one: Images) -> Iterator[bytes]:
        nonlocal done
        for key in map_threads(partial(_key, one), range(len(one))):
            done += 1
            if callback:
                callback.on_progress(task, done, total)
            yield key

    known = {key for one in others for key in keys(one)} - {b""}
    return np.array([i for i, key in enumerate(keys(images)) if key in known], dtype=np.int64)


def _key(images: Images, i: int) -> bytes:
    """What an image shows, as a hash; empty of one that cannot be read."""
    try:
        pixels = images.read(i)
    except (BadImage, OSError):
        return b""
    if pixels.shape[2] in (2, 4) and (pixels[..., -1] == np.iinfo(pixels.dtype).max).all():  # opaque
        pixels = pixels[..., :-1]
    if pixels.shape[2] == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., :1]
    return hashlib.sha256(str(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes()).digest()
