"""What more images would bring: accuracy on parts of the data, and where that leads.

Errors fall with the number of images as a power of it (Hestness et al. 2017, "Deep learning scaling is predictable, empirically"). The
power is fitted to the parts; its interval comes from drawing each accuracy anew as often as its images allow, and from leaving out
the smallest part, where the law need not hold yet.
"""

from dataclasses import dataclass

import numpy as np

PARTS = (0.125, 0.25, 0.5)  # of the training images, beside all of them
DRAWS = 2000
LEAST_ERROR = 0.5  # of one held-out image: no part is taken to be without errors


@dataclass(frozen=True)
class Part:
    """One training on a part of the images."""

    images: int
    accuracy: float
    tested: int  # held-out images


@dataclass(frozen=True)
class LearningCurve:
    """Accuracy by the number of training images, and what twice as many are expected to bring."""

    parts: list[Part]
    gain: float  # of accuracy, for twice the images
    interval: tuple[float, float]  # 95 %
    seconds: float = 0.0

    @property
    def sentence(self) -> str:
        half = 100 * (self.interval[1] - self.interval[0]) / 2
        return f"Twice the images would bring about {100 * self.gain:.0f} ± {max(half, 0.5):.0f} points."


def fit_learning_curve(parts: list[Part], *, seconds: float = 0.0, seed: int = 0) -> LearningCurve:
    """The curve through trainings on at least three different numbers of images."""
    parts = sorted(parts, key=lambda part: part.images)
    rng = np.random.default_rng(seed)
    sizes = np.array([part.images for part in parts], float)
    tested = np.array([part.tested for part in parts])
    accuracy = np.array([part.accuracy for part in parts])
    drawn = rng.binomial(tested, accuracy, (DRAWS, len(parts))) / tested
    keep = sizes > sizes.min() if len(set(sizes)) > 3 else np.ones(len(sizes), bool)
    gains = np.concatenate([_gains(sizes, drawn, tested), _gains(sizes[keep], drawn[:, keep], tested[keep])])
    gain = _gains(sizes, accuracy[None], tested)[0]
    low, high = np.percentile(gains, [2.5, 97.5])
    return LearningCurve(parts, float(gain), (float(min(low, gain)), float(max(high, gain))), seconds)


def _gains(sizes: np.ndarray, accuracy: np.ndarray, tested: np.ndarray) -> np.ndarray:
    """Of each row of accuracies: error now less error at twice the images, by a straight line through logarithms."""
    errors = np.maximum(1 - accuracy, LEAST_ERROR / tested)
    x = np.log(sizes) - np.log(sizes).mean()
    y = np.log(errors)
    slope = np.minimum((y * x).sum(axis=1) / (x * x).sum(), 0.0)  # more images never make it worse
    now = np.exp(y.mean(axis=1) + slope * (np.log(sizes.max()) - np.log(sizes).mean()))
    return np.minimum(now, 1.0) * (1 - 2.0**slope)
