"""One folder per class, at the top or inside train / val / test: on a disk, or in an archive."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitling.data.sources.images import IMAGE_SUFFIXES, UNKNOWN_SIZE, FileImages, Images, evenly, file_size
from vitling.data.sources.marks import as_targets
from vitling.data.splits import name_some
from vitling.data.targets import Kind
from vitling.errors import UserError

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
DEEPEST = 100  # folders in folders: nobody keeps images deeper, and a stranger's archive may nest a million


class Found(NamedTuple):
    """What a source holds, before anything was checked: class names, splits, and what a user should know."""

    class_names: list[str]
    splits: Mapping[str, Images]
    notes: list[str]
    grouped_by: str = ""  # the column or array that the groups of its images are from
    labelled: bool = True  # False: its labels, where there are some, are to measure with
    with_test: bool = False  # images of a test split are among those to learn from
    labels: Kind = "classes"  # what its labels are; of others than classes, the images have targets
    listed: bool = False  # each image names the labels that it has, so that one that is never named is on no image


class Tree(ABC):
    """Folders and files below a root. Paths in it are relative, with forward slashes; '' is the root itself."""

    @abstractmethod
    def scan(self, folder: str) -> tuple[list[str], list[str]]:
        """The names of the folders in a folder, sorted, and of its files; hidden ones are left out."""

    @abstractmethod
    def images(self, names: Sequence[str], labels: Sequence[int]) -> Images:
        """The images at some paths."""

    @abstractmethod
    def show(self, folder: str) -> str:
        """How messages call a folder."""

    def real(self, folder: str) -> str:
        """What a folder is, whatever links lead to it."""
        return folder

    def linked(self, names: Sequence[str]) -> list[object] | None:
        """What each of these files is, whatever links lead to it; None where there are no links."""
        return None

    def content(self, name: str) -> bytes:
        """A hash of a file's bytes."""
        raise UserError(f"{self.show(name)} is not read here")


class DiskTree(Tree):
    """Folders on a disk. Where more than `most` images are found, only so many of them are asked for their size."""

    def __init__(self, root: Path, most: int | None = None):
        self.root, self.most = root, most

    def scan(self, folder: str) -> tuple[list[str], list[str]]:
        with os.scandir(self.root / folder) as entries:
            seen = [entry for entry in entries if not is_hidden(entry.name)]
        return sorted(e.name for e in seen if e.is_dir()), [e.name for e in seen if not e.is_dir()]

    def images(self, names: Sequence[str], labels: Sequence[int]) -> Images:
        sizes = np.full(len(names), UNKNOWN_SIZE, np.int64)
        for i in evenly(len(names), self.most or len(names)):
            sizes[i] = file_size(os.path.join(self.root, names[i]))
        return FileImages(names, labels, root=self.root, sizes=sizes)

    def show(self, folder: str) -> str:
        return str(self.root / folder)

    def real(self, folder: str) -> str:
        return os.path.realpath(self.root / folder)

    def linked(self, names: Sequence[str]) -> list[object] | None:
        if self.most and len(names) > self.most:
            return None  # a look at very many files does not ask each of them

        def look(name: str) -> object:
            try:
                found = os.stat(os.path.join(self.root, name))
            except OSError:  # said where it is read
                return name
            return (found.st_dev, found.st_ino) if found.st_ino else name

        return [look(name) for name in names]

    def content(self, name: str) -> bytes:
        with open(self.root / name, "rb") as file:
            return hashlib.sha256(file.read()).digest()


def read_tree(tree: Tree | Path, labels: str = "auto") -> Found:
    """The images of every class folder. What lies deeper belongs to the class above."""
    tree = DiskTree(tree) if isinstance(tree, Path) else tree
    notes: list[str] = []
    trees = {split: _class_folders(tree, folder, notes) for split, folder in _split_folders(tree, notes).items()}
    class_names = sorted({name for classes in trees.values() for name in classes})
    number = {name: i for i, name in enumerate(class_names)}
    if labels == "several":
        return _several_of(tree, trees, class_names, notes)
    splits = {}
    for split, classes in trees.items():
        files = [(file, number[name]) for name in sorted(classes) for file in classes[name]]
        splits[split] = tree.images([file for file, _ in files], [label for _, label in files])
        notes += _linked_note(tree, split, classes) if labels == "auto" else []
    return Found(class_names, splits, notes)


def _several_of(
    tree: Tree, trees: Mapping[str, Mapping[str, list[str]]], names: Sequence[str], notes: list[str]
) -> Found:
    """Each image once, with the labels of all folders that it stands in: by links to one file, or as copies of one name and content."""
    splits, several = {}, 0
    for split, classes in trees.items():
        files = [(file, name) for name in sorted(classes) for file in classes[name]]
        same = _identities(tree, [file for file, _ in files])
        first: dict[object, str] = {}
        has: dict[str, list[str]] = {}
        for (file, name), identity in zip(files, same, strict=True):
            has.setdefault(first.setdefault(identity, file), []).append(name)
        splits[split] = tree.images(list(has), [0] * len(has))
        splits[split].targets = as_targets(list(has.values()), names)
        several += sum(len(set(own)) > 1 for own in has.values())
    notes.append(f"{several:,} images stand in several folders, and have their labels")
    return Found(list(names), splits, notes, labels="several", listed=True)


