"""The same images in two places: found by what they hold, whatever they are called."""

import hashlib
from collections.abc import Iterable

import numpy as np

from vitling.callbacks import Callback
from vitling.data.sources.images import BadImage, FileImages, Images
from vitling.data.threads import map_threads


def find_shared(
    images: Images,
    others: Iterable[Images],
    *,
    task: str = "looking for shared images",
    callback: Callback | None = None,
) -> np.ndarray:
    """Positions of the images that are also among others: the same bytes where both are files, else the same pixels."""
    others = list(others)
    as_files = all(isinstance(one, FileImages) for one in (images, *others))
    known = {key for one in others for key in _keys(one, as_files)} - {b""}
    if not known:
        return np.empty(0, np.int64)
    found = []
    for i, key in enumerate(_keys(images, as_files)):
        if key in known:
            found.append(i)
        if callback:
            callback.on_progress(task, i + 1, len(images))
    return np.array(found, dtype=np.int64)


def _keys(images: Images, as_files: bool) -> Iterable[bytes]:
    """What each image holds, as a hash; empty of one that cannot be read."""

    def key(i: int) -> bytes:
        try:
            if as_files and isinstance(images, FileImages):
                return hashlib.sha256(images.encoded(i)).digest()
            pixels = np.ascontiguousarray(images.read(i))
            return hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).digest()
        except (BadImage, OSError):
            return b""

    return map_threads(key, range(len(images)))
