"""What people bring themselves, beside folders: a CSV or text list of paths, an `.npz` of arrays."""

import csv
import math
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from vitling.data.groups import as_groups, choose_column, unused_column
from vitling.data.sources.images import ArrayImages, FileImages, read_array_header
from vitling.data.sources.marks import (
    EMPTY_HINT,
    NAMES_COLUMNS,
    as_mark,
    as_targets,
    candidates,
    lists_of_names,
    marked_columns,
    no_labels,
    note_lists,
    note_others,
    split_names,
)
from vitling.data.sources.ordered import NUMBER, as_numbers, check_number_array
from vitling.data.sources.tree import SPLITS, Found, is_hidden, is_image
from vitling.errors import UserError, first_line
from vitling.validation.memory import total_memory

PATH_COLUMNS = ("path", "file", "filename", "image", "file_name", "filepath", "image_path")
ID_COLUMNS = ("image_id", "id", "image_name", "id_code", "img", "name")  # Kaggle's; often names without their extension
LABEL_COLUMNS = ("label", "class", "target", "category", "class_name")


# --- lists of paths and labels ----------------------------------------------------------------------------------------


class _Row(NamedTuple):
    path: str
    label: str
    split: str
    group: str | None = None
    labels: tuple[str, ...] = ()  # of several, in place of the one


class _Several(NamedTuple):
    """How a table says which labels an image has: a column of names, or columns of 0 and 1."""

    names: str | None
    marks: tuple[str, ...] = ()


def read_csv(path: Path, root: str | None, group: str = "", labels: str = "auto") -> Found:
    """A table with a column of paths, one of labels and maybe one of splits and one of groups. Labels are class names.

    Without a column of labels, two or more columns of 0 and 1 are several labels per image.
    """
    several = _find_several(path, group, labels)
    found = _from_rows(
        path,
        root,
        lambda file, split, notes: list(_csv_rows(file, split, notes, group, several, labels)),
        labels,
        several,
    )
    if labels == "auto" and not several:
        found.notes.extend(note_lists(path.name, found.class_names))
    return found._replace(grouped_by=group)


def read_list(path: Path, root: str | None, group: str = "", labels: str = "auto") -> Found:
    """Lines of `path label`. Numbers get the names of the images' folders, if each number has one folder. There are no groups."""
    return _from_rows(path, root, lambda file, split, notes: list(_list_rows(file, split)), labels)


def _from_rows(
    path: Path,
    root: str | None,
    rows_of: Callable[[Path, str, list[str]], list[_Row]],
    kind: str,
    several: _Several | None = None,
) -> Found:
    rows: list[_Row] = []
    notes: list[str] = []
    for split, file in _beside(path).items():
        try:
            rows += _locate(rows_of(file, split, notes), split, Path(root or path.parent), notes)
        except _NoColumn as error:
            if file == path:
                raise
            notes.append(f"{file} was left out: it has no column of {error.what}s")  # Kaggle's test.csv has no labels
            continue
        if file != path:
            notes.append(f"the {split} split is {file}")
    if not rows:
        raise UserError(f"{path} lists no images; expected one path and one label per line")
    _check_one_group(rows)
    if several:
        return _several_from_rows(rows, root or path.parent, several, notes)
    _note_repeats(rows, notes)
    labels = sorted({row.label for row in rows}, key=lambda x: (0, int(x), x) if _is_number(x) else (1, 0, x))
    number = dict.fromkeys(labels, 0) if kind == "numbers" else {label: i for i, label in enumerate(labels)}
    folder = root or path.parent
    splits = {}
    for split in sorted({row.split for row in rows}, key=("train", "val", "test").index):
        chosen = [row for row in rows if row.split == split]
        splits[split] = FileImages([r.path for r in chosen], [number[r.label] for r in chosen], root=folder)
        if kind == "numbers":
            splits[split].targets = as_numbers([row.label for row in chosen], [row.path for row in chosen], str(path))
        groups = [r.group for r in chosen if r.group is not None]
        if len(groups) == len(chosen):
            splits[split].groups = np.array(groups, dtype=str)
    if kind == "numbers":
        return Found(NUMBER, splits, notes, labels="numbers")
    return Found(_folder_names(rows, labels) or labels, splits, notes)


