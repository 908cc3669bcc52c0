"""Several labels of an image as people write them: columns of 0 and 1, or a cell of names."""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from vitling.data.groups import COLUMNS
from vitling.data.splits import name_some
from vitling.errors import UserError

NAMES_COLUMNS = ("labels", "tags", "classes", "finding labels", "finding_labels")  # beside those of one label
SEPARATORS = "; or |"
YES, NO = ("1", "1.0", "true"), ("0", "0.0", "false")


def split_names(cell: object) -> tuple[str, ...]:
    """The names in a cell, or in a list of them; an empty one has none."""
    parts = cell if isinstance(cell, list | tuple) else re.split("[;|]", "" if cell is None else str(cell))
    return tuple(dict.fromkeys(name for part in parts if (name := str(part).strip())))


def as_mark(cell: object) -> bool | None:
    """Whether a cell of 0 and 1 says that an image has a label; None of any other cell."""
    text = str(cell).strip().lower()
    return True if text in YES else False if text in NO else None


def candidates(columns: Iterable[str], others: Sequence[str | None]) -> list[str]:
    """The columns that may be labels: those that are not known to be something else, such as a patient's number."""
    known = {"split", *COLUMNS, *(other.strip().lower() for other in others if other)}
    return [column for column in columns if column and column.strip() and column.strip().lower() not in known]


def marked_columns(cells: Mapping[str, Iterable[object]]) -> list[str]:
    """The columns of 0 and 1; none where fewer than two are."""
    found = [column for column, values in cells.items() if all(as_mark(value) is not None for value in values)]
    return found if len(found) > 1 else []


def note_others(where: str, found: Sequence[str], possible: Sequence[str]) -> list[str]:
    """A note where columns hold more than 0 and 1."""
    others = [column for column in possible if column not in found]
    if not others:
        return []
    return [f"other values than 0 and 1, and so no labels: {name_some(others, 'column', 'columns')} of {where}"]


def as_targets(has: Sequence[Iterable[str]], names: Sequence[str]) -> np.ndarray:
    """(images, labels), 1 where an image has a label."""
    place = {name: k for k, name in enumerate(names)}
    targets = np.zeros((len(has), len(names)), np.float32)
    for i, own in enumerate(has):
        for name in own:
            targets[i, place[name]] = 1
    return targets


def no_labels(where: str, columns: Iterable[str]) -> UserError:
    return UserError(
        f"labels=several: {where} has neither a column label of names (separated by {SEPARATORS}) nor two or more columns of 0 and 1; its columns "
        f"are: {', '.join(column for column in columns if column) or 'none'}"
    )
