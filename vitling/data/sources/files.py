"""What people bring themselves: a tree of class folders, a CSV or text list of paths, an `.npz` of arrays."""

import csv
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitling.data.sources.images import IMAGE_SUFFIXES, ArrayImages, FileImages, Images, file_size, read_array_header
from vitling.data.splits import name_some
from vitling.errors import UserError, first_line
from vitling.inputs.memory import total_memory

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
PATH_COLUMNS = ("path", "file", "filename", "image", "file_name", "filepath", "image_path")
LABEL_COLUMNS = ("label", "class", "target", "category", "class_name")


class Found(NamedTuple):
    """What a source holds, before anything was checked: class names, splits, and what a user should know."""

    class_names: list[str]
    splits: Mapping[str, Images]
    notes: list[str]


# --- a tree of folders ------------------------------------------------------------------------------------------------


class _File(NamedTuple):
    name: str  # relative to the root of the tree, with forward slashes
    size: int


def read_tree(root: Path) -> Found:
    """One folder per class, at the top or inside train / val / test. What lies deeper belongs to the class above."""
    notes: list[str] = []
    split_folders = _split_folders(root, notes)
    trees = {split: _class_folders(root, folder, notes) for split, folder in split_folders.items()}
    class_names = sorted({name for tree in trees.values() for name in tree})
    number = {name: i for i, name in enumerate(class_names)}
    splits = {}
    for split, tree in trees.items():
        files = [(file, number[name]) for name in sorted(tree) for file in tree[name]]
        splits[split] = FileImages(
            [f.name for f, _ in files], [c for _, c in files], root=root, sizes=[f.size for f, _ in files]
        )
    return Found(class_names, splits, notes)


def _split_folders(root: Path, notes: list[str]) -> dict[str, str]:
    """Split -> folder relative to root ('' when the tree has no splits)."""
    folders, _ = _scan(root)
    found: dict[str, str] = {}
    for folder in folders:
        split = SPLITS.get(folder.lower())
        # A class may be called "train" too: a folder of images is a class, a folder of folders is a split.
        if not split or not _scan(root / folder)[0]:
            continue
        if split in found:
            raise UserError(f"{root} has two folders for the {split} split, {found[split]} and {folder}; keep one")
        found[split] = folder
    if not found:
        if folders and all(folder.lower() in SPLITS for folder in folders):
            raise UserError(f"{root} has {', '.join(folders)} but no class folders inside; expected train/CLASS/IMAGE")
        return {"train": ""}
    if ignored := [folder for folder in folders if folder not in found.values()]:
        notes.append(f"{name_some(ignored, 'folder', 'folders')} beside the splits left out")
    return found


def _class_folders(root: Path, folder: str, notes: list[str]) -> dict[str, list[_File]]:
    classes, files = _scan(root / folder)
    loose = sum(_is_image(entry.name) for entry in files)
    where = root / folder
    if not classes:
        what = f"holds {loose} image{'s' * (loose > 1)} but no class folders" if loose else "is empty"
        if files and not loose:
            what = f"holds no images, only {len(files)} other files ({_kinds([entry.name for entry in files])})"
        raise UserError(f"{where} {what}; expected one folder per class, with its images inside")
    if loose:
        notes.append(f"{loose} images in {where} lie outside any class folder and were left out")
    others: list[str] = []
    tree = {name: sorted(_images_below(root, os.path.join(folder, name), others)) for name in classes}
    if not any(tree.values()):
        only = f", only {len(others)} other files ({_kinds(others)})" if others else ""
        raise UserError(
            f"no images in the class folders of {where}{only}; known are {' '.join(sorted(IMAGE_SUFFIXES))}"
        )
    if empty := [name for name in classes if not tree[name]]:
        raise UserError(
            f"{name_some(empty, 'class folder', 'class folders')} of {where} without images; fill or remove"
        )
    if others:
        notes.append(f"{len(others)} files in {where} are not images ({_kinds(others)}) and were left out")
    return tree


def _kinds(names: list[str]) -> str:
    """The suffixes of some files, for messages."""
    return ", ".join(sorted({os.path.splitext(name)[1].lower() or "no suffix" for name in names})[:5])


def _images_below(root: Path, folder: str, others: list[str], above: tuple[str, ...] = ()) -> Iterator[_File]:
    here = os.path.realpath(root / folder)
    if here in above:
        raise UserError(f"{root / folder} is a link to a folder that it lies in; remove it")
    folders, files = _scan(root / folder)
    for entry in files:
        if _is_image(entry.name):
            yield _File(os.path.join(folder, entry.name).replace(os.sep, "/"), file_size(entry.path))
        else:
            others.append(entry.name)
    for inner in folders:
        yield from _images_below(root, os.path.join(folder, inner), others, (*above, here))


def _scan(folder: Path) -> tuple[list[str], list[os.DirEntry]]:
    """(names of folders, files), without hidden ones and what macOS leaves in archives."""
    with os.scandir(folder) as entries:
        seen = [entry for entry in entries if not entry.name.startswith((".", "__MACOSX"))]
    return sorted(e.name for e in seen if e.is_dir()), [e for e in seen if not e.is_dir()]


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