def _check_one_group(rows: list[_Row]) -> None:
    known: dict[str, str] = {}
    for row in rows:
        if row.group is not None and known.setdefault(row.path, row.group) != row.group:
            raise UserError(
                f"{row.path} is of two groups, {known[row.path]} and {row.group}; give each image one group"
            )


def _note_repeats(rows: list[_Row], notes: list[str]) -> None:
    """Say where rows of one image, such as those of two raters, may come to stand on both sides of a split."""
    listed = Counter(row.path for row in rows if row.split == "train" and row.group is None)
    if often := sum(count > 1 for count in listed.values()):
        notes.append(
            f"{often:,} of {len(listed):,} files of train stand in several rows, which may come to stand on both sides of a split, and the "
            "numbers are then too good: set group='regex:^(.+)$', or keep one row of each"
        )


def _several_from_rows(rows: list[_Row], folder: str | Path, several: _Several, notes: list[str]) -> Found:
    """The images of rows with several labels; an image may have a row for each of its labels."""
    joined: dict[tuple[str, str], _Row] = {}
    for row in rows:
        known = joined.get((row.split, row.path))
        joined[row.split, row.path] = row._replace(labels=known.labels + row.labels) if known else row
    if len(joined) < len(rows) and not several.names:
        twice = next(path for (_, path), row in joined.items() if sum(other.path == path for other in rows) > 1)
        raise UserError(f"{twice} is listed more than once; keep one line of each image")
    names = list(several.marks) or sorted({label for row in joined.values() for label in row.labels})
    splits = {}
    for split in sorted({split for split, _ in joined}, key=("train", "val", "test").index):
        chosen = [row for row in joined.values() if row.split == split]
        splits[split] = FileImages([row.path for row in chosen], [0] * len(chosen), root=folder)
        splits[split].targets = as_targets([row.labels for row in chosen], names)
        groups = [row.group for row in chosen if row.group is not None]
        if len(groups) == len(chosen):
            splits[split].groups = np.array(groups, dtype=str)
    return Found(names, splits, notes, labels="several", listed=not several.marks)


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


class _NoColumn(UserError):
    """A table without a column that is needed."""

    def __init__(self, what: str, message: str):
        super().__init__(message)
        self.what = what


def _open_table(file: IO[str]) -> tuple[csv.DictReader, dict[str, str]]:
    """The rows of a table, and its columns: as messages and other tables call them, and as they stand in it."""
    header = file.readline()
    file.seek(0)
    reader = csv.DictReader(file, delimiter=max(",;\t", key=header.count))
    return reader, {(name or "").strip().lower(): name for name in reader.fieldnames or []}


def _find_several(path: Path, group: str, labels: str) -> _Several | None:
    """How the table says which labels an image has; None where each has one."""
    if labels not in ("auto", "several"):
        return None
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader, columns = _open_table(file)
        image = next((columns[name] for name in (*PATH_COLUMNS, *ID_COLUMNS) if name in columns), None)
        names = next((columns[name] for name in (*LABEL_COLUMNS, *NAMES_COLUMNS) if name in columns), None)
        if image is None or (labels == "auto" and any(name in columns for name in LABEL_COLUMNS)):
            return None
        if labels == "several" and names is not None:
            return _Several(names)
        possible = candidates(columns.values(), [image, group])
        rows = [(reader.line_num, row) for row in reader]
    cells = {column: [row[column] for _, row in rows] for column in possible}
    marks = marked_columns(cells, lambda i: f"{path} line {rows[i][0]}") if rows else []
    if not marks and labels == "several":
        raise no_labels(str(path), columns.values())
    return _Several(None, tuple(marks)) if marks else None


