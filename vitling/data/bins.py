"""Bins: real numbers as a distribution over ordered classes, and back.

Papers: Imani and White 2018, "Improving Regression Performance with Distributional Losses" (HL-Gauss); Farebrother et al. 2024, "Stop
Regressing: Training Value Functions via Classification for Scalable Deep RL". A number becomes a Gaussian around it, integrated over each
bin; a prediction is the mean over the bins' centres. Both are on the bins' scale: that of the numbers, or log1p of them where they are skewed.
Needs no torch: exported files predict with it.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from vitling.errors import UserError
from vitling.validation.values import Range, check

SIGMA = 0.75  # of the Gaussian, in widths of a bin: the second paper's
MARGIN = 3  # bins beyond the training numbers on each side, so that no Gaussian is cut off: four sigma
FEWEST, MOST = 16, 64  # bins, with the margin
SKEWED = 2.0  # skewness of numbers from 0 up that are learnt as log1p, if that at least halves it: an exponential distribution's
COVERAGE = 0.9  # of a prediction interval
Finite = Annotated[float, Range(-1e300, 1e300)]


class BinsRecord(TypedDict):
    """Bins in a file."""

    scale: Literal["linear", "log1p"]
    edges: list[Finite]
    median: Finite


@dataclass(frozen=True)
class Bins:
    """Bins of equal width on a scale, decided from training numbers, and the median of those."""

    edges: tuple[float, ...]  # on the scale, ascending, one more than there are bins
    median: float
    scale: Literal["linear", "log1p"] = "linear"

    @classmethod
    def of(cls, numbers: np.ndarray) -> "Bins":
        """Bins for training numbers: the more images, the narrower, since a Gaussian that is wide keeps a network from overfitting few images.

        Measured by benchmarks/ordered_labels.py: with 58 bins inside the range the error from 100 images is a third larger than with 10, from
        1,600 the same.
        """
        numbers = np.asarray(numbers, np.float64)
        scale: Literal["linear", "log1p"] = "log1p" if _wants_log(numbers) else "linear"
        scaled = np.log1p(numbers) if scale == "log1p" else numbers
        low, high = float(scaled.min()), float(scaled.max())
        if not high > low:
            raise UserError(f"all training images have the number {numbers[0]:g}, so there is nothing to learn from.")
        inner = int(np.clip(round(len(numbers) ** 0.5 / 2), FEWEST - 2 * MARGIN, MOST - 2 * MARGIN))
        width = (high - low) / inner
        edges = low + width * np.arange(-MARGIN, inner + MARGIN + 1)
        return cls(tuple(edges.tolist()), float(np.median(numbers)), scale)

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def width(self) -> float:
        return (self.edges[-1] - self.edges[0]) / len(self)

    @property
    def centres(self) -> np.ndarray:
        """On the scale."""
        edges = np.asarray(self.edges)
        return (edges[:-1] + edges[1:]) / 2

    @property
    def in_words(self) -> str:
        """How many they are and from where to where, in the numbers' own unit."""
        low, high = self._unscale(np.asarray([self.edges[MARGIN], self.edges[-1 - MARGIN]])).tolist()
        how = ", equally wide in log(1 + number)" if self.scale == "log1p" else ""
        return f"{low:.4g} to {high:.4g} in training, median {self.median:.4g}; {len(self)} bins{how}"

    @property
    def names(self) -> list[str]:
        """What the bins are called, in the numbers' own unit."""
        ends = self._unscale(np.asarray(self.edges)).tolist()
        for digits in range(4, 18):
            shown = [f"{end:.{digits}g}" for end in ends]
            if len(set(shown)) == len(shown):
                break
        return [f"{low} to {high}" for low, high in itertools.pairwise(shown)]

    def place(self, numbers: np.ndarray) -> np.ndarray:
        """The bin of each number; of one beyond them all, the outermost."""
        scaled = self._scale(numbers)
        return np.clip(np.searchsorted(self.edges, scaled, side="right") - 1, 0, len(self) - 1).astype(np.int64)

    def distribute(self, numbers: np.ndarray) -> np.ndarray:
        """(N, bins), float32: the Gaussian around each number integrated over each bin, summing to 1."""
        from scipy.special import ndtr  # takes long to import

        edges = np.asarray(self.edges)
        scaled = np.clip(self._scale(numbers), edges[0], edges[-1])
        below = ndtr((edges[None] - scaled[:, None]) / (SIGMA * self.width))
        shares = np.diff(below, axis=1)
        return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)

    def mean(self, probabilities: np.ndarray) -> np.ndarray:
        """The number that each distribution (N, bins) stands for: its mean on the scale, in the numbers' own unit."""
        return self._unscale(np.asarray(probabilities, np.float64) @ self.centres)

    def interval(self, probabilities: np.ndarray, coverage: float = COVERAGE) -> np.ndarray:
        """(N, 2): the ends of the central interval that holds so much of each distribution, spread evenly within a bin."""
        edges = np.asarray(self.edges)
        below = np.cumsum(np.asarray(probabilities, np.float64), axis=1)
        below = np.concatenate([np.zeros((len(below), 1)), below / below[:, -1:]], axis=1)
        tails = ((1 - coverage) / 2, (1 + coverage) / 2)
        ends = np.array([np.interp(tails, row, edges) for row in below]).reshape(-1, 2)
        return self._unscale(ends)

    def baseline(self, numbers: np.ndarray) -> float:
        """The mean absolute error of always saying the training median; above 0, even where that is always true."""
        return max(float(np.abs(np.asarray(numbers, np.float64) - self.median).mean()), 1e-12)

    def to_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "edges": list(self.edges), "median": self.median}

    @classmethod
    def from_dict(cls, entries: Mapping, source: str) -> "Bins":
        """Read them back; a file may come from anywhere."""
        check(entries, BinsRecord, f"the bins of {source}")
        edges = np.asarray(entries["edges"], np.float64)
        if len(edges) < 3 or not (np.diff(edges) > 0).all():
            raise UserError(f"the bins of {source} are invalid: edges must ascend, and be three at least.")
        return cls(tuple(edges.tolist()), float(entries["median"]), entries["scale"])

    def _scale(self, numbers: np.ndarray) -> np.ndarray:
        numbers = np.asarray(numbers, np.float64)
        # Other data may go below what training had: -1 is as far as the logarithm reaches.
        return np.log1p(np.maximum(numbers, -1 + 1e-9)) if self.scale == "log1p" else numbers

    def _unscale(self, scaled: np.ndarray) -> np.ndarray:
        return np.expm1(scaled) if self.scale == "log1p" else scaled


@dataclass(frozen=True)
class Values:
    """Predicted numbers of images: each a number, and the ends of its prediction interval."""

    number: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, logits: np.ndarray, bins: Bins, temperature: float = 1.0) -> "Values":
        """The number is the mean of the distribution as trained; the interval is of the one that the temperature calibrates."""
        ends = bins.interval(_softmax(logits / temperature))
        return cls(bins.mean(_softmax(logits)), ends[:, 0], ends[:, 1])


def _softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(np.asarray(logits, np.float64) - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def _wants_log(numbers: np.ndarray) -> bool:
    """Whether numbers from 0 up have so long a tail that a logarithm shortens it."""
    if numbers.min() < 0:
        return False
    skewness = _skewness(numbers)
    return skewness > SKEWED and abs(_skewness(np.log1p(numbers))) < skewness / 2


def _skewness(numbers: np.ndarray) -> float:
    centred = numbers - numbers.mean()
    spread = centred.std()
    return float((centred**3).mean() / spread**3) if spread > 0 else 0.0
