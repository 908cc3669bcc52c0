"""Confirmation: two models on images that took no part in anything before, and the sentence about it."""

from dataclasses import dataclass

import numpy as np

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.sources.images import Images
from vitling.evaluation.comparison import mcnemar
from vitling.evaluation.intervals import paired_interval
from vitling.evaluation.predictions import predict_images
from vitling.evaluation.resampling import mean_interval
from vitling.runs.run import Run


@dataclass(frozen=True)
class Confirmation:
    """Two models on the same images. Differences are in points, the winner's accuracy less the other's."""

    images: int
    only_winner: int  # images on which only the winner is correct
    only_start: int
    winner_top1: float
    start_top1: float
    difference: float
    low: float  # of the 95 % interval of Bonett and Price, paired by image; over groups where there are some
    high: float
    p_value: float  # of the exact McNemar test, on images or on groups

    @property
    def better(self) -> bool:
        return self.low > 0

    @property
    def ci95(self) -> float:
        return (self.high - self.low) / 2

    def sentence(self, name: str) -> str:
        where = f"on {self.images:,} images that took no part in the choice"
        if self.better:
            return f"{name} is better by {self.difference:.1f} ± {self.ci95:.1f} points {where}"
        if self.high < 0:
            return f"nothing was better: {name} is worse by {-self.difference:.1f} ± {self.ci95:.1f} points {where}"
        return f"nothing was better: {name} differs by {self.difference:+.1f} ± {self.ci95:.1f} points {where}, which may be chance"


def count_pairs(winner: list[bool], start: list[bool], groups: np.ndarray | None = None) -> Confirmation:
    """From what each of the two got right, image by image. With groups, those are the witnesses: of one patient's images, many say the same."""
    pairs = list(zip(winner, start, strict=True))
    only_winner, only_start = pairs.count((True, False)), pairs.count((False, True))
    low, high = paired_interval(only_winner, only_start, len(pairs))
    p_value = mcnemar(only_winner, only_start)
    if groups is not None:
        differences = np.array(winner, dtype=float) - np.array(start)
        names, units = np.unique(groups, return_inverse=True)
        by_group = np.bincount(units.reshape(-1), weights=differences)
        share = len(names) / len(pairs)
        low, high = mean_interval(differences, groups) or paired_interval(
            round(share * only_winner), round(share * only_start), len(names)
        )
        p_value = mcnemar(int((by_group > 0).sum()), int((by_group < 0).sum()))
    return Confirmation(
        images=len(pairs),
        only_winner=only_winner,
        only_start=only_start,
        winner_top1=sum(winner) / len(pairs),
        start_top1=sum(start) / len(pairs),
        difference=100 * (only_winner - only_start) / len(pairs),
        low=100 * low,
        high=100 * high,
        p_value=p_value,
    )


def confirm(winner: Run, start: Run, images: Images, *, reading: Reading, callback: Callback) -> Confirmation:
    """Look at the images that confirm: once, with both models. Nothing is written into the runs."""
    correct = []
    for run in (winner, start):
        seen = predict_images(run, run.load_model("best"), images, "confirmation", reading=reading, callback=callback)
        correct.append((seen.logits.argmax(1) == seen.labels).tolist())
    return count_pairs(correct[0], correct[1], images.groups)