def _csv_rows(
    path: Path, split: str, notes: list[str], group: str, several: _Several | None = None, kind: str = "auto"
) -> Iterator[_Row]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader, columns = _open_table(file)
        # A list of test images may lack the groups: nothing is divided there.
        grouped = group and (split == "train" or group.strip().lower() in columns)
        group_column = choose_column(group, list(columns.values()), str(path)) if grouped else None
        path_column, label_column = _choose_columns(path, columns, notes, group_column, several)
        if several and several.marks:
            possible = candidates(columns.values(), [path_column, group])
            notes += [note for note in note_others(path.name, several.marks, possible) if note not in notes]
        if not group:
            notes += [
                note
                for note in unused_column([c for c in columns.values() if c != label_column], path.name)
                if note not in notes
            ]
        for row in reader:
            image, label = ((row[column] or "").strip() for column in (path_column, label_column))
            if not image or not (label or several):
                line, what = reader.line_num, "label" if image else "path"
                lists = image and kind == "auto" and _holds_lists(path, label_column)
                raise UserError(f"{path} line {line} has no {what}; fill it in{EMPTY_HINT if lists else ''}")
            given = (row[columns["split"]] or "").strip() if "split" in columns else split
            if given.lower() not in SPLITS:
                raise UserError(f"{path} line {reader.line_num}: split '{given}' is not one of {', '.join(SPLITS)}")
            member = None if group_column is None else (row[group_column] or "").strip()
            if member == "":
                raise UserError(
                    f"{path} line {reader.line_num} has no {group_column}; fill it in, an image on its own with a name of its own"
                )
            own = _labels_of(row, several, f"{path} line {reader.line_num}") if several else ()
            yield _Row(image, label, SPLITS[given.lower()], member, own)


