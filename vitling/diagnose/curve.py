"""The course of a run, from what it logged at each validation: how long it learned, and what happened after that."""

from dataclasses import dataclass

import numpy as np

from vitling.evaluation.intervals import Z95
from vitling.runs.run import Run

FEWEST = 4  # validations from which on a curve says something of itself


@dataclass(frozen=True)
class Curve:
    """Losses and validation accuracy over the epochs of a run."""

    epochs: np.ndarray
    train_loss: np.ndarray
    val_loss: np.ndarray
    accuracy: np.ndarray
    val_images: int

    @classmethod
    def of(cls, run: Run) -> "Curve | None":
        """None of a run that has not validated."""
        records = run.metrics()
        if not records:
            return None

        def column(key: str) -> np.ndarray:
            return np.array([record.get(key, np.nan) for record in records], dtype=float)

        return cls(
            epochs=column("epoch"),
            train_loss=column("train_loss"),
            val_loss=column("val_loss"),
            accuracy=column("val_top1"),
            val_images=run.info.get("data", {}).get("val_images", 1),
        )

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def noise(self) -> float:
        """Half-width of the 95 % interval of the best accuracy: smaller changes may be chance."""
        best = self.accuracy.max()
        return Z95 * (max(best * (1 - best), 1 / self.val_images) / self.val_images) ** 0.5

    @property
    def stopped_rising(self) -> float:
        """The share of the run after which validation accuracy, smoothed, was within chance of the best it reached."""
        smooth = _smoothed(self.accuracy)
        enough = np.flatnonzero(smooth >= smooth.max() - self.noise / 2)
        return float(self.epochs[enough[0]] / self.epochs[-1])

    @property
    def lowest_loss_at(self) -> float:
        """The share of the run after which the validation loss, smoothed, was lowest."""
        return float(self.epochs[int(np.argmin(_smoothed(self.val_loss)))] / self.epochs[-1])

    @property
    def loss_rise(self) -> float:
        """How much larger the validation loss is at the end than at its lowest, both smoothed, as a share of the lowest."""
        smooth = _smoothed(self.val_loss)
        return float(smooth[-1] / max(smooth.min(), 1e-6) - 1)

    @property
    def accuracy_fall(self) -> float:
        """How far validation accuracy fell from its best to the end, both smoothed."""
        smooth = _smoothed(self.accuracy)
        return float(smooth.max() - smooth[-1])

    @property
    def late_rise(self) -> float:
        """Accuracy in the last sixth of the run less that in the sixth before: whether it was still rising when it ended."""
        part = max(1, len(self) // 6)
        if len(self) < 2:
            return 0.0
        return float(self.accuracy[-part:].mean() - self.accuracy[-2 * part : -part].mean())

    @property
    def middle_fall(self) -> float | None:
        """By which share the training loss fell from a quarter to half of the run, where the rate is hardly lowered yet."""
        if len(self) < 2 * FEWEST:
            return None
        early, half = (self.train_loss[_at(self.epochs, share)] for share in (0.25, 0.5))
        return float(1 - half / early) if early > 0 else None


def _smoothed(values: np.ndarray) -> np.ndarray:
    """Means over three validations, fewer at the ends: single ones leap."""
    if len(values) < FEWEST:
        return values
    return np.array([values[max(0, i - 1) : i + 2].mean() for i in range(len(values))])


def _at(epochs: np.ndarray, share: float) -> int:
    return int(np.argmin(np.abs(epochs - share * epochs[-1])))
