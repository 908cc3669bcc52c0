"""ReaL: ImageNet's validation images with all the labels that are true of each (Beyer et al. 2020). timm brings the labels."""

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from timm.data import ImageNetInfo
from torch import Tensor

IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})(_n\d{8})?\.JPEG$", re.IGNORECASE)


def real_accuracy(predicted: Sequence[int] | Tensor, names: Sequence[str], class_names: Sequence[str]) -> float | None:
    """The share of images whose predicted class is one of ReaL's; those that ReaL gives none do not count.

    None unless every image is one of ImageNet's validation images and the classes are its synsets.
    """
    numbers = _synsets()
    found = [IMAGE.search(name) for name in names]
    if not all(found) or not found or not all(name in numbers for name in class_names):
        return None
    labels = _labels()
    hits = [
        numbers[class_names[int(guess)]] in allowed
        for guess, match in zip(predicted, found, strict=True)
        if match and (allowed := labels[int(match[1]) - 1])
    ]
    return sum(hits) / len(hits) if hits else None


@cache
def _synsets() -> dict[str, int]:
    return {synset: number for number, synset in enumerate(ImageNetInfo().label_names())}


@cache
def _labels() -> list[list[int]]:
    return json.loads((files("timm.data") / "_info" / "imagenet_real_labels.json").read_text())