def _holds_lists(path: Path, column: str) -> bool:
    """Whether cells of a column look like lists of names."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader, _ = _open_table(file)
        return bool(lists_of_names(row[column] for row in reader))


def _labels_of(row: dict[str, str], several: _Several, where: str) -> tuple[str, ...]:
    """The labels that a row says its image has."""
    if several.names is not None:
        return split_names(row[several.names])
    marks = {column: as_mark(row[column]) for column in several.marks}
    if unclear := next((column for column, mark in marks.items() if mark is None), None):
        raise UserError(f"{where}: {unclear} is '{row[unclear]}'; 1 where an image has the label, else 0, is expected")
    return tuple(column for column, mark in marks.items() if mark)


def _choose_columns(
    path: Path,
    columns: dict[str, str],
    notes: list[str],
    group: str | None = None,
    several: _Several | None = None,
) -> tuple[str, str]:
    """The columns of paths and of labels, by their names; of two columns, the one that is no path is the label.

    Of several labels per image it is the column of names, or the first of 0 and 1; a table that lacks one of them has no labels.
    """
    grouping = [name for name, given in columns.items() if given == group]
    columns = {name: given for name, given in columns.items() if given != group}
    image = next((name for name in (*PATH_COLUMNS, *ID_COLUMNS) if name in columns), None)
    label = next((name for name in LABEL_COLUMNS if name in columns), None)
    others = [name for name in columns if name not in (image, "split", "")]
    if several:
        needed = [several.names] if several.names else several.marks
        there = all(column in columns.values() for column in needed)
        label = next(name for name in columns if columns[name] == needed[0]) if there else None
        others = []
    if label is None and not several and LABEL_COLUMNS[0] in grouping:
        raise UserError(
            f"group={group} is the column of labels of {path}; name the column of patients, slides or videos"
        )
    if image and label is None and len(others) == 1:
        label = others[0]
        notes.append(f"the labels of {path.name} are its column {columns[label]}")
    if image is None or label is None:
        wanted = "path (or file, filename, image, id)" if image is None else "label (or class, target)"
        raise _NoColumn(
            "path" if image is None else "label",
            f"{path} has no column {wanted}; its columns are: {', '.join(columns) or 'none'}. Name them in the first line",
        )
    return columns[image], columns[label]


def _locate(rows: list[_Row], split: str, root: Path, notes: list[str]) -> list[_Row]:
    """The rows with paths from the root, where they are names without extension or without their folder, as Kaggle has them."""
    if not rows or (root / rows[0].path).is_file():
        return rows
    for place in _folders_below(root, split):
        found = _Names(root / place)
        if found.match(rows[0].path):
            if place:
                notes.append(f"the images of {split} are in {root / place}")
            return [row._replace(path=os.path.join(place, found.match(row.path) or row.path)) for row in rows]
    return rows


def _folders_below(root: Path, split: str, depth: int = 2) -> list[str]:
    """'' and the folders below to some depth: first those that are called as the split, then images, then by name."""
    found = [""]
    for _ in range(depth):
        for above in list(found):
            with os.scandir(root / above) as entries:
                inner = [os.path.join(above, e.name) for e in entries if e.is_dir() and not is_hidden(e.name)]
            found += [folder for folder in inner if folder not in found]

    def rank(folder: str) -> tuple[bool, bool, int, str]:
        words = re.split(r"[-_./\\]", folder.lower())
        return split not in words, "images" not in words, folder.count(os.sep), folder

    return ["", *sorted(found[1:], key=rank)]


class _Names:
    """The images of folders by name, with and without their extension."""

    def __init__(self, root: Path):
        self.root = root
        self.listed: dict[str, dict[str, str]] = {}

    def match(self, given: str) -> str | None:
        """The path of an image that is called so."""
        folder, name = os.path.split(given)
        if folder not in self.listed:
            self.listed[folder] = self._list(folder)
        found = self.listed[folder].get(name)
        if found == "":
            raise UserError(
                f"several images in {self.root / folder} are called {name}, with different extensions; "
                "write the extensions into the list, or remove all but one"
            )
        return found and os.path.join(folder, found)

    def _list(self, folder: str) -> dict[str, str]:
        if os.path.isabs(folder) or not (self.root / folder).is_dir():
            return {}
        with os.scandir(self.root / folder) as entries:
            names = [entry.name for entry in entries if is_image(entry.name)]
        stems: dict[str, str] = {}
        for name in names:
            stem = os.path.splitext(name)[0]
            stems[stem] = "" if stem in stems else name
        return {**stems, **{name: name for name in names}}


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


def read_npz(path: Path, group: str = "", labels: str = "auto", *, labelled: bool = True) -> Found:
    """MedMNIST's layout: {train,val,test}_images (N, H, W[, C]), {...}_labels (N,) or (N, 1), maybe class_names.

    Labels of 0 and 1 of the shape (N, K) are several labels per image, of which class_names are the names.
    {...}_groups, or {...}_GROUP where `group` names others, say which images belong together. Where labels are not needed they may be
    missing, and the only array of images may be called `images`.
    """
    arrays = _load_arrays(path, group or GROUPS)
    if not labelled:
        arrays = _without_missing_labels(arrays)
    several = labelled and _has_several(arrays, labels)
    splits: dict[str, ArrayImages] = {}
    for split in ("train", "val", "test"):
        images, given = arrays.get(f"{split}_images"), arrays.get(f"{split}_labels")
        if images is None and given is None:
            continue
        if images is None or given is None:
            missing = f"{split}_{'images' if images is None else 'labels'}"
            raise UserError(f"{path} has no array {missing}; its arrays are: {', '.join(arrays)}")
        _check_images(f"{path}: {split}_images", images)
        if labelled and labels == "numbers":
            splits[split] = ArrayImages(images, np.zeros(len(images), np.int64), f"{split}_images")
            splits[split].targets = check_number_array(f"{path}: {split}_labels", given, len(images))
        elif several:
            splits[split] = ArrayImages(images, np.zeros(len(images), np.int64), f"{split}_images")
            splits[split].targets = _check_several(f"{path}: {split}_labels", given, len(images))
        else:
            numbers = _check_labels(f"{path}: {split}_labels", given, len(images))
            splits[split] = ArrayImages(images, numbers, f"{split}_images")
        members = arrays.get(f"{split}_{group or GROUPS}")
        if members is not None:
            splits[split].groups = _check_groups(f"{path}: {split}_{group or GROUPS}", members, len(images))
    grouped = [split for split, images in splits.items() if images.groups is not None]
    if "train" in splits and "train" not in grouped and (group or grouped):
        raise UserError(
            f"group={group or GROUPS}: {path} has no array train_{group or GROUPS}; its arrays are: {', '.join(arrays)}"
        )
    if not splits:
        found = ", ".join(arrays) or "none"
        raise UserError(f"{path} has no train_images and train_labels; its arrays are: {found}. Rename them")
    if len({images.array.shape[-1] for images in splits.values()}) > 1:
        shapes = ", ".join(f"{split} {images.array.shape[1:]}" for split, images in splits.items())
        raise UserError(f"{path}: the splits have different channels ({shapes}); give every split the same channels")
    grouped_by = (group or GROUPS) if grouped else ""
    others = [name.removeprefix("train_") for name in arrays if name.startswith("train_")]
    notes = [] if grouped else unused_column(others, path.name, "train_")
    given = arrays.get("class_names")
    names = [] if given is None else _check_names(f"{path}: class_names", given)
    if labelled and labels == "numbers":
        return Found(NUMBER, splits, notes, grouped_by, labels="numbers")
    if several:
        names = _label_names(path, splits, names)
        return Found(names, splits, notes, grouped_by, labels="several")
    count, total = (
        max(int(images.labels.max(initial=-1)) for images in splits.values()) + 1,
        sum(map(len, splits.values())),
    )
    if count > max(total, len(names)):
        raise UserError(
            f"{path}: the labels go up to {count - 1}, but there are only {total} images; number the classes from 0 without gaps"
        )
    if given is not None and len(names) < count:
        raise UserError(f"{path}: class_names has {len(names)} names, but the labels go up to {count - 1}")
    return Found(names if given is not None else list(map(str, range(count))), splits, notes, grouped_by)


def _has_several(arrays: dict[str, np.ndarray], labels: str) -> bool:
    """Whether the labels are several per image: as they are asked for, or as nothing else has the shape (N, K) and holds 0 and 1 alone."""
    if labels != "auto":
        return labels == "several"
    given = [arrays[name] for split in ("train", "val", "test") if (name := f"{split}_labels") in arrays]
    return bool(given) and all(x.ndim == 2 and x.shape[1] > 1 and _are_marks(x) for x in given)


def _are_marks(values: np.ndarray) -> bool:
    return values.dtype.kind in "biuf" and bool(np.isin(values, (0, 1)).all())


def _check_several(what: str, given: np.ndarray, count: int) -> np.ndarray:
    if given.ndim != 2 or len(given) != count or given.shape[1] < 2:
        raise UserError(
            f"{what} has the shape {given.shape}; labels=several expects 0 and 1 of the shape ({count}, labels)"
        )
    if not _are_marks(given):
        raise UserError(
            f"{what} holds other values than 0 and 1; labels=several expects 1 where an image has a label, else 0"
        )
    return given.astype(np.float32)


def _label_names(path: Path, splits: dict[str, ArrayImages], names: list[str]) -> list[str]:
    """The names of several labels per image, or their numbers."""
    counts = {images.targets.shape[1] for images in splits.values() if images.targets is not None}
    if len(counts) > 1:
        raise UserError(f"{path}: the splits have different numbers of labels ({', '.join(map(str, sorted(counts)))})")
    count = counts.pop()
    if names and len(names) != count:
        raise UserError(f"{path}: class_names has {len(names)} names, but there are {count} labels")
    return names or list(map(str, range(count)))


GROUPS = "groups"  # arrays of this name are taken for what they say; of any other name, by group=
ARRAYS = [f"{split}_{what}" for split in ("train", "val", "test") for what in ("images", "labels")]
ARRAYS += ["class_names", "images"]


def _without_missing_labels(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All labels, or zeros in place of all: a part of them would be measured with as if it were the whole."""
    if "images" in arrays and "train_images" not in arrays:
        arrays = {**arrays, "train_images": arrays["images"]}
    splits = [split for split in ("train", "val", "test") if f"{split}_images" in arrays]
    labels = [arrays.get(f"{split}_labels") for split in splits]
    # Several labels per image and numbers measure nothing here: neighbours are judged by classes.
    if all(
        found is not None and found.dtype.kind != "f" and (found.ndim != 2 or found.shape[1] == 1) for found in labels
    ):
        return arrays
    arrays = {name: array for name, array in arrays.items() if name.endswith("images")}
    return {**arrays, **{f"{split}_labels": np.zeros(len(arrays[f"{split}_images"]), np.int64) for split in splits}}


