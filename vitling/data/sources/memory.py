"""Images that are in memory already: arrays, Pillow images and lists of paths, under a name that `open_dataset` knows."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from PIL import Image

from vitling.data.sources.images import ArrayImages, FileImages, Images, Layout, pillow_pixels
from vitling.data.sources.tree import Found
from vitling.data.targets import Kind
from vitling.errors import UserError

PREFIX = "memory:"


class LooseImages(Images):
    """Images of many sizes, each an array of H x W x C."""

    def __init__(self, arrays: Sequence[np.ndarray], labels: Sequence[int] | np.ndarray, name: str = "images"):
        super().__init__(labels, [f"{name}[{i}]" for i in range(len(arrays))])
        self.arrays = arrays

    def read(self, i: int, at_least: int | None = None) -> np.ndarray:
        return self.arrays[self.rows[i]]

    def layout(self, i: int) -> Layout:
        array = self.read(i)
        return Layout(array.shape[-1], array.dtype == np.uint16)

    def size(self, i: int) -> tuple[int, int]:
        return self.read(i).shape[:2]

    def content(self) -> bytes:
        digest = hashlib.sha256()
        for array in (self.arrays[row] for row in self.rows):
            digest.update(str((array.dtype, array.shape)).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()


class Kept:
    """Labelled images with a name made of their fingerprint. The name is good in this process, while this object lives."""

    def __init__(self, images: Images, class_names: Sequence[str], labels: Kind = "classes"):
        self.images, self.class_names, self.labels = images, list(class_names), labels
        text = "\0".join(self.class_names).encode()
        self.name = PREFIX + hashlib.sha256(text + images.digest() + images.group_digest()).hexdigest()[:16]


_kept: WeakValueDictionary[str, Kept] = WeakValueDictionary()


def keep(images: Images, class_names: Sequence[str], labels: Kind = "classes") -> Kept:
    """Give images, and what their labels are, a name; the same images again are the same object, so that no thread lets go of another's."""
    kept = Kept(images, class_names, labels)
    return _kept.setdefault(kept.name, kept)


def read_memory(name: str) -> Found:
    """What was kept under a name."""
    kept = _kept.get(name)
    if kept is None:
        raise UserError(
            f"{name} were arrays or a list in the memory of a process, and are not here; give the data as a folder or an .npz"
        )
    everything = np.arange(len(kept.images))
    by = "" if kept.images.groups is None else "groups"
    return Found(kept.class_names, {"train": kept.images.subset(everything)}, [], by, labels=kept.labels)


def is_list_of_images(given: Any) -> bool:
    """Whether these are paths or Pillow images, one per image, and not numbers."""
    if getattr(getattr(given, "dtype", None), "kind", "O") not in "OUT" or getattr(given, "ndim", 1) != 1:
        return False
    first = next(iter(given), None) if isinstance(given, Sequence) or hasattr(given, "dtype") else None
    return isinstance(first, str | os.PathLike | Image.Image)


def list_images(given: Sequence[str | os.PathLike | Image.Image], labels: np.ndarray) -> Images:
    """Paths or Pillow images, all of one kind."""
    given = list(given)
    pictures = [item for item in given if isinstance(item, Image.Image)]
    if len(pictures) == len(given):
        return LooseImages([pillow_pixels(image, f"images[{i}]") for i, image in enumerate(pictures)], labels)
    paths = [item for item in given if isinstance(item, str | os.PathLike)]
    if wrong := [item for item in given if not isinstance(item, str | os.PathLike)]:
        raise UserError(f"paths and other things ({type(wrong[0]).__name__}) are mixed; give one kind of image.")
    return FileImages(paths, labels)


def array_images(pixels: np.ndarray, labels: np.ndarray, *, channels: int | None = None) -> Images:
    """uint8 arrays of (N, H, W), (N, H, W, C) or (N, C, H, W).

    Which axis holds the channels follows from their number where it is known; else it is the shorter of the two, the last at a tie.
    """
    if pixels.ndim == 4:
        second, last = pixels.shape[1], pixels.shape[3]
        first = (second == channels != last) if channels else second < last
        pixels = pixels.transpose(0, 2, 3, 1) if first else pixels
    return ArrayImages(pixels, labels)
