"""Evaluate a run: top-1, top-5, macro-F1, per class, calibration and the confusion matrix."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from vitling.data.images import Images
from vitling.data.loader import eval_batches
from vitling.data.named import match_name
from vitling.data.prepare import Preprocessing, Reading, load_split, split_training
from vitling.data.sources import Dataset, open_dataset
from vitling.errors import UserError, did_you_mean
from vitling.files import write_text
from vitling.run import Run, load_run

CALIBRATION_BINS = 15
SPLITS = ("train", "val", "test")
WEIGHTS = ("best", "last")


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


def evaluate(
    run: Run | str | Path,
    data: str | None = None,
    *,
    split: str = "test",
    which: str = "best",
    reading: Reading | None = None,
    on_progress=None,
) -> Evaluation:
    """Measure a run on a split of its own data, or of other data with the same classes.

    A look at the run's own test split is written into the run, because a number is worth less with each look.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'. {did_you_mean(split, SPLITS)}")
    check_weights(which)
    run = run if isinstance(run, Run) else load_run(run)
    reading = reading or Reading()
    dataset = open_dataset(
        data or run.recipe.data,
        root=reading.root,
        download=reading.download,
        channels=run.preprocessing().channels,
        on_bad_image=run.recipe.on_bad_image,
        class_names=run.class_names,
    )
    trained_on = run.info.get("data", {}).get("fingerprint")
    own = data is None or _same_source(data, run.recipe.data) or dataset.fingerprint == trained_on
    if own and trained_on not in (None, dataset.fingerprint):
        dataset.notes.append(
            f"{dataset.name} has changed since the training, so its splits may differ from those used then"
        )
    images = _choose_split(dataset, split, run, own)
    source = load_split(images, split, reading=reading, on_progress=on_progress, **run.preprocessing().fit_args())
    logits = predict_logits(run.load_model(which), source, run.preprocessing(), on_progress=on_progress)
    result = measure(logits, source.labels, run.class_names, data=dataset.name, split=split)
    result.own, result.weights, result.notes = own, which, dataset.notes
    write_text(run.path / result.file_name, result.to_json())
    if own and split == "test":
        run.update(test_looks=run.info.get("test_looks", 0) + 1)
    return result


def check_weights(which: str) -> None:
    if which not in WEIGHTS:
        raise UserError(f"unknown weights '{which}'. {did_you_mean(which, WEIGHTS)}")


def _same_source(data: str | Path, other: str | Path) -> bool:
    """Whether two descriptions of data mean the same files or the same named dataset."""
    name, path = match_name(str(data)), Path(data).expanduser()
    if name or not path.exists():
        return str(data) == str(other) or (name is not None and name == match_name(str(other)))
    return path.resolve() == Path(other).expanduser().resolve()


def _choose_split(dataset: Dataset, split: str, run: Run, own: bool) -> Images:
    if own and split != "test" and "train" in dataset.splits:
        train, val = split_training(dataset, run.recipe)  # as the run divided them: no image is in both
        return train if split == "train" else val
    if split not in dataset.splits:
        held = ", ".join(sorted(dataset.splits))
        hint = "; --split val shows the part held out of training" if own else ""
        raise UserError(f"{dataset.name} has no {split} split (it has {held}){hint}.")
    return dataset.splits[split]


@torch.inference_mode()
def predict_logits(
    model: nn.Module, source, preprocessing: Preprocessing, *, batch_size: int = 256, on_progress=None
) -> Tensor:
    """Class scores of every image of a split, in its order."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device).eval()
    parts, done = [], 0
    for batch in eval_batches(source, preprocessing.normalize, batch_size=batch_size, device=device):
        parts.append(model(batch["image"]).float().cpu())
        done += len(parts[-1])
        if on_progress:
            on_progress("predicting", done, len(source))
    return torch.cat(parts)


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


def read_evaluation(run: Run) -> Evaluation:
    """What a run reached on its own test split, as it was written when that was looked at."""
    return Evaluation(**json.loads((run.path / "evaluation-test.json").read_text()))


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % confidence interval of a proportion; unlike the normal one it stays inside 0..1 and holds for few trials."""
    p = successes / trials
    centre = p + z * z / (2 * trials)
    spread = z * (p * (1 - p) / trials + z * z / (4 * trials**2)) ** 0.5
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
