"""Expectation: the band in which the accuracy will probably lie."""

import math
from dataclasses import dataclass

from vitling.planning.survey import Survey


@dataclass(frozen=True)
class Band:
    """The accuracy to expect, as shares, and what that rests on."""

    low: float
    high: float
    reason: str


def expect(survey: Survey) -> Band:
    """Where the accuracy will probably lie: above what needs no learning, below what the best rows gained over that."""
    neighbour, per_class = survey.neighbour_accuracy, survey.images["train"] / len(survey.class_counts)
    assert neighbour is not None, "nothing is expected of a brief survey"
    left = 0.25 if per_class >= 500 else 0.4 if per_class >= 50 else 0.6
    tested = survey.images.get("test") or survey.images.get("val") or survey.images["train"] / 10
    low, high = max(neighbour - 0.05, 1 / len(survey.class_counts)), 1 - (1 - neighbour) * left
    low, high = (
        share + sign * 1.96 * math.sqrt(share * (1 - share) / tested) for share, sign in ((low, -1), (high, 1))
    )
    reason = (
        f"a nearest-neighbour vote on thumbnails gets {100 * neighbour:.0f} % without learning anything, and with {per_class:.0f} "
        f"images per class training leaves {100 * left:.0f} % of such errors or more; widened by what chance does with "
        f"{tested:.0f} images to test on"
    )
    return Band(max(low, 0.0), min(high, 1.0), reason)
