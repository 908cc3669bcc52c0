"""Two models on the same images: is the difference significant?"""

from dataclasses import dataclass

from vitling._deprecated import renamed_attribute
from vitling.errors import UserError
from vitling.evaluation.metrics import Evaluation

SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """Images on which only one of two models is correct. The others do not count."""

    only_first: int
    only_second: int
    p_value: float  # of the exact McNemar test

    @property
    def significant(self) -> bool:
        return self.p_value < SIGNIFICANCE_LEVEL

    certain = renamed_attribute("certain", "significant")


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
