"""Folders of small images for the tests of data."""

import numpy as np
import pytest
from PIL import Image

from vitling.data import open_dataset
from vitling.errors import UserError


def save(path, value=0, size=(6, 5), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "I;16") else (value,) * len(mode)).save(path)


def tree(root, *folders, count=3, **kwargs):
    """`count` images in each of the folders; the pixel value is the number of the image."""
    for folder in folders:
        for i in range(count):
            save(root / folder / f"{i}.png", i, **kwargs)
    return root


def sizes(dataset):
    return {split: len(images) for split, images in dataset.splits.items()}


def message(data, **kwargs):
    """What the user reads: one line."""
    with pytest.raises(UserError) as caught:
        open_dataset(data, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


def npz_arrays(shape=(8, 8, 3), dtype=np.uint8):
    rng = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 12), ("val", 6), ("test", 6)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (n, *shape)).astype(dtype)
        arrays[f"{split}_labels"] = np.arange(n) % 3
    return arrays
