"""Expectation: the band in which the accuracy will probably lie.

A linear classifier on fixed features (probe.py) is correct for some share of the images; training multiplies the odds of that, by the more
the more images it shows. The constants are fitted to runs of five datasets and of parts of them: benchmarks/expectation.py (docs/planning.md).
"""

import math
from dataclasses import dataclass

from vitling.evaluation.intervals import wilson_interval
from vitling.planning.survey import Survey

# log(odds of being correct) = the probe's + intercept + slope x log10(images shown) +- spread
CONSTANTS = (-2.658, 0.695, 0.489)
LEAST_ERROR = 0.005  # that logarithms are taken of
LEARNABLE = 0.05  # of what lies above chance: a probe that gets less may mean labels that cannot be learnt


@dataclass(frozen=True)
class Band:
    """The accuracy to expect, as shares, and what that rests on."""

    low: float
    high: float
    reason: str


def expect(survey: Survey, images_shown: float) -> Band:
    """Where the accuracy on the split that is tested on will probably lie, after so many images (epochs times images)."""
    assert survey.probe_accuracy is not None, "nothing is expected of a brief survey"
    tested = survey.images.get("test") or survey.images.get("val") or survey.images["train"] / 10
    return band(survey.probe_accuracy, len(survey.class_counts), images_shown, tested)


def band(
    probe: float,
    classes: int,
    images_shown: float,
    tested: float,
    constants: tuple[float, float, float] = CONSTANTS,
) -> Band:
    intercept, slope, spread = constants
    middle = intercept + slope * math.log10(max(images_shown, 1))
    low, high = (share_of(log_odds(probe) + middle + sign * spread) for sign in (-1, 1))
    chance = 1 / classes
    learnable = probe > chance + LEARNABLE * (1 - chance)
    low = max(low, chance) if learnable else chance
    high = max(low, high)
    # As many test images as there are give no more than this of a network that is correct for such a share of all images.
    low, high = (wilson_interval(share * tested, tested)[end] for end, share in enumerate((low, high)))
    reason = (
        f"a linear classifier on fixed features of thumbnails is correct for {100 * probe:.0f} %; the odds of that became "
        f"{math.exp(middle - spread):.2g} to {math.exp(middle + spread):.2g} times as good by training on {images_shown:,.0f} images, in tries "
        f"on other data; widened by what chance does with {tested:.0f} images to test on"
    )
    return Band(low, high, reason)


def log_odds(share: float) -> float:
    return math.log((share + LEAST_ERROR) / (1 - share + LEAST_ERROR))


def share_of(odds: float) -> float:
    """The share whose `log_odds` these are, as far as there is one."""
    ratio = math.exp(odds)
    return min(max((ratio * (1 + LEAST_ERROR) - LEAST_ERROR) / (1 + ratio), 0.0), 1.0)
