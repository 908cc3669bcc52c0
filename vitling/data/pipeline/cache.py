"""Decoded images on disk, so that a second start need not decode them again: shared by everything that reads images.

An image is known by the file it comes from as that is now (path, size, times) and by how it is fitted; a changed file is another image. What is
written together is one segment, which appears whole and never changes: pixels, then a table of them. Two processes may write the same images,
which wastes some room and harms nobody. Nothing is trusted that is read: tables and pixels have checksums, a segment that
is corrupted is removed, an image that is corrupted is decoded again. The segments that were used longest ago make room for new ones.
"""

import contextlib
import hashlib
import json
import math
import mmap
import os
import platform
import secrets
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import PIL

from vitling.callbacks import Callback
from vitling.data.sources.images import Images
from vitling.data.sources.named import cache_folder
from vitling.errors import UserError
from vitling.files import replacing

FEWEST = 64  # new images that are worth a segment
SEGMENT_BYTES = 2**28
DEFAULT_GB = 10.0
SPARE_BYTES = 2**30  # of the disk, that we leave to others
MOST_SEGMENTS = 1000
STALE_SECONDS = 86400  # after which what a killed process left half written is removed
SUFFIX = ".pixels"
_MAGIC = b"VITLING PIXELS 1"
_ROW = np.dtype(
    [("key", "V16"), ("offset", "<u8"), ("shape", "<u4", 3), ("checksum", "<u4")]
)  # shape: channels, height, width
_TAIL = np.dtype([("count", "<u8"), ("checksum", "<u4"), ("magic", "S16")])


class Place(NamedTuple):
    """Where an image lies: a segment and its row."""

    segment: "Segment"
    row: int


class Segment:
    """One file of decoded images, mapped into memory. Refused with a ValueError where anything about it is wrong."""

    def __init__(self, path: Path):
        self.path = path
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < len(_MAGIC) + _TAIL.itemsize:
                raise ValueError("it is too short")
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        tail = np.frombuffer(self.map, _TAIL, 1, size - _TAIL.itemsize)[0]
        count, end = int(tail["count"]), size - _TAIL.itemsize
        begin = end - count * _ROW.itemsize
        if tail["magic"] != _MAGIC or self.map[: len(_MAGIC)] != _MAGIC or begin < len(_MAGIC):
            raise ValueError("it is not one of ours")
        if zlib.crc32(self.map[begin:end]) != tail["checksum"]:
            raise ValueError("its table is corrupted")
        self.table = np.frombuffer(self.map, _ROW, count, begin)
        ends = self.table["offset"] + self.table["shape"].astype(np.uint64).prod(axis=1)
        if count and (self.table["offset"].min() < len(_MAGIC) or ends.max() > begin):
            raise ValueError("its table leads outside of it")
        self.keys = self.table["key"].tobytes()
        # Plain lists: asking an array for single numbers takes longer than copying a small image.
        self.offsets, self.shapes = self.table["offset"].tolist(), self.table["shape"].tolist()
        self.checksums = self.table["checksum"].tolist()

    def __reduce__(self) -> tuple:
        return Segment, (self.path,)  # a process that is started anew maps the file itself

    def read(self, row: int) -> np.ndarray | None:
        """Pixels, C x H x W; None where they are corrupted."""
        shape, offset = self.shapes[row], self.offsets[row]
        pixels = np.frombuffer(self.map, np.uint8, math.prod(shape), offset)
        return pixels.reshape(shape) if zlib.crc32(pixels.data) == self.checksums[row] else None


class PixelCache:
    """A folder of segments that together take at most so many bytes."""

    def __init__(self, folder: Path, limit: int):
        self.folder, self.limit = folder, limit

    def shelf(self, images: Images, **how: Any) -> "Shelf | None":
        """What is known of these images when they are fitted so; None where nothing tells them from others, as of arrays."""
        keys = images.identities()
        if keys is None or not len(keys):
            return None
        version = (PIL.__version__, platform.machine())  # other decoders give other pixels
        text = json.dumps([sorted(how.items()), images.alpha, version], default=str)
        return Shelf(self, self.folder / hashlib.sha256(text.encode()).hexdigest()[:24], keys)

    def make_room(self, needed: int) -> None:
        """Remove the segments that were used longest ago, until so many bytes more are within the limit and on the disk."""
        found = []
        for path in self.folder.glob(f"*/*{SUFFIX}"):
            with contextlib.suppress(OSError):  # another process makes room as well
                status = path.stat()
                if not path.name.startswith("."):
                    found.append((status.st_mtime, status.st_size, path))
                elif status.st_mtime < time.time() - STALE_SECONDS:
                    path.unlink()
        found.sort()
        free = shutil.disk_usage(self.folder).free - SPARE_BYTES
        excess = max(sum(size for _, size, _ in found) + needed - self.limit, needed - free)
        surplus = len(found) + 1 - MOST_SEGMENTS
        for _, size, path in found:
            if excess <= 0 and surplus <= 0:
                return
            with contextlib.suppress(OSError):  # Windows keeps what is open
                path.unlink()
            excess, surplus = excess - size, surplus - 1
        if excess > 0:
            raise UserError(f"no space left on the device for {self.folder}; free some, or place the cache elsewhere.")


