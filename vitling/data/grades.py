"""Grades: classes in an order, whose names say how far they are apart."""

import re
from collections.abc import Sequence

import numpy as np

from vitling.errors import UserError

NUMBER = re.compile(r"(?<![\d.])[-+]?\d+(?:\.\d+)?(?![\d.])")
EXAMPLES = "0, 1, 2 or grade_0, grade_1, grade_2"


def find_grades(names: Sequence[str]) -> np.ndarray | None:
    """The number of each class, where each name is a number or contains one, they differ, and there are three at least."""
    found = [_number(name) for name in names]
    numbers = [number for number in found if number is not None]
    if len(names) < 3 or len(numbers) < len(names) or len(set(numbers)) < len(numbers):
        return None
    if len({NUMBER.sub("", name).strip() for name in names}) > 1:  # 3_cats and 2_dogs are things, not grades
        return None
    return np.array(numbers)


def read_grades(names: Sequence[str], source: str) -> np.ndarray:
    """The same; refused where the names are no grades."""
    grades = find_grades(names)
    if grades is None:
        shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        raise UserError(
            f"labels=grades needs three or more classes named by different numbers, such as {EXAMPLES}, and {source} has {shown}; rename them, "
            "or set labels=classes."
        )
    return grades


def _number(name: str) -> float | None:
    """The only number in a name. A hyphen between a word and a number joins them, and is no sign."""
    text = name.strip()
    found = NUMBER.findall(re.sub(r"(?<=[^\W\d])-(?=\d)", "_", text))
    return float(found[0]) if len(found) == 1 else None