def _identities(tree: Tree, files: Sequence[str]) -> list[object]:
    """What tells images apart: the file, and of those with one name in several folders the content."""
    found = tree.linked(files) or list(files)
    by_name: dict[str, list[int]] = {}
    for i, file in enumerate(files):
        by_name.setdefault(os.path.basename(file), []).append(i)
    for name, places in by_name.items():
        if len({found[i] for i in places}) > 1:
            for i in places:
                found[i] = (name, tree.content(files[i]))
    return found


def _linked_note(tree: Tree, split: str, classes: Mapping[str, list[str]]) -> list[str]:
    """A note where links to one file stand in several class folders: it is trained with several classes, one at a time."""
    files = [(file, name) for name, own in classes.items() for file in own]
    identities = tree.linked([file for file, _ in files])
    if identities is None or len(set(identities)) == len(files):
        return []
    folders: dict[object, set[str]] = {}
    for (_, name), identity in zip(files, identities, strict=True):
        folders.setdefault(identity, set()).add(name)
    count = sum(len(own) > 1 for own in folders.values())
    if not count:
        return []
    return [
        f"{count:,} files of {split} stand in several class folders as links; if these images have several labels, set labels=several"
    ]


def read_flat(tree: Tree, folder: str) -> Images:
    """Every image below a folder, in the order of their names and without labels."""
    found = sorted(_images_below(tree, folder, []))
    if not found:
        raise UserError(f"{tree.show(folder)} holds no images; known are {' '.join(sorted(IMAGE_SUFFIXES))}")
    return tree.images(found, [0] * len(found))


def is_hidden(name: str) -> bool:
    """Hidden files, and what macOS leaves in archives."""
    return name.startswith((".", "__MACOSX"))


def is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def _split_folders(tree: Tree, notes: list[str]) -> dict[str, str]:
    """Split -> folder ('' when the tree has no splits)."""
    folders, _ = tree.scan("")
    found: dict[str, str] = {}
    for folder in folders:
        split = SPLITS.get(folder.lower())
        # A class may be called "train" too: a folder of images is a class, a folder of folders is a split.
        if not split or not tree.scan(folder)[0]:
            continue
        if split in found:
            raise UserError(
                f"{tree.show('')} has two folders for the {split} split, {found[split]} and {folder}; keep one"
            )
        found[split] = folder
    if not found:
        if folders and all(folder.lower() in SPLITS for folder in folders):
            raise UserError(
                f"{tree.show('')} has {', '.join(folders)} but no class folders inside; expected train/CLASS/IMAGE"
            )
        return {"train": ""}
    if ignored := [folder for folder in folders if folder not in found.values()]:
        notes.append(f"{name_some(ignored, 'folder', 'folders')} beside the splits left out")
    return found


def _class_folders(tree: Tree, folder: str, notes: list[str]) -> dict[str, list[str]]:
    classes, files = tree.scan(folder)
    loose = sum(map(is_image, files))
    where = tree.show(folder)
    if not classes:
        what = f"holds {loose} image{'s' * (loose > 1)} but no class folders" if loose else "is empty"
        if files and not loose:
            what = f"holds no images, only {len(files)} other files ({_kinds(files)})"
        raise UserError(f"{where} {what}; expected one folder per class, with its images inside")
    if loose:
        notes.append(f"{loose} images in {where} lie outside any class folder and were left out")
    others: list[str] = []
    found = {name: sorted(_images_below(tree, _join(folder, name), others)) for name in classes}
    if not any(found.values()):
        only = f", only {len(others)} other files ({_kinds(others)})" if others else ""
        raise UserError(
            f"no images in the class folders of {where}{only}; known are {' '.join(sorted(IMAGE_SUFFIXES))}"
        )
    if empty := [name for name in classes if not found[name]]:
        raise UserError(
            f"{name_some(empty, 'class folder', 'class folders')} of {where} without images; fill or remove"
        )
    if others:
        notes.append(f"{len(others)} files in {where} are not images ({_kinds(others)}) and were left out")
    return found


def _kinds(names: list[str]) -> str:
    """The suffixes of some files, for messages."""
    return ", ".join(sorted({os.path.splitext(name)[1].lower() or "no suffix" for name in names})[:5])


def _images_below(tree: Tree, folder: str, others: list[str], above: tuple[str, ...] = ()) -> Iterator[str]:
    here = tree.real(folder)
    if here in above:
        raise UserError(f"{tree.show(folder)} is a link to a folder that it lies in; remove it")
    if len(above) >= DEEPEST:
        raise UserError(f"{tree.show(above[0])} holds folders in folders, more than {DEEPEST} deep; move the images up")
    folders, files = tree.scan(folder)
    for name in files:
        if is_image(name):
            yield _join(folder, name)
        else:
            others.append(name)
    for inner in folders:
        yield from _images_below(tree, _join(folder, inner), others, (*above, here))


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
