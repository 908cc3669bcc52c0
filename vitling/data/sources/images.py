"""Labelled images of one split, one at a time: read from an array, a file or a Hugging Face table, fitted to a size."""

import copy
import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vitling.errors import UserError, did_you_mean
from vitling.files import check_path, what_else

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".jp2", ".avif"}
IMAGE_SUFFIXES |= {".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".npy"}
FITS = ("resize", "pad", "crop")
INTERPOLATIONS = ("bilinear", "bicubic")
Box = tuple[float, float, float, float]  # left, top, right, bottom, as Pillow takes it
NO_FILE, OTHER_KIND, UNKNOWN_SIZE = -1, -2, -3  # in place of a file's size
SKIP = "Repair or remove it, or pass on_bad_image=skip to leave such images out."


class BadImage(UserError):
    """One image that cannot be used, by name."""

    def __init__(self, name: str, reason: str, remedy: str = SKIP):
        super().__init__(name, reason, remedy)  # all of it, because pickle rebuilds it from these
        self.name, self.reason, self.remedy = name, reason, remedy

    def __str__(self) -> str:
        return f"cannot read image {self.name}: {self.reason}. {self.remedy}"


class Layout(NamedTuple):
    """What the head of an image says about its pixels, without decoding them."""

    channels: int
    sixteen_bit: bool


class Images(ABC):
    """The labelled images of one split. `read(i)` gives H x W x C pixels, uint8 or uint16, upright."""

    # Encoded images with transparency give a fourth channel only to those who ask for it. Arrays have what they have.
    alpha = False
    # what is to be learnt where that is no class number, (N, outputs) float32; `labels` are then only strata to split by
    targets: np.ndarray | None = None
    weights: np.ndarray | None = None  # how much each image counts in the loss, 1 on average; None: all the same
    groups: np.ndarray | None = None  # the patient, slide or video of each image, as text; None: nobody said
    has_file_names = False  # whether `names` are those of files, which may say something about the images

    def __init__(self, labels: Sequence[int] | np.ndarray, names: Sequence[str]):
        self.labels = np.asarray(labels, dtype=np.int64).reshape(-1)
        self.names = list(names)
        self.rows: np.ndarray = np.arange(
            len(self.labels)
        )  # where each image lies in the source; a subset keeps some of them
        assert len(self.names) == len(self.labels), f"{len(self.names)} names, {len(self.labels)} labels"

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Images":
        """A view of some of the images, in the given order. Pixels are neither read nor copied."""
        indices = np.asarray(indices, dtype=np.int64)
        view = copy.copy(self)
        view.labels, view.rows = self.labels[indices], self.rows[indices]
        view.names = [self.names[i] for i in indices]
        view.targets = None if self.targets is None else self.targets[indices]
        view.weights = None if self.weights is None else self.weights[indices]
        view.groups = None if self.groups is None else self.groups[indices]
        return view

    @abstractmethod
    def read(self, i: int, at_least: int | None = None) -> np.ndarray:
        """Image i. With `at_least`, big JPEGs may come smaller (a half, quarter, eighth), each side still that long."""

    @abstractmethod
    def layout(self, i: int) -> Layout:
        """Channels and depth of image i as `read` would give them."""

    @abstractmethod
    def size(self, i: int) -> tuple[int, int]:
        """Height and width of image i, upright."""

    @abstractmethod
    def content(self) -> bytes:
        """A cheap fingerprint of the pixels."""

    @property
    def shards(self) -> np.ndarray | None:
        """The number of each image's shard, where shards can only be read from the beginning; None where any image can be read."""
        return None

    def sample(self, count: int) -> np.ndarray:
        """Up to `count` images that stand for all, and can be read without many others."""
        return evenly(len(self), count)

    def identities(self) -> list[bytes] | None:
        """16 bytes that name each image as it is now, for who keeps what becomes of it; None where nothing tells."""
        return None

    def digest(self) -> bytes:
        """A hash of names, labels, targets, weights and content: the same on every machine, and blind to file times."""
        text = "\0".join(self.names).encode("utf-8", "surrogateescape")
        weights = b"" if self.weights is None else self.weights.tobytes()
        targets = b"" if self.targets is None else self.targets.tobytes()
        return hashlib.sha256(text + self.labels.tobytes() + targets + weights + self.content()).digest()

    def group_digest(self) -> bytes:
        """A hash of the groups; nothing where there are none."""
        if self.groups is None:
            return b""
        return hashlib.sha256("\0".join(self.groups.tolist()).encode("utf-8", "surrogateescape")).digest()


class ArrayImages(Images):
    """Images of one size in one array, N x H x W x C."""

    def __init__(self, array: np.ndarray, labels: Sequence[int] | np.ndarray, name: str = "images"):
        super().__init__(labels, [f"{name}[{i}]" for i in range(len(array))])
        self.array = array if array.ndim == 4 else array[..., None]

    def read(self, i: int, at_least: int | None = None) -> np.ndarray:
        return self.array[self.rows[i]]

    def layout(self, i: int) -> Layout:
        return Layout(self.array.shape[-1], self.array.dtype == np.uint16)

    def size(self, i: int) -> tuple[int, int]:
        return self.array.shape[1:3]

    def content(self) -> bytes:
        digest = hashlib.sha256(str((self.array.dtype, self.array.shape[1:])).encode())
        for row in self.rows:
            digest.update(np.ascontiguousarray(self.array[row]).data)
        return digest.digest()


class EncodedImages(Images):
    """Images that are encoded as files are: everything Pillow reads, and `.npy` arrays of H x W or H x W x C."""

    @abstractmethod
    def source(self, i: int) -> str | BytesIO:
        """The path of image i, or its bytes."""

    def shown_name(self, i: int) -> str:
        """How messages call image i."""
        return self.names[i]

    def read(self, i: int, at_least: int | None = None) -> np.ndarray:
        return read_image(self.source(i), name=self.shown_name(i), alpha=self.alpha, at_least=at_least)

    def layout(self, i: int) -> Layout:
        return read_layout(self.source(i), name=self.shown_name(i), alpha=self.alpha)

    def size(self, i: int) -> tuple[int, int]:
        return read_size(self.source(i), name=self.shown_name(i))


class FileImages(EncodedImages):
    """One file per image."""

    has_file_names = True

    def __init__(
        self,
        paths: Sequence[str | os.PathLike],
        labels: Sequence[int] | np.ndarray,
        *,
        root: str | os.PathLike = "",
        sizes: Sequence[int] | np.ndarray | None = None,
    ):
        """`paths` start at `root`; they are the images' names. `sizes` in bytes are looked up unless given."""
        super().__init__(labels, [os.fspath(path) for path in paths])
        self.root = os.fspath(root)
        self.sizes = np.array([file_size(self.path(i)) for i in range(len(self))] if sizes is None else sizes, np.int64)

    def path(self, i: int) -> str:
        return os.path.join(self.root, self.names[i])

    def source(self, i: int) -> str:
        return self.path(i)

    def shown_name(self, i: int) -> str:
        return self.path(i)

    def encoded(self, i: int) -> bytes:
        """The bytes of image i."""
        with open(self.path(i), "rb") as file:
            return file.read()

    def identities(self) -> list[bytes]:
        return [identify(self.path(i)) for i in range(len(self))]

    def content(self) -> bytes:
        return self.sizes[self.rows].tobytes()


class HubImages(EncodedImages):
    """The encoded images in one column of a table of Hugging Face's `datasets`."""

    def __init__(self, table: Any, column: str, labels: Sequence[int] | np.ndarray, name: str):
        from datasets import Image as ImageColumn  # of the extra hub

        super().__init__(labels, [f"{name}[{i}]" for i in range(len(table))])
        # Left encoded, so that rotation, palettes and depth are treated as they are for files.
        self.table = table.select_columns([column]).cast_column(column, ImageColumn(decode=False))
        self.column = column

    def source(self, i: int) -> str | BytesIO:
        cell = self.table[int(self.rows[i])][self.column]
        if cell is None:
            raise BadImage(self.names[i], "the cell is empty")
        return cell["path"] if cell["bytes"] is None else BytesIO(cell["bytes"])

    def content(self) -> bytes:
        # Hashing every image would read the whole table; labels and row count are hashed already.
        digest = hashlib.sha256()
        for i in evenly(len(self), 64):
            digest.update(hashlib.sha256(self.read(i).data).digest())
        return digest.digest()


@lru_cache(maxsize=1024)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def identify(path: str, *inside: object) -> bytes:
    """16 bytes that name a file, or a place in it, as it is now: empty where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return b""
    folder, name = os.path.split(path)
    parts = (_real_folder(folder), name, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, *inside)
    return hashlib.blake2b("\0".join(map(str, parts)).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def evenly(total: int, count: int) -> np.ndarray:
    """Up to `count` indices spread evenly over `total`: the first and the last among them, no randomness."""
    return np.linspace(0, total - 1, min(total, count)).astype(np.int64) if total else np.arange(0)


def read_image(
    source: str | BytesIO, *, name: str | None = None, alpha: bool = False, at_least: int | None = None
) -> np.ndarray:
    """Decode one image to H x W x C.

    Turned upright by its EXIF tag; palettes expanded; transparency laid over white, or kept as a fourth channel with
    `alpha`. A TIFF whose pages are grey and of one size gives one channel per page.
    """
    with _naming(source, name):
        if _is_npy(source):
            return np.array(_open_npy(source))
        with Image.open(source) as image:
            _refuse_unsafe(image)
            if at_least and image.format in ("JPEG", "MPO"):
                image.draft(None, (at_least, at_least))
            return _all_pixels(image, alpha)


def _all_pixels(image: Image.Image, alpha: bool) -> np.ndarray:
    """The pixels of an image that is open, upright, or of all pages of a stack."""
    if _is_stack(image):
        _refuse_unsafe(image, _page_count(image))
        return np.concatenate([_pixels(page, alpha=False) for page in _pages(image)], axis=-1)
    return _pixels(ImageOps.exif_transpose(image), alpha)


def read_layout(source: str | BytesIO, *, name: str | None = None, alpha: bool = False) -> Layout:
    """Channels and depth of one image, from its head alone."""
    with _naming(source, name):
        if _is_npy(source):
            array = _open_npy(source)
            return Layout(array.shape[-1], array.dtype == np.uint16)
        with Image.open(source) as image:
            _refuse_unsafe(image)
            sixteen_bit = image.mode.startswith("I")
            if _is_stack(image):
                _refuse_unsafe(image, _page_count(image))
                return Layout(_page_count(image), sixteen_bit)
            if sixteen_bit:
                return Layout(1, True)
            return Layout(4 if alpha else 1 if _is_grey(image) else 3, False)


def read_size(source: str | BytesIO, *, name: str | None = None) -> tuple[int, int]:
    """Height and width of one image as `read_image` turns it, from its head alone."""
    with _naming(source, name):
        if _is_npy(source):
            return _open_npy(source).shape[:2]
        with Image.open(source) as image:
            lying = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
            return (image.width, image.height) if lying else (image.height, image.width)


def pillow_pixels(image: Image.Image, name: str, *, alpha: bool = False) -> np.ndarray:
    """An image that Pillow has opened already, as `read_image` would give it."""
    with _naming("", name):
        _refuse_unsafe(image)
        return _all_pixels(image, alpha)


def fit_image(
    array: np.ndarray,
    size: tuple[int, int],
    fit: str,
    channels: int,
    max_value: int = 255,
    *,
    test_crop: float | None = None,
    interpolation: str = "bicubic",
) -> np.ndarray:
    """Bring H x W x C pixels, uint8 or uint16, to uint8 C x height x width, antialiased.

    fit="resize" stretches, "pad" keeps the shape and fills up with black, "crop" keeps it and cuts the longer sides. With
    `test_crop` the image is fitted to a size larger by that share, and its centre is cut out, as timm and torchvision do it.
    `max_value` is the value of 16-bit pixels that becomes 255. Brighter ones are clipped, except where it is 255 itself: then
    the data is of 8 bits, and nearly all of a deeper image would be clipped.
    """
    if max_value == 255 and array.dtype == np.uint16 and array.max() > 255:
        raise UserError(
            f"it has 16 bits (values up to {array.max()}), but the training images have 8 (up to 255); save it with 8 bits"
        )
    if array.shape[-1] == 3 and channels == 1:
        array = _luminance(array)
    elif array.shape[-1] not in (1, channels) or (array.shape[-1] == 1 and channels not in (1, 3)):
        raise UserError(
            f"the image has {array.shape[-1]} channels where {channels} are wanted; only grey and colour (1 and 3) "
            "are turned into each other"
        )
    if interpolation not in INTERPOLATIONS:
        raise UserError(f"unknown interpolation '{interpolation}'. {did_you_mean(interpolation, INTERPOLATIONS)}")
    h, w = array.shape[:2]
    if test_crop is None:
        inner, box = _fit_once(h, w, size, fit)
    else:
        inner, box = _fit_larger(h, w, enlarged(size, test_crop), fit), (0.0, 0.0, float(w), float(h))
    pixels = _resize(array, inner, box, interpolation)
    if array.dtype == np.uint16:
        pixels = np.clip(np.rint(pixels * (255 / max_value)), 0, 255).astype(np.uint8)
    pixels = _cut_centre(pixels.transpose(2, 0, 1), size)
    return np.ascontiguousarray(np.broadcast_to(pixels, (channels, *size)))


def enlarged(size: tuple[int, int], test_crop: float | None) -> tuple[int, int]:
    """The size that an image is fitted to before its centre is cut out: 256 of 224 with a share of 0.875."""
    height, width = (math.floor(side / (test_crop or 1)) for side in size)
    return height, width


def _fit_once(h: int, w: int, size: tuple[int, int], fit: str) -> tuple[tuple[int, int], Box]:
    """What is resampled to which size, so that one step gives the whole picture, or as much as has the shape."""
    height, width = size
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
    return inner, box


def _fit_larger(h: int, w: int, size: tuple[int, int], fit: str) -> tuple[int, int]:
    """The size of the whole image, of which timm then cuts the centre out; with its rounding, and torchvision's for squares."""
    if fit == "resize":
        return size
    if fit not in FITS:
        raise UserError(f"unknown fit '{fit}'. {did_you_mean(fit, FITS)}")
    if fit == "crop" and size[0] == size[1]:
        side = size[0]
        return (side, int(side * w / h)) if h <= w else (int(side * h / w), side)
    ratios = h / size[0], w / size[1]
    ratio = min(ratios) if fit == "crop" else max(ratios)
    return max(1, round(h / ratio)), max(1, round(w / ratio))


def _cut_centre(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The central C x height x width of an image; where it is smaller, black lies around it."""
    for axis, wanted in enumerate(size, start=1):
        length = pixels.shape[axis]
        if length > wanted:
            start = round((length - wanted) / 2)
            pixels = pixels.take(range(start, start + wanted), axis=axis)
        elif length < wanted:
            before = (wanted - length) // 2
            around = [(0, 0)] * 3
            around[axis] = (before, wanted - length - before)
            pixels = np.pad(pixels, around)
    return pixels


def load_image(
    images: Images,
    i: int,
    size: tuple[int, int],
    fit: str,
    channels: int,
    max_value: int = 255,
    *,
    test_crop: float | None = None,
    interpolation: str = "bicubic",
) -> np.ndarray:
    """Read and fit image i. Decoding into memory and streaming both come here, so that both give the same pixels."""
    # A JPEG many times too large is decoded at a fraction of its size; twice the target is left for the resampling.
    array = images.read(i, at_least=2 * max(enlarged(size, test_crop)))
    try:
        return fit_image(array, size, fit, channels, max_value, test_crop=test_crop, interpolation=interpolation)
    except UserError as error:
        raise BadImage(images.names[i], str(error), "Convert or remove it.") from None


def file_size(path: str) -> int:
    """Bytes; NO_FILE where there is none, OTHER_KIND for a folder, a pipe or a device, of which reading might never end."""
    try:
        return OTHER_KIND if what_else(path) else os.stat(path).st_size
    except (OSError, ValueError):  # a name that is too long, or holds NUL
        return NO_FILE


@contextmanager
def _naming(source: str | BytesIO, name: str | None) -> Iterator[None]:
    """Turn whatever goes wrong while reading into a BadImage with the image's name and the reason.

    Everything, because a broken file makes Pillow's plug-ins raise whatever their parsers happen to stumble over.
    """
    try:
        if source and isinstance(source, str) and (other := what_else(check_path(source))):
            raise ValueError(f"it is {other}, not a file")
        yield
    except Exception as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            reason = "no such file"
        elif isinstance(source, str) and os.path.isfile(source) and os.path.getsize(source) == 0:
            reason = "the file is empty (0 bytes)"
        elif isinstance(error, UnidentifiedImageError):
            reason = "Pillow does not recognise it as an image"
        else:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadImage(name or str(source), reason) from error


def _is_npy(source: str | BytesIO) -> bool:
    return source.lower().endswith(".npy") if isinstance(source, str) else bytes(source.getbuffer()[:6]) == b"\x93NUMPY"


def _open_npy(source: str | BytesIO) -> np.ndarray:
    """The array of a file, not read yet: a header that announces more than the file holds is refused, not made room for."""
    try:
        with open(source, "rb") if isinstance(source, str) else BytesIO(source.getbuffer()) as file:
            shape, dtype = read_array_header(file)
            begun = file.tell()
            held = file.seek(0, os.SEEK_END) - begun
        if math.prod(shape) * dtype.itemsize > held or min(shape, default=0) < 0:
            raise ValueError(f"it announces the shape {shape}, but only {held:,} bytes follow")
        array = np.load(source, allow_pickle=False, mmap_mode="r" if isinstance(source, str) else None)
    except ValueError as error:
        if not any(sign in str(error) for sign in ("allow_pickle", "Python objects", "magic string")):
            raise
        # NumPy advises to unpickle it, which runs whatever code an untrusted file holds.
        raise ValueError(
            "it holds Python objects or is not an .npy file; save it with np.save as uint8 or uint16"
        ) from None
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of arrays; save one array with np.save")
    if array.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"its numbers are {array.dtype}; uint8 or uint16 are allowed")
    if array.ndim not in (2, 3) or array.size == 0:
        raise ValueError(f"its shape is {array.shape}; height x width or height x width x channels is allowed")
    _refuse_pixels(array.shape[1], array.shape[0])
    return array if array.ndim == 3 else array[..., None]


def read_array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type that the head of an .npy file announces."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype


def _refuse_unsafe(image: Image.Image, pages: int = 1) -> None:
    """Refuse what is a program to run, and what would fill the memory."""
    if image.format == "EPS":
        raise ValueError("PostScript is a program, not an image; save it as PNG")
    _refuse_pixels(image.width, image.height, pages)


def _refuse_pixels(width: int, height: int, pages: int = 1) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit and width * height * pages > limit:
        size = f"{width} x {height}" + (f" x {pages}" if pages > 1 else "")
        raise ValueError(
            f"{size} pixels are more than the {limit:,} Pillow holds safe; "
            "make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        )


def _is_stack(image: Image.Image) -> bool:
    """A TIFF with one grey page per channel, as microscopes write them (and no pyramid of ever smaller pages)."""
    if image.format != "TIFF" or _page_count(image) == 1:
        return False
    kinds = {(page.size, page.mode) for page in _pages(image)}
    image.seek(0)
    return len(kinds) == 1 and _is_single(image)


def _page_count(image: Image.Image) -> int:
    return getattr(image, "n_frames", 1)


def _pages(image: Image.Image) -> Iterator[Image.Image]:
    for page in range(_page_count(image)):
        image.seek(page)
        yield image


def _is_single(image: Image.Image) -> bool:
    return image.mode in ("1", "L", "I", "F") or image.mode.startswith("I;16")


def _is_grey(image: Image.Image) -> bool:
    if image.mode == "P":
        palette = np.array(image.getpalette("RGB") or [0, 0, 0]).reshape(-1, 3)
        return bool((palette == palette[:, :1]).all())
    return _is_single(image) or image.mode in ("LA", "La")


def _pixels(image: Image.Image, alpha: bool) -> np.ndarray:
    """The decoded pixels of a Pillow image of any mode, as H x W x 1, 3 or (with alpha) 4."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError(f"its pixels run from {values.min()} to {values.max()}; 16 bits hold 0 to 65535")
        return values.astype(np.uint16)[..., None]
    if alpha:
        return np.array(image.convert("RGBA"))
    mode = "L" if _is_grey(image) else "RGB"
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image)
    pixels = np.array(image.convert(mode))
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _luminance(array: np.ndarray) -> np.ndarray:
    """ITU-R 601 in Pillow's integers, for both depths."""
    weighted = array.astype(np.uint32) @ np.array([19595, 38470, 7471], np.uint32)
    return ((weighted + 0x8000) >> 16).astype(array.dtype)[..., None]


def _resize(array: np.ndarray, size: tuple[int, int], box: Box, interpolation: str) -> np.ndarray:
    """Resample a box of the array. 16 bits give floating-point numbers, so that nothing is lost before scaling."""
    h, w, channels = array.shape
    if size == (h, w) and box == (0, 0, w, h):
        return array
    how = Image.Resampling[interpolation.upper()]
    if array.dtype == np.uint8 and channels == 3:
        return np.asarray(Image.fromarray(array).resize(size[::-1], how, box))
    # Channel by channel: with four at once Pillow would take the last for transparency.
    planes = np.ascontiguousarray(array.transpose(2, 0, 1))
    if array.dtype == np.uint16:
        planes = planes.astype(np.float32)
    resized = [Image.fromarray(plane).resize(size[::-1], how, box) for plane in planes]
    return np.stack([np.asarray(plane) for plane in resized], axis=-1)
