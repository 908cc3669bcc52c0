"""Labels in an order: classes that are grades, and numbers."""

from collections.abc import Sequence

import numpy as np

from vitling.data.grades import read_grades
from vitling.data.sources.images import Images
from vitling.errors import UserError

NUMBER = ["number"]  # what the labels are called where they are numbers, until there are bins
SHOWN_AS_NUMBERS = 30  # classes called by whole numbers that may be numbers: grades are fewer
FEWEST_IMAGES = 10


def order_grades(data: str, names: list[str], splits: dict[str, Images]) -> list[str]:
    """The names of the grades from low to high, by which the labels are numbered again: grade_10 comes after grade_2."""
    order = np.argsort(read_grades(names, data))
    place = np.argsort(order)
    for images in splits.values():
        images.labels = place[images.labels]
    return [names[i] for i in order]


def check_numbers(data: str, names: list[str], splits: dict[str, Images], notes: list[str]) -> None:
    """There are images to learn from, and what they say differs."""
    numbers = splits["train"].targets
    assert numbers is not None, "images of numbers have targets"
    if len(numbers) < FEWEST_IMAGES:
        raise UserError(f"{data} has {len(numbers)} training images; labels=numbers needs {FEWEST_IMAGES} at least")
    if numbers.min() == numbers.max():
        raise UserError(f"{data}: all training images have the number {numbers[0]:g}, so there is nothing to learn")


def read_number(text: object) -> float | None:
    """A finite number; None of anything else."""
    try:
        number = float(text)  # type: ignore[arg-type]  # what is no number raises
    except (TypeError, ValueError):
        return None
    return number if abs(number) < np.finfo(np.float32).max else None  # which nan is not, either


def as_numbers(labels: Sequence[object], names: Sequence[str], source: str) -> np.ndarray:
    """Labels of a table as numbers; the first that is none is named with its image."""
    numbers = [read_number(label) for label in labels]
    if None in numbers:
        i = numbers.index(None)
        raise UserError(
            f"{source}: the label of {names[i]} is {labels[i]!r:.40}, and labels=numbers expects a finite number for each image"
        )
    return np.array(numbers, dtype=np.float32)


def check_number_array(what: str, given: np.ndarray, count: int) -> np.ndarray:
    """Labels of an array as numbers."""
    if given.shape not in ((count,), (count, 1)) or given.dtype.kind not in "biuf":
        raise UserError(
            f"{what} has the shape {given.shape} and is {given.dtype}; labels=numbers expects a number per image, ({count},) or ({count}, 1)"
        )
    with np.errstate(over="ignore"):
        numbers = given.reshape(-1).astype(np.float32)
    if not np.isfinite(numbers).all():
        raise UserError(
            f"{what} holds NaN or infinity at place {int(np.argmin(np.isfinite(numbers)))}; leave such images out"
        )
    return numbers


def numbers_hint(names: Sequence[str]) -> str:
    """What to do about classes that are called by numbers, where these are too many to be classes, or no whole ones."""
    numbers = [read_number(name) for name in names]
    if None in numbers or (len(names) < SHOWN_AS_NUMBERS and all(name.lstrip("-").isdigit() for name in names)):
        return ""
    return ". If these labels are numbers to be predicted, set labels=numbers"
