"""Images as users have them: files, folders, encoded bytes, Pillow images, arrays and tensors; one, or many."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.sources.images import IMAGE_SUFFIXES, BadImage, enlarged, fit_image, pillow_pixels, read_image
from vitling.errors import UserError
from vitling.files import check_path, what_else

ALLOWED = "give a path, the bytes of a file, a Pillow image, an array of uint8 or uint16 of height x width x channels, or several of these"
CONVERT = "Convert or remove it."


@dataclass(frozen=True)
class Inputs:
    """Images to predict, each with a name for messages; `single` where one was given, and not a list of one."""

    images: list[Any]
    names: list[str]
    single: bool


def list_inputs(given: Any, channels: int) -> Inputs:
    """What was given as a list; an array of four axes and a folder are many images."""
    if isinstance(given, str | os.PathLike):
        paths = find_images([given])
        return Inputs(list(paths), [str(path) for path in paths], single=not Path(given).is_dir())
    given = _to_array(given)
    if isinstance(given, np.ndarray) and given.ndim == 4:
        many = given if _channels_last(given.shape[1:], channels) else given.transpose(0, 2, 3, 1)
        return Inputs(list(many), [f"images[{i}]" for i in range(len(many))], single=False)
    is_array = isinstance(given, np.ndarray) and given.dtype.kind not in "OUS"
    if is_array or _is_encoded(given) or isinstance(given, Image.Image):
        return Inputs([given], ["the image"], single=True)
    if not isinstance(given, Iterable):
        raise UserError(f"{type(given).__name__} is not an image; {ALLOWED}.")
    images: list[Any] = []
    names: list[str] = []
    for i, item in enumerate(given):
        if isinstance(item, str | os.PathLike):
            paths = find_images([item])
            images += paths
            names += map(str, paths)
        else:
            images.append(item)
            names.append(f"images[{i}]")
    return Inputs(images, names, single=False)


def fit_input(image: Any, seen: Preprocessing, name: str) -> np.ndarray:
    """One image as the model sees it, uint8 of (channels, height, width); a `BadImage` says why it cannot be used."""
    image, alpha = _to_array(image), seen.channels == 4
    # A JPEG many times too large is decoded at a fraction of its size, as everywhere.
    at_least = 2 * max(enlarged(seen.size, seen.test_crop))
    if isinstance(image, str | os.PathLike):
        pixels = read_image(os.fspath(image), name=name, alpha=alpha, at_least=at_least)
    elif _is_encoded(image):
        content = bytes(image if isinstance(image, bytes | bytearray | memoryview) else image.read())
        if not content:
            raise BadImage(name, "it is empty (0 bytes)", CONVERT)
        pixels = read_image(BytesIO(content), name=name, alpha=alpha, at_least=at_least)
    elif isinstance(image, Image.Image):
        pixels = pillow_pixels(image, name, alpha=alpha)
    elif isinstance(image, np.ndarray):
        pixels = _check_array(image, seen.channels, name)
    else:
        raise BadImage(name, f"{type(image).__name__} is not an image", f"{ALLOWED[0].upper()}{ALLOWED[1:]}.")
    try:
        return fit_image(pixels, **seen.fit_args())
    except BadImage:
        raise
    except UserError as error:
        raise BadImage(name, str(error), CONVERT) from None


def find_images(given: Sequence[str | os.PathLike]) -> list[Path]:
    """The given files, and the images below the given folders in the order of their names."""
    found = []
    for path in map(check_path, given):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
            if not inside:
                raise UserError(
                    f"no images in {path}; files ending in {', '.join(sorted(IMAGE_SUFFIXES)[:6])} ... are read."
                )
            found += inside
        elif path.exists():
            if other := what_else(path):
                raise UserError(f"{path} is {other}, not an image.")
            found.append(path)
        else:
            raise UserError(f"no image at {path}.")
    if not found:
        raise UserError("no images are given; name files or folders.")
    return found


def _is_encoded(given: Any) -> bool:
    return isinstance(given, bytes | bytearray | memoryview) or callable(getattr(given, "read", None))


def _to_array(given: Any) -> Any:
    """A tensor of torch, or another array, as NumPy's; everything else as it is. Tensors hold their channels first."""
    if isinstance(given, np.ndarray | Image.Image) or _is_encoded(given):
        return given
    if type(given).__module__.partition(".")[0] == "torch" and hasattr(given, "detach"):
        return given.detach().cpu().numpy()
    return np.asarray(given) if hasattr(given, "__array__") else given


def _check_array(array: np.ndarray, channels: int, name: str) -> np.ndarray:
    """An array as height x width x channels."""
    if array.dtype not in (np.uint8, np.uint16):
        raise BadImage(name, f"its numbers are {array.dtype}; uint8 or uint16 are allowed", CONVERT)
    if array.ndim not in (2, 3) or not array.size:
        raise BadImage(name, f"its shape is {array.shape}; height x width (x channels) is allowed", CONVERT)
    if array.ndim == 2:
        return array[..., None]
    if _channels_last(array.shape, channels):
        return array
    if array.shape[0] != channels:
        reason = f"its shape {array.shape} has no axis of {channels} channels, neither last nor first"
        raise BadImage(name, reason, "Several images have four axes: images x height x width x channels.")
    return array.transpose(1, 2, 0)


def _channels_last(shape: tuple[int, ...], channels: int) -> bool:
    """Whether the last of three axes holds the channels: those of the model, or of an image that can be turned into its kind."""
    if channels in (shape[0], shape[-1]):
        return shape[-1] == channels
    return shape[-1] in (1, 3)
