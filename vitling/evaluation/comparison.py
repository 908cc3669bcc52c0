"""Two models on the same images: is one of them better, or was it luck?"""

from dataclasses import dataclass
from math import comb

from vitling.errors import UserError
from vitling.evaluation.metrics import Evaluation

CERTAIN = 0.05


@dataclass(frozen=True)
class Comparison:
    """Images on which only one of two models is right. Where both are right, or both wrong, nothing can be told."""

    only_first: int
    only_second: int
    p_value: float  # McNemar's exact test: how often luck alone divides these images as unevenly

    @property
    def certain(self) -> bool:
        return self.p_value < CERTAIN


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Compare two evaluations of the same split, image by image."""
    if (first.data, first.split, first.images) != (second.data, second.split, second.images):
        raise UserError(
            f"{first.data} ({first.split}, {first.images:,} images) and {second.data} ({second.split}, {second.images:,} images) "
            "are not the same images; compare evaluations of one split."
        )
    pairs = list(zip(first.right, second.right, strict=True))
    only_first, only_second = pairs.count(("1", "0")), pairs.count(("0", "1"))
    return Comparison(only_first, only_second, mcnemar(only_first, only_second))


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided exact p-value: as many heads and tails, or more uneven ones, from a fair coin."""
    thrown = only_first + only_second
    tail = sum(comb(thrown, heads) for heads in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**thrown)