def _load_arrays(path: Path, group: str) -> dict[str, np.ndarray]:
    """The arrays that we know, and empty ones in place of the others, whose names a message may want."""
    known = ARRAYS + [f"{split}_{group}" for split in ("train", "val", "test")]
    try:
        if not zipfile.is_zipfile(path):
            with open(path, "rb") as file:
                single = file.read(6) == b"\x93NUMPY"
            if single:
                raise UserError(f"{path} holds a single array; expected train_images and train_labels (np.savez)")
            raise UserError(f"{path} cannot be read as .npz (it is not an archive of arrays); save it with np.savez")
        _check_headers(path, known)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] if name in known else np.empty(0) for name in archive.files}
    except UserError:
        raise
    except Exception as error:  # a damaged archive makes zipfile, zlib and NumPy raise many kinds
        raise UserError(f"{path} cannot be read as .npz ({first_line(error)[:-1]}); save it with np.savez") from error


def _check_headers(path: Path, known: list[str]) -> None:
    """Refuse arrays that are larger than memory or than what follows their header, before any room is made for them."""
    needed = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name not in known:
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


def _check_names(what: str, names: np.ndarray) -> list[str]:
    if names.ndim == 0 or names.dtype.kind not in "USTbiuf":
        raise UserError(f"{what} has the shape {names.shape} and is {names.dtype}; expected a list of names")
    found = names.reshape(-1).tolist()
    try:
        return [name.decode() if isinstance(name, bytes) else str(name).encode().decode() for name in found]
    except UnicodeError:
        raise UserError(f"{what} is not in UTF-8; save it as text (np.array(names, dtype=str))") from None


def _check_groups(what: str, groups: np.ndarray, count: int) -> np.ndarray:
    if groups.shape not in ((count,), (count, 1)) or groups.dtype.kind not in "USTbiu":
        raise UserError(
            f"{what} has the shape {groups.shape} and is {groups.dtype}; expected a number or word per image, ({count},)"
        )
    return as_groups(groups.reshape(-1), what)


def _check_labels(what: str, labels: np.ndarray, count: int) -> np.ndarray:
    if labels.shape not in ((count,), (count, 1)):
        several = "; one label per image is needed, not several" if labels.ndim == 2 and len(labels) == count else ""
        raise UserError(f"{what} has the shape {labels.shape}; expected ({count},) or ({count}, 1){several}")
    if labels.dtype.kind not in "iu":
        hint = "; for numbers to be predicted set labels=numbers" if labels.dtype.kind == "f" else ""
        raise UserError(f"{what} is {labels.dtype}; integers from 0 are expected{hint}")
    for extreme in (labels.min(initial=0), labels.max(initial=0)):
        if not 0 <= extreme < 2**31:
            raise UserError(f"{what} holds {extreme}; integers from 0 are expected")
    return labels.reshape(-1)
