"""Predict: class names and probabilities for image files and folders."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitling.data.images import IMAGE_SUFFIXES, FileImages
from vitling.data.prepare import Reading, load_split
from vitling.errors import UserError
from vitling.evaluate import predict_logits
from vitling.run import Run, load_run


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one image, best first."""

    path: str
    classes: list[str]
    probabilities: list[float]


def predict(
    run: Run | str | Path,
    images: list[str | Path] | str | Path,
    *,
    top: int = 3,
    which: str = "best",
    reading: Reading | None = None,
    on_progress=None,
) -> list[Prediction]:
    """The classes that a run sees in files, and in all images of folders."""
    run = run if isinstance(run, Run) else load_run(run)
    paths = find_images([images] if isinstance(images, (str, Path)) else images)
    files = FileImages(paths, np.zeros(len(paths), dtype=np.int64))
    source = load_split(
        files, "images", reading=reading or Reading(), on_progress=on_progress, **run.preprocessing().fit_args()
    )
    logits = predict_logits(run.load_model(which), source, run.preprocessing(), on_progress=on_progress)
    probabilities, order = logits.softmax(1).topk(min(top, logits.shape[1]))
    names = np.array(run.class_names)
    return [
        Prediction(str(path), names[row].tolist(), [round(p, 6) for p in shares])
        for path, row, shares in zip(paths, order.numpy(), probabilities.tolist(), strict=True)
    ]


def find_images(given: list[str | Path]) -> list[Path]:
    """The given files, and the images below the given folders in the order of their names."""
    found = []
    for path in map(Path, given):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
            if not inside:
                raise UserError(
                    f"no images in {path}; files ending in {', '.join(sorted(IMAGE_SUFFIXES)[:6])} ... are read."
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UserError(f"no image at {path}.")
    return found
