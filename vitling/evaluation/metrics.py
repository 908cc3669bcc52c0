"""Every number of an evaluation, from class scores and true classes."""

import json
import re
from dataclasses import asdict, dataclass, field

from torch import Tensor, nn

CALIBRATION_BINS = 15


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
    right: str = ""  # 1 or 0 per image in the split's order, so that two models can be compared image by image
    own: bool = True  # the data that the run was trained on
    weights: str = "best"
    notes: list[str] = field(default_factory=list)

    @property
    def file_name(self) -> str:
        """Where in the run it is written; other data never replaces what the run reached on its own."""
        other = "" if self.own else "-" + re.sub(r"[^\w.-]+", "-", self.data)
        last = "" if self.weights == "best" else f"-{self.weights}"
        return f"evaluation-{self.split}{last}{other}.json"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)


def measure(logits: Tensor, labels: Tensor, class_names: list[str], *, data: str = "", split: str = "") -> Evaluation:
    """Every number of an evaluation, from scores and true classes."""
    import torchmetrics.functional.classification as metrics  # here, because it takes seconds to import

    classes = len(class_names)
    probabilities = logits.softmax(1)
    confusion = metrics.multiclass_confusion_matrix(logits, labels, num_classes=classes)
    counts, right = confusion.sum(1), confusion.diag()
    present = counts > 0  # a class without images has no accuracy and does not drag the mean down
    f1 = metrics.multiclass_f1_score(logits, labels, num_classes=classes, average="none")
    top5 = (
        metrics.multiclass_accuracy(logits, labels, num_classes=classes, top_k=5, average="micro")
        if classes > 5
        else None
    )
    return Evaluation(
        data=data,
        split=split,
        images=len(labels),
        top1=right.sum().item() / len(labels),
        top1_interval=wilson_interval(right.sum().item(), len(labels)),
        top5=None if top5 is None else top5.item(),
        macro_f1=f1[present].mean().item(),
        loss=nn.functional.cross_entropy(logits, labels).item(),
        ece=metrics.multiclass_calibration_error(
            probabilities, labels, num_classes=classes, n_bins=CALIBRATION_BINS
        ).item(),
        class_names=class_names,
        per_class=[
            {
                "name": name,
                "images": int(n),
                "accuracy": int(k) / int(n) if n else None,
                "interval": wilson_interval(int(k), int(n)) if n else None,
            }
            for name, k, n in zip(class_names, right, counts, strict=True)
        ],
        confusion=confusion.tolist(),
        right="".join(map(str, (logits.argmax(1) == labels).int().tolist())),
    )


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % confidence interval of a proportion; unlike the normal one it stays inside 0..1 and holds for few trials."""
    p = successes / trials
    centre = p + z * z / (2 * trials)
    spread = z * (p * (1 - p) / trials + z * z / (4 * trials**2)) ** 0.5
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
