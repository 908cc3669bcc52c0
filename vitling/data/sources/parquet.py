"""Parquet tables with encoded images: a column of bytes as pandas writes it, or of {bytes, path} as Hugging Face's datasets do.

A table is read by row groups, the few last ones are kept. Whoever reads in the order of the rows reads each group once.
"""

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitling.data.groups import as_groups, choose_column, unused_column
from vitling.data.sources.files import LABEL_COLUMNS
from vitling.data.sources.images import BadImage, EncodedImages, Images, evenly, identify
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
    split_names,
)
from vitling.data.sources.ordered import NUMBER, as_numbers
from vitling.data.sources.shards import is_number, short_names
from vitling.data.sources.tree import SPLITS, Found
from vitling.data.targets import Kind
from vitling.errors import UserError, first_line

IMAGE_COLUMNS = ("image", "img", "picture", "image_bytes", "bytes", "content", "data", "jpg", "png")
KEPT_GROUPS = 4
LARGE_GROUP = 2**26  # bytes: what is read to reach one image


class _Columns(NamedTuple):
    image: str
    label: str
    split: str | None
    names: list[str] | None  # of the classes, where the table's own description has them
    group: str | None = None
    several: tuple[str, ...] = ()  # of several labels per image: the column of names, or those of 0 and 1


class ParquetImages(EncodedImages):
    """The images of one split: row by row, those of the first file first."""

    def __init__(self, paths: Sequence[Path], column: str, places: np.ndarray, labels: Any, names: Sequence[str]):
        """`places` has a row per image: the number of its file, of its row group, and of its row in that."""
        super().__init__(labels, names)
        self.paths, self.column = [os.fspath(path) for path in paths], column
        self.places = np.asarray(places, np.int64).reshape(-1, 3)
        self._begin()

    def _begin(self) -> None:
        self.row_groups: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("row_groups", "lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def _group(self, file: int, group: int) -> Any:
        with self.lock:  # threads that want the same group wait for one of them
            if (file, group) not in self.row_groups:
                table = _open(self.paths[file]).read_row_group(group, columns=[self.column])
                self.row_groups[file, group] = table.column(0)
                while len(self.row_groups) > KEPT_GROUPS:
                    self.row_groups.popitem(last=False)
            self.row_groups.move_to_end((file, group))
            return self.row_groups[file, group]

    def encoded(self, i: int) -> bytes:
        """The bytes of image i."""
        file, group, row = self.places[self.rows[i]].tolist()
        try:
            cell = self._group(file, group)[row].as_py()
        except (OSError, ValueError) as error:  # pyarrow's are among them
            raise BadImage(self.names[i], first_line(error).rstrip(".")) from error
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if not data:
            elsewhere = isinstance(cell, dict) and cell.get("path")
            reason = f"only a path is stored, {cell['path']}, and no bytes" if elsewhere else "the cell is empty"
            raise BadImage(self.names[i], reason)
        return data

    def source(self, i: int) -> BytesIO:
        return BytesIO(self.encoded(i))

    def identities(self) -> list[bytes]:
        whole = [identify(path, self.column) for path in self.paths]
        return [
            whole[file] and whole[file][:8] + group.to_bytes(4, "little") + row.to_bytes(4, "little")
            for file, group, row in self.places[self.rows].tolist()
        ]

    def content(self) -> bytes:
        # Hashing every image would read all; the packed size of each group changes with what is in it.
        digest = hashlib.sha256(repr([_group_sizes(path) for path in self.paths]).encode())
        for i in evenly(len(self), 16):
            try:
                digest.update(self.encoded(i))
            except BadImage as error:
                digest.update(error.reason.encode())
        return digest.digest()


def read_parquet(splits: dict[str, list[Path]], group: str = "", labels: str = "auto") -> Found:
    """The tables of each split; a column `split` divides them further, and the column `group` says which images belong together."""
    paths = [path for of_split in splits.values() for path in of_split]
    columns = _find_columns(paths[0], group, labels)
    listed = _open(paths[0]).schema_arrow.names
    notes: list[str] = [] if group else unused_column([name for name in listed if name != columns.label], paths[0].name)
    if group:
        columns = columns._replace(group=choose_column(group, listed, str(paths[0])))
    rows: dict[str, list[tuple[int, int, int, Any, Any]]] = {}
    for number, path in enumerate(paths):
        given = next(split for split, of_split in splits.items() if path in of_split)
        for row in _rows(path, columns, given):
            rows.setdefault(row[0], []).append((number, *row[1:]))
    if not rows:
        raise UserError(f"{paths[0]} has no rows; write the table again")
    if columns.several:
        class_names, targets_of = _several(paths[0], columns, [row[3] for found in rows.values() for row in found])
        label_number = len  # of a tuple of cells: no image is without
    elif labels == "numbers":
        class_names, label_number = NUMBER, lambda cell: -1 if cell is None else 0
    else:
        class_names, label_number = _classes(paths[0], columns, [row[3] for found in rows.values() for row in found])
    shown, sizes = short_names(paths), [_group_sizes(path) for path in paths]
    starts = [np.cumsum([0, *(rows for rows, _ in of_file)]).tolist() for of_file in sizes]
    found: dict[str, Images] = {}
    for split in sorted(rows, key=("train", "val", "test").index):
        numbers = [label_number(row[3]) for row in rows[split]]
        if all(label < 0 for label in numbers):
            notes.append(f"split '{split}' has no labels and was left out")
            continue
        if missing := sum(label < 0 for label in numbers):
            hint = EMPTY_HINT if labels == "auto" and lists_of_names(row[3] for row in rows[split]) else ""
            raise UserError(
                f"{paths[rows[split][0][0]]}: {missing} images of split '{split}' have no label in {columns.label}{hint}"
            )
        places = np.array([row[:3] for row in rows[split]], np.int64)
        names = [f"{shown[paths[file]]}[{starts[file][group] + row}]" for file, group, row in places.tolist()]
        found[split] = ParquetImages(paths, columns.image, places, numbers, names)
        if labels == "numbers":
            found[split].targets = as_numbers([row[3] for row in rows[split]], names, f"{paths[0]}: {columns.label}")
        if columns.several:
            found[split].labels[:] = 0
            found[split].targets = targets_of([row[3] for row in rows[split]])
        if columns.group:
            found[split].groups = as_groups([row[4] for row in rows[split]], f"{paths[0]}: {columns.group}")
    if labels == "auto" and not columns.several:
        notes += note_lists(paths[0].name, class_names)
    large = max(size for of_file in sizes for _, size in of_file)
    if large > LARGE_GROUP:
        notes.append(
            f"a row group takes {large / 2**20:,.0f} MB, which are read to reach one image where they are not kept; "
            "smaller ones are faster: write the table with row_group_size=1000"
        )
    if columns.several:
        return Found(class_names, found, notes, group, labels="several", listed=len(columns.several) == 1)
    kind: Kind = "numbers" if labels == "numbers" else "classes"
    return Found(class_names, found, notes, group, labels=kind)


def _open(path: str | os.PathLike) -> Any:
    try:
        import pyarrow.parquet  # of the extra parquet
    except ImportError:
        raise UserError(f'{path} needs the package pyarrow; install it with: pip install "vitling[parquet]"') from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(
            f"{path} is not a whole parquet file ({first_line(error)[:-1]}); copy or download it again"
        ) from error


def _group_sizes(path: str | os.PathLike) -> list[tuple[int, int]]:
    """Rows and bytes of each row group."""
    metadata = _open(path).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in groups]