class Shelf:
    """The images of one source, fitted in one way: those that are decoded already, and those that are not."""

    def __init__(self, cache: PixelCache, folder: Path, keys: list[bytes]):
        self.cache, self.folder, self.keys = cache, folder, keys
        self.places: list[Place | None] = []
        self.find()

    def find(self) -> None:
        """Look again for what is there."""
        wanted = {key: i for i, key in enumerate(self.keys) if key}
        places: dict[bytes, Place] = {}
        for path in sorted(self.folder.glob(f"[!.]*{SUFFIX}")):
            try:
                segment = Segment(path)
            except FileNotFoundError:
                continue  # another process made room
            except (ValueError, OSError):
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            keys = segment.keys
            held = {keys[16 * row : 16 * row + 16]: row for row in range(len(segment.table))}
            used = held.keys() & wanted.keys()
            places.update({key: Place(segment, held[key]) for key in used})
            if used:
                with contextlib.suppress(OSError):
                    os.utime(path)  # the least recently used ones are removed first
        self.places = [places.get(key) for key in self.keys]

    @property
    def missing(self) -> list[int]:
        return [i for i, place in enumerate(self.places) if place is None]

    def read(self, i: int) -> np.ndarray | None:
        """The pixels of image i, C x H x W; None where they are not there, or corrupted."""
        place = self.places[i]
        return None if place is None else place.segment.read(place.row)

    def size(self, i: int) -> tuple[int, int] | None:
        """Height and width of what is there of image i."""
        place = self.places[i]
        if place is None:
            return None
        _, height, width = place.segment.shapes[place.row]
        return height, width


class Loading:
    """`load(i)` that asks the shelf first. What had to be decoded is written when the block ends, however it ends."""

    def __init__(
        self,
        decode: Callable[[int], np.ndarray],
        shelf: Shelf | None,
        *,
        bytes_each: float = 0,
        callback: Callback | None = None,
    ):
        self.decode, self.shelf, self.callback = decode, shelf, callback
        self.writer: _Writer | None = None
        if shelf and (count := len(shelf.missing)) >= FEWEST and count * bytes_each <= shelf.cache.limit:
            self.writer = _Writer(shelf)

    def __call__(self, i: int) -> np.ndarray:
        found = self.shelf.read(i) if self.shelf else None
        if found is not None:
            return found
        pixels = self.decode(i)
        if self.writer and self.shelf and self.shelf.keys[i]:
            self.writer.add(self.shelf.keys[i], pixels)
        return pixels

    def __enter__(self) -> "Loading":
        return self

    def __exit__(self, *error: object) -> None:
        if self.writer is None:
            return
        self.writer.close()
        if self.writer.trouble and self.callback:
            self.callback.log(f"decoded images are not kept for the next start: {self.writer.trouble}")


class _Writer:
    """Writes segments, from any thread. A disk that is full or closed to us ends the writing, not the reading."""

    def __init__(self, shelf: Shelf):
        self.shelf = shelf
        self.lock = threading.Lock()
        self.trouble = ""
        self.file: IO[bytes] | None = None
        self.stack = ExitStack()

    def add(self, key: bytes, pixels: np.ndarray) -> None:
        with self.lock:
            if self.trouble:
                return
            try:
                if self.file is None:
                    self._begin()
                assert self.file is not None
                pixels = np.ascontiguousarray(pixels)
                self.rows.append((key, self.written, pixels.shape, zlib.crc32(pixels.data)))
                self.file.write(pixels.data)
                self.written += pixels.nbytes
                if self.written > SEGMENT_BYTES:
                    self._finish()
            except (UserError, OSError) as error:
                self._give_up(error)

    def close(self) -> None:
        with self.lock:
            try:
                if self.file is not None:
                    self._finish()
            except (UserError, OSError) as error:
                self._give_up(error)

    def _begin(self) -> None:
        self.shelf.folder.mkdir(parents=True, exist_ok=True)
        self.shelf.cache.make_room(SEGMENT_BYTES if self.shelf.cache.limit > 4 * SEGMENT_BYTES else 0)
        self.stack = ExitStack()
        path = self.stack.enter_context(replacing(self.shelf.folder / f"{secrets.token_hex(8)}{SUFFIX}"))
        self.file = self.stack.enter_context(open(path, "wb"))  # noqa: SIM115 (the stack closes it)
        self.file.write(_MAGIC)
        self.rows: list[tuple] = []
        self.written = len(_MAGIC)

    def _finish(self) -> None:
        assert self.file is not None
        table = np.array(self.rows, _ROW).tobytes()
        tail = np.array([(len(self.rows), zlib.crc32(table), _MAGIC)], _TAIL).tobytes()
        self.file.write(table + tail)
        self.file = None
        self.stack.close()
        self.shelf.cache.make_room(0)

    def _give_up(self, error: Exception) -> None:
        self.trouble, self.file = str(error), None
        with contextlib.suppress(UserError, OSError, _GivenUp):
            self.stack.__exit__(_GivenUp, _GivenUp(), None)


class _GivenUp(Exception):
    """Tells `replacing` that the file is not to appear."""


def open_cache(wanted: bool = True) -> PixelCache | None:
    """The cache of this user: in $VITLING_CACHE, or beside the downloads; of $VITLING_CACHE_GB, where 0 is none."""
    text = os.environ.get("VITLING_CACHE_GB") or str(DEFAULT_GB)
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 <= limit < 1e9:
        raise UserError(f"VITLING_CACHE_GB={text[:40]} is not a size; give gigabytes, such as 20, or 0 for no cache.")
    if not wanted or not limit:
        return None
    folder = os.environ.get("VITLING_CACHE") or cache_folder() / "pixels"
    return PixelCache(Path(folder).expanduser(), int(limit * 2**30))
