"""Expectation: the band in which the accuracy will probably lie.

A linear classifier on fixed features (probe.py) makes some errors; how many of them training removes depends on how many images it
shows. The constants are fitted to ten runs on five datasets (docs/results.md); benchmarks/expectation.py tries them on more.
"""

import math
from dataclasses import dataclass

from vitling.evaluation.intervals import wilson_interval
from vitling.planning.survey import Survey

# log(error / the probe's error) = intercept + slope x log10(images shown) +- spread
CONSTANTS = (1.51, -0.377, 0.3)
LEAST_ERROR = 0.01  # that logarithms are taken of
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
    errors = ((1 - probe + LEAST_ERROR) * math.exp(middle + sign * spread) - LEAST_ERROR for sign in (-1, 1))
    least, most = (max(error, 0.0) for error in errors)
    chance = 1 / classes
    learnable = probe > chance + LEARNABLE * (1 - chance)
    low = max(1 - most, chance) if learnable else chance
    high = min(max(1 - least, low), 1.0)
    # As many test images as there are give no more than this of a network that is correct for such a share of all images.
    low, high = (wilson_interval(share * tested, tested)[end] for end, share in enumerate((low, high)))
    reason = (
        f"a linear classifier on fixed features of thumbnails is correct for {100 * probe:.0f} %; of its errors, training on "
        f"{images_shown:,.0f} images left {100 * math.exp(middle - spread):.0f} to {100 * math.exp(middle + spread):.0f} % in tries "
        f"on other data; widened by what chance does with {tested:.0f} images to test on"
    )
    return Band(low, high, reason)