def _rows(path: Path, columns: _Columns, given: str) -> list[tuple[str, int, int, Any, Any]]:
    """Split, row group, row in it, label and group of every row. The images are not read."""
    file = _open(path)
    wanted = [c for c in (*(columns.several or (columns.label,)), columns.split, columns.group) if c]
    if missing := [column for column in (columns.image, *wanted) if column not in file.schema_arrow.names]:
        raise UserError(f"{path} has no column {missing[0]}, which the first table has; its columns are: {_list(file)}")
    rows = []
    for group in range(file.metadata.num_row_groups):
        try:
            table = file.read_row_group(group, columns=wanted)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} is corrupted in row group {group} ({first_line(error)[:-1]}); copy or download it again"
            ) from error
        labels = table.column(columns.label).to_pylist()
        if columns.several:
            labels = list(zip(*(table.column(column).to_pylist() for column in columns.several), strict=True))
        splits = table.column(columns.split).to_pylist() if columns.split else [given] * len(labels)
        members = table.column(columns.group).to_pylist() if columns.group else [None] * len(labels)
        for row, (label, split, member) in enumerate(zip(labels, splits, members, strict=True)):
            if str(split).lower() not in SPLITS:
                raise UserError(f"{path}: split '{split}' of row {row} is not one of {', '.join(SPLITS)}")
            rows.append((SPLITS[str(split).lower()], group, row, label, member))
    return rows


def _several(
    path: Path, columns: _Columns, cells: list[tuple]
) -> tuple[list[str], Callable[[list[tuple]], np.ndarray]]:
    """The names of several labels per image, and the function that makes targets of cells."""
    if len(columns.several) == 1:
        names = sorted({name for (cell,) in cells for name in split_names(cell)})
        return names, lambda rows: as_targets([split_names(cell) for (cell,) in rows], names)
    for k, column in enumerate(columns.several):
        if unclear := next((row[k] for row in cells if as_mark(row[k]) is None), None):
            raise UserError(
                f"{path}: {column} holds {unclear!r:.40}; 1 where an image has the label, else 0, is expected"
            )
    names = list(columns.several)
    return names, lambda rows: np.array([[as_mark(cell) for cell in row] for row in rows], np.float32)


