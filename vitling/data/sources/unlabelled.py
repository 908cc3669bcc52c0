"""Images to learn from without labels: `unlabelled:DATA`, where DATA is any other data, a folder without class folders, or a list of paths.

Labels that are there stay, to measure with, where they could be trained with: two classes or more, two images of each. The test split is left
alone; `unlabelled+test:DATA` takes it as well.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vitling.data.sources.files import read_npz
from vitling.data.sources.images import FileImages, Images, Layout
from vitling.data.sources.tree import SPLITS, DiskTree, Found, is_image, read_flat
from vitling.errors import UserError

PREFIX = "unlabelled:"
WITH_TEST = "unlabelled+test:"
NO_LABELS = ["image"]  # the only class of images without labels


class JoinedImages(Images):
    """The images of several splits, one after another."""

    def __init__(self, parts: Sequence[Images]):
        super().__init__(
            np.concatenate([images.labels for images in parts]), [name for images in parts for name in images.names]
        )
        grouped = [images.groups for images in parts if images.groups is not None]
        self.groups = np.concatenate(grouped) if len(grouped) == len(parts) else None
        self.parts = list(parts)
        self.starts = np.cumsum([0, *map(len, parts)])

    def _find(self, i: int) -> tuple[Images, int]:
        row = int(self.rows[i])
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        images = self.parts[part]
        images.alpha = self.alpha
        return images, row - int(self.starts[part])

    def read(self, i: int, at_least: int | None = None) -> np.ndarray:
        images, row = self._find(i)
        return images.read(row, at_least)

    def layout(self, i: int) -> Layout:
        images, row = self._find(i)
        return images.layout(row)

    def size(self, i: int) -> tuple[int, int]:
        images, row = self._find(i)
        return images.size(row)

    def content(self) -> bytes:
        digest = hashlib.sha256(self.rows.tobytes())
        for images in self.parts:
            digest.update(images.content())
        return digest.digest()


def is_unlabelled(data: str) -> bool:
    return data.startswith((PREFIX, WITH_TEST))


def split_prefix(data: str) -> tuple[str, str]:
    """The prefix, empty where there is none, and the data behind it."""
    prefix = next((known for known in (PREFIX, WITH_TEST) if data.startswith(known)), "")
    return prefix, data.removeprefix(prefix)


def once_unlabelled(data: str) -> str:
    """The data behind the prefix, which is labelled or `read_plain` reads it."""
    prefix, given = split_prefix(data)
    if is_unlabelled(given):
        raise UserError(f"{data} says twice that it is without labels; write {prefix}DATA.")
    if not given:
        raise UserError(f"{prefix} names no images; write {prefix}DATA, such as a folder.")
    return given


def without_test(data: str, found: Found) -> Found:
    """What was found behind the prefix, as images to learn from: without the test split, or with it among the others where that is said."""
    prefix, given = split_prefix(data)
    splits = dict(found.splits)
    if "train" not in splits:
        raise UserError(f"{given} has no train split, only {', '.join(splits)}; rename one of them to train")
    if with_test := prefix == WITH_TEST and "test" in splits:
        splits["train"] = JoinedImages([splits["train"], splits["test"]])
    splits.pop("test", None)
    return found._replace(splits=splits, labelled=False, with_test=with_test)


def read_plain(given: str, root: str | None, group: str) -> tuple[str, Found] | None:
    """What has no labels to be found: a folder without class folders, an .npz of images, a list of paths. None of anything else."""
    path = Path(given).expanduser()
    if flat := _flat_folders(path):
        tree = DiskTree(path)
        return path.resolve().name, _as_found({split: read_flat(tree, name) for split, name in flat.items()})
    if path.is_file() and path.suffix.lower() == ".npz":
        return path.resolve().stem, read_npz(path, group, labelled=False)
    if lines := _listed_paths(path):
        images = FileImages(lines, np.zeros(len(lines), np.int64), root=root or path.parent)
        return path.resolve().stem, _as_found({"train": images})
    return None


def is_plain(given: str) -> bool:
    """Whether `read_plain` reads it, which looks for no labels."""
    path = Path(given).expanduser()
    return bool(_flat_folders(path) or (path.is_file() and path.suffix.lower() == ".npz") or _listed_paths(path))


def lacks_labels(given: str) -> bool:
    """Whether it is a folder without class folders, or a list of nothing but paths."""
    path = Path(given).expanduser()
    flat = _flat_folders(path)
    if flat == {"train": ""}:  # images beside class folders are left out with a note, where labels are looked for
        return not DiskTree(path).scan("")[0]
    return bool(flat or _listed_paths(path))


def _flat_folders(path: Path) -> dict[str, str]:
    """The folders of images without class folders, by split; none where there are class folders alone."""
    if not path.is_dir():
        return {}
    tree = DiskTree(path)
    folders, files = tree.scan("")
    inside = {SPLITS[name.lower()]: name for name in folders if name.lower() in SPLITS}
    if inside and not any(tree.scan(name)[0] for name in inside.values()):  # train/ and test/ full of images
        return inside
    return {"train": ""} if any(map(is_image, files)) else {}


def _listed_paths(path: Path) -> list[str]:
    """The paths of a list that holds one per line and nothing else; none where a line says more."""
    if not path.is_file() or path.suffix.lower() not in (".txt", ".lst"):
        return []
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        return []  # said where lists with labels are read
    return lines if all(map(is_image, lines)) else []


def _as_found(splits: Mapping[str, Images]) -> Found:
    return Found(NO_LABELS, splits, [])


def usable_labels(names: Sequence[str], splits: Mapping[str, Images]) -> bool:
    """Whether the labels could be trained with, so that neighbours can be measured by them."""
    if len(names) < 2 or len(set(names)) < len(names):
        return False
    counts = {split: np.bincount(images.labels, minlength=len(names)) for split, images in splits.items()}
    return bool((counts["train"] >= 2).all()) and all(len(count) == len(names) for count in counts.values())


def without_labels(splits: Mapping[str, Images]) -> dict[str, Images]:
    """The same images, all of one class."""
    for images in splits.values():
        images.labels, images.targets = np.zeros(len(images), np.int64), None
    return dict(splits)
