"""95 % confidence intervals: of a proportion, of the difference of two (independent or paired), and of a mean over seeds."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

Z95 = 1.959964  # of the normal distribution, two-sided


def wilson_interval(correct: float, images: float) -> tuple[float, float]:
    """Of a proportion; unlike the normal interval it stays inside 0..1 and holds for few images."""
    z, p = Z95, correct / images
    centre = p + z * z / (2 * images)
    spread = z * (p * (1 - p) / images + z * z / (4 * images**2)) ** 0.5
    scale = 1 + z * z / images
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def newcombe_interval(correct: int, images: int, other_correct: int, other_images: int) -> tuple[float, float]:
    """Of the difference of two independent proportions, from their two Wilson intervals."""
    a, b = correct / images, other_correct / other_images
    (low_a, high_a), (low_b, high_b) = wilson_interval(correct, images), wilson_interval(other_correct, other_images)
    below = ((a - low_a) ** 2 + (high_b - b) ** 2) ** 0.5
    above = ((high_a - a) ** 2 + (b - low_b) ** 2) ** 0.5
    return a - b - below, a - b + above


def paired_interval(only_first: int, only_second: int, images: int) -> tuple[float, float]:
    """Of the difference of two accuracies on the same images, from those on which only one of the two models is correct.

    Bonett and Price 2012: the Wald interval after one image is added to each of these two counts. It is symmetric, and unlike the plain
    Wald interval it keeps its level with few images, and has a width where the models never differ.
    """
    first, second = (only_first + 1) / (images + 2), (only_second + 1) / (images + 2)
    centre = first - second
    ci95 = Z95 * math.sqrt((first + second - centre**2) / (images + 2))
    return max(-1.0, centre - ci95), min(1.0, centre + ci95)


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """A mean and its ci95, the half-width by Student's t; nan where there are too few values."""
    from scipy.special import stdtrit  # takes long to import

    if len(values) < 2:
        return (values[0] if values else math.nan), math.nan
    return mean(values), float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
