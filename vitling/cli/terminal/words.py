"""Words of the command line: how a budget, a size, seeds or fractions are written, and how durations and shares are shown."""

import re
from typing import Annotated

from vitling.data.targets import Target
from vitling.errors import UserError
from vitling.training.duration import parse_duration
from vitling.validation.values import Range, Side, check, show

MOST_SEEDS = 10_000


def parse_budget(text: str | None, flag: str = "--budget") -> float | None:
    """Seconds in --budget, or in another flag, where it was given."""
    return parse_duration(text, what=flag) if text else None


def parse_seeds(text: str) -> int | list[int]:
    """How many seeds ("5"), or which ("0,3,7")."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,19}", part) for part in parts) or len(parts) > MOST_SEEDS:
        raise UserError(f"--seeds '{show(text)}' is not a number of seeds; write 5, or 0,3,7 for exactly these.")
    if len(parts) > 1:
        return [int(part) for part in parts]
    check(int(text), Annotated[int, Range(1, MOST_SEEDS)], "--seeds ")
    return int(text)


def parse_fractions(text: str) -> list[float]:
    """Parts of the data in "0.1,0.5,1"."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{0,20}\.?[0-9]{1,20}", part) for part in parts):
        raise UserError(f"--fractions '{show(text)}' are not fractions of the data; write 0.1,0.5,1.")
    return [float(part) for part in parts]


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Height and width in "64" or "64x96"."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        raise UserError(f"--size '{show(text)}' is not an image size; write 64, or 64x96 for height x width.")
    size = int(parts[0]), int(parts[-1])
    check(size, tuple[Side, Side], "--size ")
    return size


def duration(seconds: float) -> str:
    """A time as people say it: 43 s, 12 min 5 s, 3 h 20 min."""
    seconds = round(seconds)
    if seconds < 100:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def count_classes(facts: dict) -> str:
    """The classes of a training, where it learns from labels."""
    if not facts["classes"]:
        return "without labels"
    return Target(facts.get("labels", "classes"), ("",) * facts["classes"]).in_words


def unlabelled_result(record: dict) -> str:
    """A validation without labels: the loss on held-out images, and what their neighbours say where that was measured."""
    neighbours = record.get("val_neighbours_top1")
    return f"held-out loss {record['val_loss']:.3f}" + (
        "" if neighbours is None else f", neighbours {percent(neighbours)}"
    )
