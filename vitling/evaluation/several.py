"""Every number of an evaluation of several labels per image, from logits and which labels each image has."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.evaluation.average_precision import Precision, mean_over_labels
from vitling.evaluation.calibration import label_calibration_error
from vitling.evaluation.kept import KeptEvaluation
from vitling.evaluation.resampling import (
    BLOCK,
    MOST_SCORES,
    RESAMPLES,
    Interval,
    Ranking,
    draw_units,
    percentile_interval,
    share_interval,
)
from vitling.evaluation.thresholds import Thresholds
from vitling.reports.card import render_card
from vitling.reports.frame import make_frame
from vitling.validation.values import Count, CountOrNone, Range, Share, Side

if TYPE_CHECKING:
    from pandas import DataFrame


class LabelRecord(TypedDict):
    """A label; what is not defined without positives, or without negatives, is None."""

    name: str
    positives: CountOrNone
    average_precision: Share | None
    average_precision_interval: tuple[Share, Share] | None
    auroc: Share | None
    auroc_interval: tuple[Share, Share] | None
    threshold: Share
    fitted: bool
    precision: Share | None
    recall: Share | None
    f1: Share | None


class SeveralEvaluationRecord(TypedDict):
    """evaluation-*.json of a run that learns several labels per image."""

    labels: Literal["several"]
    data: str
    split: Literal["train", "val", "test"]
    images: Count
    map: Share | None
    map_interval: tuple[Share, Share] | None
    auroc: Share | None
    auroc_interval: tuple[Share, Share] | None
    macro_f1: Share | None
    macro_f1_interval: tuple[Share, Share] | None
    micro_f1: Share | None
    micro_f1_interval: tuple[Share, Share] | None
    exact_match: Share
    exact_match_interval: tuple[Share, Share]
    loss: Annotated[float, Range(0, 1e9)]
    ece: Share
    class_names: list[str]
    per_label: list[LabelRecord]
    own: bool
    weights: str
    notes: list[str]
    img_size: tuple[Side, Side] | None
    tta: bool
    groups: Count | None
    resamples: CountOrNone


@dataclass
class SeveralEvaluation(KeptEvaluation):
    """What a model of several labels per image reaches on a split. Intervals are of 95 %, by drawing images, or groups where there are some."""

    schema = SeveralEvaluationRecord

    data: str
    split: str
    images: int
    map: float | None  # mean average precision, over the labels that have positives here
    map_interval: Interval | None
    auroc: float | None  # the mean over labels
    auroc_interval: Interval | None
    macro_f1: float | None  # the mean over labels that have positives, at their thresholds
    macro_f1_interval: Interval | None
    micro_f1: (
        float | None
    )  # of all labels of all images together; None where there is nothing to find and nothing was found
    micro_f1_interval: Interval | None
    exact_match: float  # the share of images with every label as it is
    exact_match_interval: Interval
    loss: float
    ece: float
    class_names: list[str]
    per_label: list[dict]  # as `LabelRecord` says
    own: bool = True  # the data that the run was trained on
    weights: str = "best"
    notes: list[str] = field(default_factory=list)
    img_size: tuple[int, int] | None = None  # where it is not that of the training
    tta: bool = False
    groups: int | None = None
    resamples: int = 0
    labels: str = "several"

    def to_frame(self) -> "DataFrame":
        """A row per label: its positives, average precision and AUROC with the ends of their intervals, and what its threshold gives."""
        rows = []
        for row in self.per_label:
            known: dict[str, Any] = {"label": row["name"], "positives": row["positives"]}
            for what in ("average_precision", "auroc"):
                low, high = row[f"{what}_interval"] or (None, None)
                known |= {what: row[what], f"{what}_low": low, f"{what}_high": high}
            rows.append(known | {what: row[what] for what in ("threshold", "precision", "recall", "f1")})
        return make_frame(rows)

    def facts(self) -> dict[str, str]:
        """The main numbers in words."""

        def shown(value: float | None, interval: Sequence[float] | None) -> str:
            if value is None:
                return "not defined here"
            if interval is None:
                return f"{value:.3f} (no interval: every resample gives the same)"
            return f"{value:.3f} (95 % interval {interval[0]:.3f} to {interval[1]:.3f})"

        low, high = self.exact_match_interval
        facts = {
            "mean average precision": shown(self.map, self.map_interval),
            "AUROC, the mean over labels": shown(self.auroc, self.auroc_interval),
            "macro-F1": shown(self.macro_f1, self.macro_f1_interval),
            "micro-F1": shown(self.micro_f1, self.micro_f1_interval),
            "every label right": f"{100 * self.exact_match:.1f} % of {self.images:,} images (95 % interval {100 * low:.1f} to {100 * high:.1f})",
            "cross-entropy per label": f"{self.loss:.4f}",
            "calibration error": f"{self.ece:.3f}",
        }
        if self.groups:
            facts["intervals"] = (
                f"over {self.groups:,} groups, not images: those of one group are no independent witnesses"
            )
        return facts

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return render_card(f"{self.data}, {self.split} split", dict(self.facts()), notes=self.notes)

    def adds_up(self) -> bool:
        return [row["name"] for row in self.per_label] == self.class_names


def measure_several(
    logits: Tensor,
    targets: Tensor,
    class_names: list[str],
    thresholds: Thresholds,
    *,
    temperature: float = 1.0,
    data: str = "",
    split: str = "",
    groups: np.ndarray | None = None,
) -> SeveralEvaluation:
    """Every number of an evaluation. `thresholds` are of probabilities at that temperature."""
    import torchmetrics.functional.classification as metrics  # here, because it takes seconds to import

    images, labels = targets.shape
    truth = targets.int()
    scores = (logits.double() / temperature).sigmoid()
    called = scores >= torch.as_tensor(thresholds.values, dtype=torch.float64)
    positives, names = truth.sum(0).tolist(), thresholds.unfitted
    has = [k for k in range(labels) if positives[k]]
    both = [k for k in has if positives[k] < images]
    how: dict[str, Any] = dict(num_labels=labels, average="none")
    # In ranks: float32, as torchmetrics has it, would call scores equal that are not.
    ranks = _as_ranks(scores)
    precisions = {k: metrics.binary_average_precision(ranks[:, k], truth[:, k]).item() for k in has}
    aurocs = {k: metrics.binary_auroc(ranks[:, k], truth[:, k]).item() for k in both}
    hits = called.int()
    at = {
        name: getattr(metrics, f"multilabel_{name}")(hits, truth, **how).tolist()
        for name in ("precision", "recall", "f1_score")
    }
    drawn = _resample(scores.numpy(), truth.numpy(), called.numpy(), groups)
    per_label = [
        {
            "name": class_names[k],
            "positives": positives[k],
            "average_precision": precisions.get(k),
            "average_precision_interval": drawn.precisions[k],
            "auroc": aurocs.get(k),
            "auroc_interval": drawn.aurocs[k],
            "threshold": thresholds.values[k],
            "fitted": thresholds.images > 0 and class_names[k] not in names,
            "precision": at["precision"][k] if called[:, k].any() else None,
            "recall": at["recall"][k] if k in has else None,
            "f1": at["f1_score"][k] if k in has else None,
        }
        for k in range(labels)
    ]
    exact = (called == truth.bool()).all(dim=1)
    anything = bool(called.any() or truth.any())
    return SeveralEvaluation(
        data=data,
        split=split,
        images=images,
        map=_mean([row["average_precision"] for row in per_label]),
        map_interval=drawn.map,
        auroc=_mean([row["auroc"] for row in per_label]),
        auroc_interval=drawn.auroc,
        macro_f1=_mean([row["f1"] for row in per_label]),
        macro_f1_interval=drawn.macro_f1,
        micro_f1=metrics.multilabel_f1_score(hits, truth, num_labels=labels, average="micro").item()
        if anything
        else None,
        micro_f1_interval=drawn.micro_f1,
        exact_match=exact.double().mean().item(),
        exact_match_interval=share_interval(exact.numpy(), groups),
        loss=F.binary_cross_entropy_with_logits(logits.double(), targets.double()).item(),
        ece=label_calibration_error(logits.double().sigmoid(), targets).item(),
        class_names=class_names,
        per_label=per_label,
        notes=_notes(thresholds, [name for k, name in enumerate(class_names) if k not in has], split),
        groups=None if groups is None else len(np.unique(groups)),
        resamples=drawn.resamples,
    )


def _notes(thresholds: Thresholds, absent: Sequence[str], split: str) -> list[str]:
    notes = []
    if thresholds.reason:
        notes.append(thresholds.reason)
    if absent:
        notes.append(f"no image of {split or 'these'} has {', '.join(absent)}: means over labels are over the others")
    return notes


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _as_ranks(scores: Tensor) -> Tensor:
    """Numbers from 0 to 1 in the order of each label's scores, equal where those are."""
    ranks = [torch.unique(column, return_inverse=True)[1] for column in scores.unbind(dim=1)]
    return (torch.stack(ranks, dim=1).double() + 0.5) / (len(scores) + 1)


