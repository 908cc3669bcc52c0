"""Every number of an evaluation, from logits and true classes."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from vitling._deprecated import renamed_attribute
from vitling.data.grades import read_grades
from vitling.evaluation.calibration import expected_calibration_error
from vitling.evaluation.intervals import wilson_interval
from vitling.evaluation.kept import KeptEvaluation
from vitling.evaluation.ordered import measure_distances
from vitling.evaluation.resampling import resample, share_interval
from vitling.reports.card import render_card
from vitling.reports.frame import make_frame
from vitling.reports.page import percent
from vitling.validation.values import Count, CountOrNone, Range, Share, Side

if TYPE_CHECKING:
    from pandas import DataFrame


Agreement = Annotated[float, Range(-1, 1)]
Distance = Annotated[float, Range(0, 1e300)]


class _ClassRecord(TypedDict):
    name: str
    images: CountOrNone
    accuracy: Share | None
    interval: tuple[Share, Share] | None


class ClassRecord(_ClassRecord, total=False):
    """A class; the later keys are missing where a version before 0.2 wrote it."""

    specificity: Share | None
    specificity_interval: tuple[Share, Share] | None
    auroc: Share | None
    auroc_interval: tuple[Share, Share] | None


class PointRecord(TypedDict):
    """An operating point."""

    positive: str
    wanted: Literal["sensitivity", "specificity"]
    at_least: Share
    threshold: Annotated[float, Range(0, 2)]
    val_images: Count
    val_sensitivity: Share
    val_specificity: Share
    sensitivity: Share | None
    sensitivity_interval: tuple[Share, Share] | None
    specificity: Share | None
    specificity_interval: tuple[Share, Share] | None


class GradesRecord(TypedDict, total=False):
    """What is measured of grades beside what classes have; errors are in the unit of the grades."""

    mae: Distance  # of the expected grade
    mae_interval: tuple[Distance, Distance] | None
    mae_likeliest: Distance
    mae_likeliest_interval: tuple[Distance, Distance] | None
    spearman: Agreement | None
    spearman_interval: tuple[Agreement, Agreement] | None
    kendall: Agreement | None
    kendall_interval: tuple[Agreement, Agreement] | None


class _Evaluation(TypedDict):
    data: str
    split: Literal["train", "val", "test"]
    images: Count
    top1: Share
    top1_interval: tuple[Share, Share]
    top5: Share | None
    macro_f1: Share
    loss: Annotated[float, Range(0, 1e9)]
    ece: Share
    class_names: list[str]
    per_class: list[ClassRecord]
    confusion: list[list[CountOrNone]]


class EvaluationRecord(_Evaluation, total=False):
    """evaluation-*.json."""

    correct: str
    right: str  # its name before 0.2
    own: bool
    weights: str
    notes: list[str]
    companions: dict[str, Share]
    img_size: tuple[Side, Side] | None
    tta: bool
    real_top1: Share | None
    balanced_accuracy: Share | None
    balanced_accuracy_interval: tuple[Share, Share] | None
    kappa: Agreement | None
    kappa_interval: tuple[Agreement, Agreement] | None
    kappa_quadratic: Agreement | None
    kappa_quadratic_interval: tuple[Agreement, Agreement] | None
    auroc: Share | None
    auroc_interval: tuple[Share, Share] | None
    groups: Count | None
    resamples: CountOrNone
    operating_point: PointRecord | None
    grades: GradesRecord | None


@dataclass
class Evaluation(KeptEvaluation):
    """What a model reaches on a split."""

    schema = EvaluationRecord

    data: str
    split: str
    images: int
    top1: float
    top1_interval: tuple[float, float]  # 95 %, Wilson; over groups where there are some
    top5: float | None  # None where there are five classes or fewer
    macro_f1: float
    loss: float
    ece: float
    class_names: list[str]
    per_class: list[
        dict
    ]  # name, images, accuracy (the class's sensitivity), specificity, auroc, each with its interval
    confusion: list[list[int]]  # rows: the truth, columns: the prediction
    correct: str = ""  # 1 or 0 per image in the split's order, so that two models can be compared image by image
    own: bool = True  # the data that the run was trained on
    weights: str = "best"
    notes: list[str] = field(default_factory=list)
    companions: dict[str, float] = field(default_factory=dict)  # top-1 of networks that were trained beside the model
    img_size: tuple[int, int] | None = None  # where it is not that of the training
    tta: bool = False  # corners and mirror images were asked about, whatever the run does by itself
    real_top1: float | None = None  # by ReaL's labels, of ImageNet's validation images
    balanced_accuracy: float | None = (
        None  # the mean over the classes; None in files of versions before 0.2, as what follows
    )
    balanced_accuracy_interval: tuple[float, float] | None = (
        None  # 95 %, by resampling, like those below; None: no resample differs
    )
    kappa: float | None = None  # Cohen's
    kappa_interval: tuple[float, float] | None = None
    kappa_quadratic: float | None = None  # with quadratic weights, where the class names are ascending numbers
    kappa_quadratic_interval: tuple[float, float] | None = None
    auroc: float | None = None  # one class against the others, the mean over the classes
    auroc_interval: tuple[float, float] | None = None
    groups: int | None = (
        None  # patients, slides or videos that the images are of, where they are known: intervals are over them
    )
    resamples: int = 0
    operating_point: dict | None = None  # of one class against the others, at a threshold that was fitted on validation
    grades: dict | None = None  # of grades: their errors and rank correlations, see `GradesRecord`

    right = renamed_attribute("right", "correct")

    def to_frame(self) -> "DataFrame":
        """A row per class: its images, accuracy (its sensitivity), specificity and AUROC, each with the ends of its 95 % interval."""
        rows = []
        for row in self.per_class:
            low, high = row["interval"] or (None, None)
            known = {"class": row["name"], "images": row["images"], "accuracy": row["accuracy"]}
            known |= {"accuracy_low": low, "accuracy_high": high}
            for what in ("specificity", "auroc"):
                low, high = row.get(f"{what}_interval") or (None, None)
                known |= {what: row.get(what), f"{what}_low": low, f"{what}_high": high}
            rows.append(known)
        return make_frame(rows)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from vitling.reports import plots  # matplotlib takes a while to import

        low, high = self.top1_interval
        facts = {
            "top-1": f"{percent(self.top1)} of {self.images:,} images (95 % interval {100 * low:.1f} to {100 * high:.1f})",
            **({"top-5": percent(self.top5)} if self.top5 is not None else {}),
            "macro-F1": f"{self.macro_f1:.3f}",
            **self.agreement_facts(),
            "calibration error": f"{self.ece:.3f}",
        }
        svg = plots.confusion(np.array(self.confusion), self.class_names)
        title = f"{self.data}, {self.split} split"
        return render_card(title, facts, svg=svg, caption="Confusion: rows are the true classes.", notes=self.notes)

    def agreement_facts(self) -> dict[str, str]:
        """Balanced accuracy, kappa and AUROC in words, with their intervals, and the operating point; nothing of old files."""

        def shown(value: float | None, interval: Sequence[float] | None, scale: float = 1, form: str = "{:.3f}") -> str:
            if value is None:
                return "not defined here"
            number = form.format(scale * value) + (" %" if scale == 100 else "")
            if interval is None:
                return f"{number} (no interval: every resample gives the same)"
            low, high = (form.format(scale * end) for end in interval)
            return f"{number} (95 % interval {low} to {high})"

        if self.balanced_accuracy is None:
            return {}
        facts = {
            "balanced accuracy": shown(self.balanced_accuracy, self.balanced_accuracy_interval, 100, "{:.1f}"),
            "Cohen's kappa": shown(self.kappa, self.kappa_interval),
            "AUROC": shown(self.auroc, self.auroc_interval)
            + ("" if len(self.class_names) == 2 else ", the mean over classes, each against the others"),
        }
        if self.kappa_quadratic is not None:
            facts["kappa, quadratic weights"] = shown(self.kappa_quadratic, self.kappa_quadratic_interval)
        if grades := self.grades:
            facts["mean absolute error"] = shown(grades["mae"], grades["mae_interval"]) + ", of the expected grade"
            facts["of the likeliest grade"] = shown(grades["mae_likeliest"], grades["mae_likeliest_interval"])
            facts["Spearman's rho"] = shown(grades["spearman"], grades["spearman_interval"])
            if "kendall" in grades:
                facts["Kendall's tau-b"] = shown(grades["kendall"], grades["kendall_interval"])
        if point := self.operating_point:
            facts[f"{point['positive']} or not"] = " ".join(reversed(describe_point(point)))
        if self.groups:
            facts["intervals"] = (
                f"over {self.groups:,} groups, not images: those of one group are no independent witnesses"
            )
        return facts

    @classmethod
    def translate(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"correct" if name == "right" else name: value for name, value in values.items()}  # its name before 0.2

    def adds_up(self) -> bool:
        classes, correct = len(self.class_names), self.correct
        return (
            classes == len(self.per_class) == len(self.confusion)
            and all(len(row) == classes for row in self.confusion)
            and sum(map(sum, self.confusion)) == self.images
            and sum(self.confusion[i][i] for i in range(classes)) == round(self.top1 * self.images)
            and (not correct or (len(correct) == self.images and correct.count("1") == round(self.top1 * self.images)))
        )


@dataclass
class ClassAccuracy:
    """One class; accuracy and interval are None where it has no images."""

    label: int
    images: int
    accuracy: float | None
    interval: tuple[float, float] | None  # 95 %, Wilson


def describe_point(point: dict) -> tuple[str, str]:
    """An operating point in words: where it is, and what it gives."""

    def shown(what: str) -> str:
        value, interval = point[what], point[f"{what}_interval"]
        return f"{what} " + (
            "not defined here"
            if value is None
            else f"{percent(value)} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
        )

    where = f"at a probability of {point['threshold']:.4g} or more ({point['wanted']} {point['at_least']:g} on {point['val_images']:,} validation images)"
    return where, f"{shown('sensitivity')}, {shown('specificity')}"


def measure(
    logits: Tensor,
    labels: Tensor,
    class_names: list[str],
    *,
    data: str = "",
    split: str = "",
    groups: np.ndarray | None = None,
    grades: bool = False,
) -> Evaluation:
    """Every number of an evaluation. With `groups`, one per image, the intervals are over those. `grades`: the classes are in an order."""
    import torchmetrics.functional.classification as metrics  # here, because it takes seconds to import

    classes, images = len(class_names), len(labels)
    predicted_correctly = logits.argmax(1) == labels
    correct = int(predicted_correctly.sum())
    probabilities = logits.double().softmax(1)
    per_class = _per_class(probabilities, labels, class_names, groups)
    drawn = resample(probabilities.numpy(), labels.numpy(), logits.argmax(1).numpy(), groups)
    for row, interval in zip(per_class, drawn.class_auroc, strict=True):
        row["auroc_interval"] = None if row["auroc"] is None else interval
    ranked = [row["auroc"] for row in per_class if row["auroc"] is not None]
    ordered = grades or _are_ascending_numbers(class_names)
    kappas = {
        weights: metrics.multiclass_cohen_kappa(logits, labels, num_classes=classes, weights=weights).item()
        for weights in (None, *(["quadratic"] if ordered else []))
    }
    present = [
        c for c, row in enumerate(per_class) if row["images"]
    ]  # a class without images does not drag the mean down
    f1 = metrics.multiclass_f1_score(logits, labels, num_classes=classes, average="none")
    top5 = None
    if classes > 5:
        top5 = metrics.multiclass_accuracy(logits, labels, num_classes=classes, top_k=5, average="micro").item()
    return Evaluation(
        data=data,
        split=split,
        images=images,
        top1=correct / images,
        top1_interval=share_interval(predicted_correctly.numpy(), groups),
        top5=top5,
        macro_f1=f1[present].mean().item(),
        loss=nn.functional.cross_entropy(logits, labels).item(),
        ece=expected_calibration_error(probabilities, labels).item(),
        class_names=class_names,
        per_class=per_class,
        confusion=metrics.multiclass_confusion_matrix(logits, labels, num_classes=classes).tolist(),
        correct="".join("1" if is_correct else "0" for is_correct in predicted_correctly.tolist()),
        balanced_accuracy=sum(per_class[c]["accuracy"] for c in present) / len(present),
        balanced_accuracy_interval=drawn.balanced_accuracy,
        kappa=_defined(kappas[None]),
        kappa_interval=drawn.kappa,
        kappa_quadratic=_defined(kappas["quadratic"]) if ordered else None,
        kappa_quadratic_interval=drawn.kappa_quadratic if ordered else None,
        auroc=sum(ranked) / len(ranked) if ranked else None,
        auroc_interval=drawn.auroc,
        groups=None if groups is None else len(np.unique(groups)),
        resamples=drawn.resamples,
        grades=_measure_grades(probabilities.numpy(), labels.numpy(), class_names, groups) if grades else None,
    )


def _measure_grades(
    probabilities: np.ndarray, labels: np.ndarray, class_names: list[str], groups: np.ndarray | None
) -> dict:
    grades = read_grades(class_names, "the model")
    return measure_distances(
        probabilities @ grades, grades[labels], likeliest=grades[probabilities.argmax(1)], pairs=True, groups=groups
    )


def _defined(value: float) -> float | None:
    """None where a number is not defined, as kappa of a single class; JSON has no word for nan."""
    return value if math.isfinite(value) else None


def _are_ascending_numbers(class_names: Sequence[str]) -> bool:
    """Whether the classes are grades or counts, in their order."""
    try:
        numbers = [float(name) for name in class_names]
    except ValueError:
        return False
    return len(numbers) > 2 and all(a < b for a, b in itertools.pairwise(numbers))


def _per_class(probabilities: Tensor, labels: Tensor, class_names: list[str], groups: np.ndarray | None) -> list[dict]:
    """Of every class: images, accuracy, specificity and AUROC; None where it has no images, or the others have none."""
    import torchmetrics.functional.classification as metrics  # takes seconds to import

    truth, predicted = labels.numpy(), probabilities.argmax(1).numpy()
    rows = []
    for c, name in enumerate(class_names):
        of_class, called = truth == c, predicted == c
        row: dict[str, Any] = {"name": name, "images": int(of_class.sum())}
        for what, chosen, hit in (("", of_class, called), ("specificity", ~of_class, ~called)):
            value, interval = share_of(hit[chosen], None if groups is None else groups[chosen])
            row |= {what or "accuracy": value, f"{what}_interval" if what else "interval": interval}
        both = bool(of_class.any() and not of_class.all())
        row["auroc"] = metrics.binary_auroc(probabilities[:, c], (labels == c).int()).item() if both else None
        rows.append(row)
    return rows


def share_of(hits: np.ndarray, groups: np.ndarray | None) -> tuple[float | None, tuple[float, float] | None]:
    """A share with its interval; neither where there are no images."""
    return (float(hits.mean()), share_interval(hits, groups)) if len(hits) else (None, None)


def per_class_accuracy(scores: Tensor, labels: Tensor) -> list[ClassAccuracy]:
    """Accuracy of every class with its 95 % interval, from logits or probabilities of (images, classes)."""
    classes = scores.shape[1]
    counts = torch.bincount(labels, minlength=classes).tolist()
    hits = torch.bincount(labels[scores.argmax(dim=1) == labels], minlength=classes).tolist()
    return [
        ClassAccuracy(label, images, correct / images, wilson_interval(correct, images))
        if images
        else ClassAccuracy(label, 0, None, None)
        for label, (images, correct) in enumerate(zip(counts, hits, strict=True))
    ]
