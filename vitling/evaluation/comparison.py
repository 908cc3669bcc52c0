"""Two models on the same images: is one of them better, or was it luck?"""

from dataclasses import dataclass

from vitling.errors import UserError
from vitling.evaluation.metrics import Evaluation

CERTAIN = 0.05


@dataclass(frozen=True)
class Comparison:
    """Images on which only one of two models is correct. Where both are, or neither is, nothing can be told."""

    only_first: int
    only_second: int
    p_value: float  # of the exact McNemar test

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
    pairs = list(zip(first.correct, second.correct, strict=True))
    only_first, only_second = pairs.count(("1", "0")), pairs.count(("0", "1"))
    return Comparison(only_first, only_second, mcnemar(only_first, only_second))


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of the exact McNemar test, from the images on which only one model is correct."""
    from scipy.stats import binomtest  # takes seconds to import

    images = only_first + only_second
    return float(binomtest(only_first, images).pvalue) if images else 1.0