@dataclass
class _Drawn:
    """Intervals of one evaluation; None where every draw gives the same number, or none a number."""

    resamples: int
    map: Interval | None
    auroc: Interval | None
    macro_f1: Interval | None
    micro_f1: Interval | None
    precisions: list[Interval | None]
    aurocs: list[Interval | None]


def _resample(scores: np.ndarray, truth: np.ndarray, called: np.ndarray, groups: np.ndarray | None) -> _Drawn:
    images, labels = truth.shape
    units = np.arange(images) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    count = int(units.max()) + 1
    times = BLOCK * max(1, min(RESAMPLES, MOST_SCORES // (images * labels)) // BLOCK)
    positive = truth > 0
    has = [k for k in range(labels) if positive[:, k].any()]
    both = [k for k in has if not positive[:, k].all()]
    precisions = {k: Precision(scores[:, k], positive[:, k], units, count) for k in has}
    rankings = {k: Ranking(scores[:, k], positive[:, k], units, count) for k in both}
    # What F1 is made of, per unit and label: hits, and what was called plus what there is.
    hits, total = np.zeros((count, labels)), np.zeros((count, labels))
    np.add.at(hits, units, (called & positive).astype(float))
    np.add.at(total, units, called.astype(float) + positive)
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("ap", "auroc", "macro", "micro")}
    for weights in draw_units(count, times):
        found["ap"].append(np.stack([precisions[k].average(weights) for k in has]) if has else np.empty((0, BLOCK)))
        found["auroc"].append(np.stack([rankings[k].auroc(weights) for k in both]) if both else np.empty((0, BLOCK)))
        h, t = hits.T @ weights, total.T @ weights
        there = np.stack([np.bincount(units, weights=positive[:, k], minlength=count) @ weights for k in range(labels)])
        with np.errstate(invalid="ignore", divide="ignore"):
            f1 = np.where(there > 0, 2 * h / t, np.nan)
            found["micro"].append(2 * h.sum(axis=0) / t.sum(axis=0))
        found["macro"].append(mean_over_labels(f1))
    ap, auroc, macro, micro = (np.concatenate(parts, axis=-1) for parts in found.values())
    own = {k: percentile_interval(ap[i]) for i, k in enumerate(has)}
    ranked = {k: percentile_interval(auroc[i]) for i, k in enumerate(both)}
    return _Drawn(
        times,
        percentile_interval(mean_over_labels(ap)) if has else None,
        percentile_interval(mean_over_labels(auroc)) if both else None,
        percentile_interval(macro),
        percentile_interval(micro),
        [own.get(k) for k in range(labels)],
        [ranked.get(k) for k in range(labels)],
    )
