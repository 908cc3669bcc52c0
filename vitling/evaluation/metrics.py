"""Every number of an evaluation, from logits and true classes."""

import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from vitling._deprecated import renamed_attribute
from vitling.evaluation.calibration import expected_calibration_error
from vitling.evaluation.intervals import wilson_interval
from vitling.reports.card import render_card
from vitling.reports.frame import make_frame
from vitling.reports.page import percent
from vitling.validation.documents import damaged, parse_json, read_document
from vitling.validation.values import Count, CountOrNone, Range, Share, Side

if TYPE_CHECKING:
    from pandas import DataFrame


class ClassRecord(TypedDict):
    name: str
    images: CountOrNone
    accuracy: Share | None
    interval: tuple[Share, Share] | None


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
    real_top1: Share | None


@dataclass
class Evaluation:
    """What a model reaches on a split."""

    data: str
    split: str
    images: int
    top1: float
    top1_interval: tuple[float, float]  # 95 %, Wilson
    top5: float | None  # None where there are five classes or fewer
    macro_f1: float
    loss: float
    ece: float
    class_names: list[str]
    per_class: list[dict]  # name, images, accuracy, interval
    confusion: list[list[int]]  # rows: the truth, columns: the prediction
    correct: str = ""  # 1 or 0 per image in the split's order, so that two models can be compared image by image
    own: bool = True  # the data that the run was trained on
    weights: str = "best"
    notes: list[str] = field(default_factory=list)
    companions: dict[str, float] = field(default_factory=dict)  # top-1 of networks that were trained beside the model
    img_size: tuple[int, int] | None = None  # where it is not that of the training
    real_top1: float | None = None  # by ReaL's labels, of ImageNet's validation images
    kept = True  # in the run; not a field, because what is read from there was

    right = renamed_attribute("right", "correct")

    @property
    def file_name(self) -> str:
        """Where in the run it is written; other data never replaces what the run reached on its own."""
        other = "" if self.own else "-" + re.sub(r"[^\w.-]+", "-", self.data)
        last = "" if self.weights == "best" else f"-{self.weights}"
        size = "-{}x{}".format(*self.img_size) if self.img_size else ""
        return f"evaluation-{self.split}{last}{size}{other}.json"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    def to_frame(self) -> "DataFrame":
        """A row per class: its images, its accuracy, and the ends of that one's 95 % interval."""
        rows = []
        for row in self.per_class:
            low, high = row["interval"] or (None, None)
            known = {"class": row["name"], "images": row["images"], "accuracy": row["accuracy"]}
            rows.append({**known, "accuracy_low": low, "accuracy_high": high})
        return make_frame(rows)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from vitling.reports import plots  # matplotlib takes a while to import

        low, high = self.top1_interval
        facts = {
            "top-1": f"{percent(self.top1)} of {self.images:,} images (95 % interval {100 * low:.1f} to {100 * high:.1f})",
            **({"top-5": percent(self.top5)} if self.top5 is not None else {}),
            "macro-F1": f"{self.macro_f1:.3f}",
            "calibration error": f"{self.ece:.3f}",
        }
        svg = plots.confusion(np.array(self.confusion), self.class_names)
        title = f"{self.data}, {self.split} split"
        return render_card(title, facts, svg=svg, caption="Confusion: rows are the true classes.", notes=self.notes)

    @classmethod
    def from_json(cls, text: str, source: str = "the evaluation") -> "Evaluation":
        """Read it back; `source` is the file that it is from, which anything may have happened to."""
        values = dict(parse_json(text, EvaluationRecord, source))
        if "right" in values:  # written before 0.2
            values["correct"] = values.pop("right")
        known: dict[str, Any] = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        evaluation = cls(**{**known, "top1_interval": tuple(values["top1_interval"])})
        if not evaluation._adds_up():
            raise damaged(source, "its numbers contradict each other")
        return evaluation

    @classmethod
    def read(cls, path: Path) -> "Evaluation":
        return cls.from_json(read_document(path), str(path))

    def _adds_up(self) -> bool:
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


def measure(logits: Tensor, labels: Tensor, class_names: list[str], *, data: str = "", split: str = "") -> Evaluation:
    """Every number of an evaluation."""
    import torchmetrics.functional.classification as metrics  # here, because it takes seconds to import

    classes, images = len(class_names), len(labels)
    predicted_correctly = logits.argmax(1) == labels
    correct = int(predicted_correctly.sum())
    per_class = per_class_accuracy(logits, labels)
    present = [row.label for row in per_class if row.images]  # a class without images does not drag the mean down
    f1 = metrics.multiclass_f1_score(logits, labels, num_classes=classes, average="none")
    top5 = None
    if classes > 5:
        top5 = metrics.multiclass_accuracy(logits, labels, num_classes=classes, top_k=5, average="micro").item()
    return Evaluation(
        data=data,
        split=split,
        images=images,
        top1=correct / images,
        top1_interval=wilson_interval(correct, images),
        top5=top5,
        macro_f1=f1[present].mean().item(),
        loss=nn.functional.cross_entropy(logits, labels).item(),
        ece=expected_calibration_error(logits.double().softmax(1), labels).item(),
        class_names=class_names,
        per_class=[
            {"name": name, "images": row.images, "accuracy": row.accuracy, "interval": row.interval}
            for name, row in zip(class_names, per_class, strict=True)
        ],
        confusion=metrics.multiclass_confusion_matrix(logits, labels, num_classes=classes).tolist(),
        correct="".join("1" if is_correct else "0" for is_correct in predicted_correctly.tolist()),
    )


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