def _find_several(path: Path, image: str, group: str, labels: str) -> tuple[str, ...]:
    """The columns that say which labels an image has; none where each has one."""
    file = _open(path)
    columns = {name.lower(): name for name in file.schema_arrow.names}
    names = next((columns[name] for name in (*LABEL_COLUMNS, *NAMES_COLUMNS) if name in columns), None)
    if names is not None and labels == "several":
        return (names,)
    import pyarrow.types as kinds  # of the extra parquet

    possible = []
    for name in candidates(file.schema_arrow.names, [image, group]):
        kind = file.schema_arrow.field(name).type
        if kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind):
            possible.append(name)
    table = file.read(columns=possible)
    marks = marked_columns(
        {name: table.column(name).to_pylist() for name in possible}, lambda i: f"{path} row {i} (counted from 0)"
    )
    if not marks and labels == "several":
        raise no_labels(str(path), file.schema_arrow.names)
    return tuple(marks)


def _find_columns(path: Path, group: str = "", labels: str = "auto") -> _Columns:
    file = _open(path)  # which explains where there is no pyarrow
    import pyarrow.types as kinds  # of the extra parquet

    schema = file.schema_arrow
    names = {name.lower(): name for name in schema.names}

    def has_images(name: str) -> bool:
        kind = schema.field(name).type
        if kinds.is_struct(kind):
            return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
        return kinds.is_binary(kind) or kinds.is_large_binary(kind)

    images = [name for name in schema.names if has_images(name)]
    image = next((names[name] for name in IMAGE_COLUMNS if names.get(name) in images), None)
    image = image or (images[0] if len(images) == 1 else None)
    if image is None:
        what = f"several columns of bytes ({', '.join(images)})" if images else "no column of image bytes"
        raise UserError(
            f"{path} has {what}; its columns are: {_list(file)}. Call one image, with the bytes of an encoded image in each cell"
        )
    features = _features(schema)
    classes = [name for name, entry in features.items() if entry.get("_type") == "ClassLabel" and name in schema.names]
    usual = [names[name] for name in (*LABEL_COLUMNS, "labels", "fine_label", "cls") if name in names]
    label = next((name for name in usual if name in classes), classes[0] if len(classes) == 1 else None)
    label = label or next(iter(usual), None)
    asked = labels == "several" or (labels == "auto" and label is None)
    if asked and (several := _find_several(path, image, group, labels)):
        return _Columns(image, several[0], names.get("split"), None, several=several)
    if label is None:
        raise UserError(f"{path} has no column label (or class, target); its columns are: {_list(file)}. Rename one")
    class_names = features.get(label, {}).get("names") if label in classes else None
    return _Columns(image, label, names.get("split"), class_names if isinstance(class_names, list) else None)


def _list(file: Any) -> str:
    return ", ".join(file.schema_arrow.names) or "none"


def _features(schema: Any) -> dict[str, dict]:
    """What Hugging Face's datasets writes about the columns; nothing in tables of others."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: entry for name, entry in features.items() if isinstance(entry, dict)}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}


def _classes(path: Path, columns: _Columns, labels: list[Any]) -> tuple[list[str], Any]:
    """Class names, and the function that numbers a cell; -1 stands for no label."""
    if wrong := [x for x in labels if not isinstance(x, int | str | bytes | None)]:
        hint = "; for numbers to be predicted set labels=numbers" if isinstance(wrong[0], float) else ""
        raise UserError(f"{path}: {columns.label} holds {wrong[0]!r:.40}; class names or integers are expected{hint}")
    if columns.names is not None:
        names = list(map(str, columns.names))
        numbers = [label for label in labels if isinstance(label, int)]
        if max(numbers, default=0) >= len(names):
            raise UserError(
                f"{path}: {columns.label} goes up to {max(numbers)}, but only {len(names)} classes are named"
            )
        return names, lambda label: label if isinstance(label, int) and label >= 0 else -1
    texts = {label: _text(label) for label in set(labels)}
    different = sorted({t for t in texts.values() if t}, key=lambda t: (0, int(t), t) if is_number(t) else (1, 0, t))
    number = {text: i for i, text in enumerate(different)}
    return different, lambda label: number.get(texts[label], -1)


def _text(label: Any) -> str:
    """A label in words; empty for none, which is -1 too where labels are numbers."""
    text = label.decode("utf-8", "replace") if isinstance(label, bytes) else "" if label is None else str(label)
    return "" if text == "-1" else text.strip()
