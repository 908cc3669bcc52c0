"""Several labels of an image as people write them: columns of 0 and 1, or a cell of names."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from vitling.data.groups import COLUMNS
from vitling.data.splits import name_some
from vitling.errors import UserError

NAMES_COLUMNS = ("labels", "tags", "classes", "finding labels", "finding_labels")  # beside those of one label
SEPARATORS = "; or |"
YES, NO = ("1", "1.0", "true"), ("0", "0.0", "false")
MARKED_SHARE = 0.9  # of a column's cells are 0 or 1: the others are mistakes, and the column is one of labels
EMPTY_HINT = "; where the cells are lists of names, set labels=several, with which an empty cell is no label"


def split_names(cell: object) -> tuple[str, ...]:
    """The names in a cell, or in a list of them; an empty one has none."""
    parts = cell if isinstance(cell, list | tuple) else re.split("[;|]", "" if cell is None else str(cell))
    return tuple(dict.fromkeys(name for part in parts if (name := str(part).strip())))


def lists_of_names(cells: Iterable[object]) -> list[str]:
    """The different cells that are lists, as far as such lists show: `a;b` where a or b stands alone or in another cell, too."""
    names = {cell: split_names(cell) for cell in cells if isinstance(cell, str)}
    often = Counter(name for own in names.values() for name in own)
    return sorted(
        cell for cell, own in names.items() if re.search("[;|]", cell) and any(often[name] > 1 for name in own)
    )


def note_lists(where: str, class_names: Sequence[str]) -> list[str]:
    """A note where cells that look like lists of names are taken for classes."""
    found = lists_of_names(class_names)
    if not found:
        return []
    return [
        f"{len(found):,} of the {len(class_names):,} classes of {where} look like lists of labels, such as '{found[0]:.60}'; if these images have several "
        "labels, set labels=several"
    ]


def lists_hint(data: str, names: Sequence[str]) -> str:
    """What to do about classes of a table that look like lists of labels."""
    found = lists_of_names(names) if data.lower().endswith((".csv", ".tsv", ".parquet")) else []
    return f". If '{found[0]:.60}' is a list of labels, set labels=several" if found else ""


def as_mark(cell: object) -> bool | None:
    """Whether a cell of 0 and 1 says that an image has a label; None of any other cell."""
    text = str(cell).strip().lower()
    return True if text in YES else False if text in NO else None


def candidates(columns: Iterable[str], others: Sequence[str | None]) -> list[str]:
    """The columns that may be labels: those that are not known to be something else, such as a patient's number."""
    known = {"split", *COLUMNS, *(other.strip().lower() for other in others if other)}
    return [column for column in columns if column and column.strip() and column.strip().lower() not in known]


def marked_columns(cells: Mapping[str, Sequence[object]], place: Callable[[int], str]) -> list[str]:
    """The columns of 0 and 1; none where fewer than two are.

    One that holds almost nothing else is refused with what is wrong in it, because it would be no label without a word. `place` is what a row is
    called.
    """
    wrong = {column: [i for i, cell in enumerate(own) if as_mark(cell) is None] for column, own in cells.items()}
    marked = [column for column, own in cells.items() if len(own) - len(wrong[column]) >= MARKED_SHARE * len(own)]
    if len(marked) < 2:
        return []
    for column in marked:
        if wrong[column]:
            first, more = wrong[column][0], len(wrong[column]) - 1
            cell = cells[column][first]
            also = f" ({more:,} more cell{'s are' if more > 1 else ' is'} wrong there)" if more else ""
            raise UserError(
                f"{place(first)}: {column} is '{'' if cell is None else cell!s:.40}'{also}, and all else in this column is 0 or 1; write 1 where an image "
                "has the label, else 0, or remove the column if it is no label"
            )
    return marked


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