# --- lists of paths and labels ----------------------------------------------------------------------------------------


class _Row(NamedTuple):
    path: str
    label: str
    split: str


def read_csv(path: Path, root: str | None) -> Found:
    """A table with a column of paths, one of labels and maybe one of splits. Labels are class names."""
    return _from_rows(path, root, lambda file, split: list(_csv_rows(file, split)))


def read_list(path: Path, root: str | None) -> Found:
    """Lines of `path label`. Numbers get the names of the images' folders, if each number has one folder."""
    return _from_rows(path, root, lambda file, split: list(_list_rows(file, split)))


def _from_rows(path: Path, root: str | None, rows_of: Callable[[Path, str], list[_Row]]) -> Found:
    files = _beside(path)
    rows = [row for split, file in files.items() for row in rows_of(file, split)]
    if not rows:
        raise UserError(f"{path} lists no images; expected one path and one label per line")
    notes = [f"the {split} split is {file}" for split, file in files.items() if file != path]
    labels = sorted({row.label for row in rows}, key=lambda x: (0, int(x), x) if _is_number(x) else (1, 0, x))
    number = {label: i for i, label in enumerate(labels)}
    folder = root or path.parent
    splits = {}
    for split in sorted({row.split for row in rows}, key=("train", "val", "test").index):
        chosen = [row for row in rows if row.split == split]
        splits[split] = FileImages([r.path for r in chosen], [number[r.label] for r in chosen], root=folder)
    return Found(_folder_names(rows, labels) or labels, splits, notes)


def _beside(path: Path) -> dict[str, Path]:
    """`x_train.txt` brings `x_test.txt` and `x_val.txt` from the same folder along, and the other way round."""
    match = re.fullmatch(rf"(|.*[_.-])({'|'.join(SPLITS)})", path.stem, re.IGNORECASE)
    if not match:
        return {"train": path}
    found = {SPLITS[match[2].lower()]: path}
    for word, split in SPLITS.items():
        for spelling in (word, word.capitalize(), word.upper()):
            other = path.with_name(match[1] + spelling + path.suffix)
            if other.is_file() and split not in found:
                found[split] = other
    return found


def _csv_rows(path: Path, split: str) -> Iterator[_Row]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        header = file.readline()
        file.seek(0)
        reader = csv.DictReader(file, delimiter=max(",;\t", key=header.count))
        columns = {(name or "").strip().lower(): name for name in reader.fieldnames or []}
        path_column = next((columns[c] for c in PATH_COLUMNS if c in columns), None)
        label_column = next((columns[c] for c in LABEL_COLUMNS if c in columns), None)
        if path_column is None or label_column is None:
            wanted = "path (or file, filename, image)" if path_column is None else "label (or class, target)"
            found = ", ".join(columns) or "none"
            raise UserError(f"{path} has no column {wanted}; its columns are: {found}. Name them in the first line")
        for row in reader:
            image, label = ((row[column] or "").strip() for column in (path_column, label_column))
            if not image or not label:
                raise UserError(f"{path} line {reader.line_num} has no {'label' if image else 'path'}; fill it in")
            given = (row[columns["split"]] or "").strip() if "split" in columns else split
            if given.lower() not in SPLITS:
                raise UserError(f"{path} line {reader.line_num}: split '{given}' is not one of {', '.join(SPLITS)}")
            yield _Row(image, label, SPLITS[given.lower()])


def _list_rows(path: Path, split: str) -> Iterator[_Row]:
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        parts = line.rsplit(maxsplit=1)  # the path itself may contain spaces
        if not parts:
            continue
        if len(parts) < 2:
            raise UserError(
                f"{path} line {number} is '{line.strip()}'; expected a path and a label, as in: cat/1.jpg 0"
            )
        yield _Row(parts[0].strip(), parts[1], split)


def _folder_names(rows: list[_Row], labels: list[str]) -> list[str] | None:
    """The images' folder for each number, when that is one-to-one; DomainNet's lists are made so."""
    folders: dict[str, set[str]] = {label: set() for label in labels}
    for row in rows:
        folders[row.label].add(os.path.basename(os.path.dirname(row.path)))
    names = [min(found) for found in folders.values()]
    one_to_one = all(len(found) == 1 for found in folders.values()) and len(set(names)) == len(names)
    return names if one_to_one and all(names) and all(map(_is_number, labels)) else None


def _is_number(label: str) -> bool:
    return label.isascii() and label.isdigit() and len(label) < 19


# --- arrays -----------------------------------------------------------------------------------------------------------


