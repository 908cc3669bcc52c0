"""Predict: class names and probabilities for image files and folders."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitling.data.decode import map_threads
from vitling.data.images import IMAGE_SUFFIXES, BadImage, FileImages, load_image
from vitling.data.prepare import Reading, load_split
from vitling.errors import UserError
from vitling.evaluate import check_weights, predict_logits
from vitling.run import Run, load_run


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one image, best first; none of an image that was skipped."""

    path: str
    classes: list[str]
    probabilities: list[float]
    skipped: str | None = None  # why the image could not be used


def predict(
    run: Run | str | Path,
    images: list[str | Path] | str | Path,
    *,
    top: int = 3,
    which: str = "best",
    skip_bad_images: bool = False,
    reading: Reading | None = None,
    on_progress=None,
) -> list[Prediction]:
    """The classes that a run sees in files, and in all images of folders, in the order given.

    An image that cannot be read is an error; with `skip_bad_images` its prediction says why there is none.
    """
    check_weights(which)
    run = run if isinstance(run, Run) else load_run(run)
    seen, model = run.preprocessing(), run.load_model(which)
    paths = find_images([images] if isinstance(images, (str, Path)) else images)
    files = FileImages(paths, np.zeros(len(paths), dtype=np.int64))
    files.alpha = seen.channels == 4
    bad = _find_bad(files, seen.fit_args()) if skip_bad_images else {}
    if len(bad) == len(files):
        raise UserError(f"none of the {len(files)} images can be used, the first: {files.names[0]}: {bad[0]}.")
    good = [i for i in range(len(files)) if i not in bad]
    try:
        source = load_split(
            files.subset(good), "images", reading=reading or Reading(), on_progress=on_progress, **seen.fit_args()
        )
        logits = predict_logits(model, source, seen, on_progress=on_progress)
    except BadImage as error:
        remedy = "Repair or remove it, or leave such images out with --skip-bad-images (skip_bad_images=True)."
        raise BadImage(error.name, error.reason, remedy) from None
    probabilities, order = logits.softmax(1).topk(min(top, logits.shape[1]))
    names = np.array(run.class_names)
    predictions = {i: Prediction(str(paths[i]), [], [], reason) for i, reason in bad.items()}
    for i, row, shares in zip(good, order.numpy(), probabilities.tolist(), strict=True):
        predictions[i] = Prediction(str(paths[i]), names[row].tolist(), [round(p, 6) for p in shares])
    return [predictions[i] for i in range(len(paths))]


def _find_bad(files: FileImages, fit_args: dict) -> dict[int, str]:
    """The images that cannot be used, and why; each is tried once, as it will be read."""

    def reason(i: int) -> str | None:
        try:
            load_image(files, i, **fit_args)
        except BadImage as error:
            return error.reason
        return None

    return {i: why for i, why in enumerate(map_threads(reason, range(len(files)))) if why is not None}


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
