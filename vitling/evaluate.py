"""Evaluate a run: top-1, top-5, macro-F1, per class, calibration and the confusion matrix."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vitling.data.loader import eval_batches
from vitling.data.prepare import Preprocessing, Reading, load_split
from vitling.data.sources import open_dataset
from vitling.errors import UserError
from vitling.files import write_text
from vitling.run import Run, load_run

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
    run = run if isinstance(run, Run) else load_run(run)
    reading = reading or Reading()
    own = data is None or data == run.recipe.data
    dataset = open_dataset(
        data or run.recipe.data,
        root=reading.root,
        download=reading.download,
        channels=run.preprocessing().channels,
        on_bad_image=run.recipe.on_bad_image,
        class_names=None if own else run.class_names,
    )
    images = _choose_split(dataset, split, run, own)
    source = load_split(images, split, reading=reading, on_progress=on_progress, **run.preprocessing().fit_args())
    logits = predict_logits(run.load_model(which), source, run.preprocessing(), on_progress=on_progress)
    result = measure(logits, source.labels, run.class_names, data=dataset.name, split=split)
    write_text(run.path / f"evaluation-{split}.json", result.to_json())
    if own and split == "test":
        run.update(test_looks=run.info.get("test_looks", 0) + 1)
    return result


def _choose_split(dataset, split: str, run: Run, own: bool):
    if own and split == "val" and "val" not in dataset.splits:
        from vitling.data.prepare import split_training

        return split_training(dataset, run.recipe)[1]
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
    )


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % confidence interval of a proportion; unlike the normal one it stays inside 0..1 and holds for few trials."""
    p = successes / trials
    centre = p + z * z / (2 * trials)
    spread = z * (p * (1 - p) / trials + z * z / (4 * trials**2)) ** 0.5
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