def read_npz(path: Path) -> Found:
    """MedMNIST's layout: {train,val,test}_images (N, H, W[, C]), {...}_labels (N,) or (N, 1), maybe class_names."""
    arrays = _load_arrays(path)
    splits: dict[str, ArrayImages] = {}
    for split in ("train", "val", "test"):
        images, labels = arrays.get(f"{split}_images"), arrays.get(f"{split}_labels")
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            missing = f"{split}_{'images' if images is None else 'labels'}"
            raise UserError(f"{path} has no array {missing}; its arrays are: {', '.join(arrays)}")
        _check_images(f"{path}: {split}_images", images)
        labels = _check_labels(f"{path}: {split}_labels", labels, len(images))
        splits[split] = ArrayImages(images, labels, f"{split}_images")
    if not splits:
        found = ", ".join(arrays) or "none"
        raise UserError(f"{path} has no train_images and train_labels; its arrays are: {found}. Rename them")
    if len({images.array.shape[-1] for images in splits.values()}) > 1:
        shapes = ", ".join(f"{split} {images.array.shape[1:]}" for split, images in splits.items())
        raise UserError(f"{path}: the splits have different channels ({shapes}); give every split the same channels")
    count, total = (
        max(int(images.labels.max(initial=-1)) for images in splits.values()) + 1,
        sum(map(len, splits.values())),
    )
    if count > max(total, len(arrays.get("class_names", ()))):
        raise UserError(
            f"{path}: the labels go up to {count - 1}, but there are only {total} images; number the classes from 0 without gaps"
        )
    names = arrays.get("class_names", np.arange(count)).astype(str).reshape(-1).tolist()
    if len(names) < count:
        raise UserError(f"{path}: class_names has {len(names)} names, but the labels go up to {count - 1}")
    return Found(names, splits, [])


ARRAYS = [f"{split}_{what}" for split in ("train", "val", "test") for what in ("images", "labels")] + ["class_names"]


def _load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays that we know, and empty ones in place of the others, whose names a message may want."""
    try:
        if not zipfile.is_zipfile(path):
            with open(path, "rb") as file:
                single = file.read(6) == b"\x93NUMPY"
            if single:
                raise UserError(f"{path} holds a single array; expected train_images and train_labels (np.savez)")
            raise UserError(f"{path} cannot be read as .npz (it is not an archive of arrays); save it with np.savez")
        _check_headers(path)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] if name in ARRAYS else np.empty(0) for name in archive.files}
    except UserError:
        raise
    except Exception as error:  # a damaged archive makes zipfile, zlib and NumPy raise many kinds
        raise UserError(f"{path} cannot be read as .npz ({first_line(error)[:-1]}); save it with np.savez") from error


def _check_headers(path: Path) -> None:
    """Refuse arrays that are larger than memory or than what follows their header, before any room is made for them."""
    needed = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name not in ARRAYS:
                continue
            with archive.open(member) as stream:
                shape, dtype = read_array_header(stream)
                held = member.file_size - stream.tell()
            if dtype.hasobject:  # unpickling runs whatever code an untrusted file holds
                raise UserError(
                    f"{path}: {name} is an array of Python objects, which is never unpickled; save numbers or "
                    "text (np.array(names, dtype=str)) instead"
                )
            size = math.prod(shape) * dtype.itemsize
            if min(shape, default=0) < 0 or size != held:
                raise UserError(
                    f"{path}: {name} announces {size:,} bytes, but {held:,} follow; save it again with np.savez"
                )
            needed += size
    if needed > total_memory():
        raise UserError(
            f"{path} holds {needed / 2**30:,.1f} GB, and this machine has {total_memory() / 2**30:,.1f} GB of memory; "
            "save the images as files, in a folder per class, which are streamed"
        )


def _check_images(what: str, images: np.ndarray) -> None:
    shape = images.shape
    if images.ndim not in (3, 4) or 0 in shape[1:]:
        raise UserError(f"{what} has the shape {shape}; expected (N, height, width) or (N, height, width, channels)")
    if images.ndim == 4 and shape[1] in (1, 3, 4) and shape[3] >= 16 and shape[2] >= 16:
        raise UserError(f"{what} has the shape {shape}, channels first; save it as images.transpose(0, 2, 3, 1)")
    if images.dtype not in (np.uint8, np.uint16):
        hint = "multiply by 255 and save as uint8" if images.dtype.kind == "f" else "save it as uint8 or uint16"
        raise UserError(f"{what} is {images.dtype}; uint8 and uint16 are allowed: {hint}")


def _check_labels(what: str, labels: np.ndarray, count: int) -> np.ndarray:
    if labels.shape not in ((count,), (count, 1)):
        several = "; one label per image is needed, not several" if labels.ndim == 2 and len(labels) == count else ""
        raise UserError(f"{what} has the shape {labels.shape}; expected ({count},) or ({count}, 1){several}")
    if labels.dtype.kind not in "iu":
        raise UserError(f"{what} is {labels.dtype}; integers from 0 are expected")
    for extreme in (labels.min(initial=0), labels.max(initial=0)):
        if not 0 <= extreme < 2**31:
            raise UserError(f"{what} holds {extreme}; integers from 0 are expected")
    return labels.reshape(-1)
