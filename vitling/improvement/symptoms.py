"""Symptoms: what a run shows of itself, as far as that decides what to try first.

Taken from its records and its predictions, never on images that confirm. `read_symptoms` is the one place where candidates learn about a
run: what else is found out about it (by a diagnosis, say) becomes a field here.
"""

from dataclasses import dataclass

import numpy as np
import torch

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.sources.images import Images, evenly
from vitling.evaluation.predictions import predict_images
from vitling.runs.run import Run

LOOKED_AT = 500  # training images
OVERFITS, UNDERFITS = 0.1, 0.9  # training accuracy above the held-out one by so much; training accuracy below that
KNOWS_ALL = 0.98  # where only the training accuracy is known
FALLING = 0.02  # of the training loss, over the last quarter of the run
WORST = 3


@dataclass(frozen=True)
class Symptoms:
    """Accuracies are shares."""

    train_top1: float  # of training images as they are, not as augmented
    held_out_top1: float | None  # None where the only images that it has not seen are those that confirm
    held_out_images: int
    worst: list[tuple[str, float, int]]  # classes: name, accuracy, images
    imbalance: float  # images of the largest class per image of the smallest
    loss_falls: bool  # over the last part of the run
    epochs: float
    seconds: float

    @property
    def overfits(self) -> bool:
        if self.held_out_top1 is None:
            return self.train_top1 > KNOWS_ALL
        return self.train_top1 - self.held_out_top1 > OVERFITS

    @property
    def underfits(self) -> bool:
        return self.train_top1 < UNDERFITS

    def knows(self) -> str:
        """What it knows, as a part of a sentence."""
        own = f"it knows {100 * self.train_top1:.0f} % of its training images"
        return own if self.held_out_top1 is None else f"{own} and {100 * self.held_out_top1:.0f} % of others"

    def sentences(self) -> list[str]:
        """The same in words."""
        held = f"; the others are {self.held_out_images:,} that it did not learn from" if self.held_out_images else ""
        lines = [
            f"{self.knows()}{held}",
            f"its training loss {'was still falling' if self.loss_falls else 'had settled'} when it ended after {self.epochs:.4g} epochs",
        ]
        if self.worst:
            named = ", ".join(f"{name} {100 * share:.0f} % ({images})" for name, share, images in self.worst)
            lines.append(f"its worst classes are {named}")
        if self.imbalance >= 2:
            lines.append(f"its largest class has {self.imbalance:.0f} times the images of its smallest")
        return lines


def read_symptoms(
    run: Run, learned: Images, held_out: Images | None, *, reading: Reading, callback: Callback | None = None
) -> Symptoms:
    """What a run shows: on images that it learned from, on others where there are some, and in its records."""
    model, names = run.load_model("best"), run.class_names
    sample = learned.subset(evenly(len(learned), LOOKED_AT))
    seen = predict_images(run, model, sample, "train", reading=reading, callback=callback)
    top1, worst = None, []
    if held_out is not None:
        others = predict_images(run, model, held_out, "held out", reading=reading, callback=callback)
        correct = others.logits.argmax(1) == others.labels
        top1, worst = float(correct.double().mean()), _worst(correct, others.labels, names)
    counts = np.bincount(learned.labels, minlength=len(names))
    return Symptoms(
        train_top1=float((seen.logits.argmax(1) == seen.labels).double().mean()),
        held_out_top1=top1,
        held_out_images=0 if held_out is None else len(held_out),
        worst=worst,
        imbalance=float(counts.max() / max(counts.min(), 1)),
        loss_falls=_loss_falls([record["train_loss"] for record in run.metrics() if "train_loss" in record]),
        epochs=float(run.info["epochs_trained"]),
        seconds=float(run.info["wall_seconds"]),
    )


def _worst(correct: torch.Tensor, labels: torch.Tensor, names: list[str]) -> list[tuple[str, float, int]]:
    """The classes with the lowest accuracies, of those that are not all correct."""
    found = []
    for number, name in enumerate(names):
        own = correct[labels == number]
        if len(own) and not own.all():
            found.append((name, float(own.double().mean()), len(own)))
    return sorted(found, key=lambda entry: entry[1])[:WORST]


def _loss_falls(losses: list[float]) -> bool:
    """Whether the last quarter of the curve ends lower than it begins."""
    if len(losses) < 4:
        return True  # so few epochs were too short for anything
    last = losses[-max(2, len(losses) // 4) :]
    return last[-1] < (1 - FALLING) * last[0]
