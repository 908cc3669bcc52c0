"""Predict: class names and probabilities for image files and folders."""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.sources.images import IMAGE_SUFFIXES, BadImage, FileImages, load_image
from vitling.deploy.predictor import Predictor, open_predictor
from vitling.diagnose.overlay import attention_map, check_attention, draw_overlay
from vitling.errors import UserError
from vitling.files import check_path, new, replacing, what_else
from vitling.runs.run import Run

BATCH = 64
AHEAD = 4  # batches that the threads may be ahead of the model: it never waits, and memory stays bounded
ATTENTION_BATCH = 8  # attention weights of all layers are kept at once


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one image, best first; none of an image that was skipped."""

    path: str
    classes: list[str]
    probabilities: list[float]
    skipped: str | None = None  # why the image could not be used
    attention: str | None = None  # the picture of where the model looked


def predict(
    model: Run | str | Path,
    images: list[str | Path] | str | Path,
    *,
    top: int = 3,
    which: str = "best",
    calibrated: bool = True,
    attention: str | Path | None = None,
    skip_bad_images: bool = False,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> list[Prediction]:
    """The classes that a model sees in files, and in all images of folders, in the order given.

    The model is whatever `open_model` opens and names its classes: a run, or what was exported from one. Probabilities are calibrated
    by the temperature that fits the run's validation images (`reading` says where those lie). `attention` is a new folder for pictures of where the model
    looked. An image that cannot be read is an error; with `skip_bad_images` its prediction says why there is none.
    """
    paths = find_images([images] if isinstance(images, (str, Path)) else images)
    predictor = open_predictor(model, which=which, calibrated=calibrated, reading=reading, callback=callback)
    pictures = _name_pictures(paths, attention, predictor) if attention else None
    predictions: list[Prediction] = []
    for batch in _fitted_batches(paths, predictor):
        bad = next((image for image in batch if isinstance(image, BadImage)), None)
        if bad and not skip_bad_images:
            remedy = "Repair or remove it, or leave such images out with skip_bad_images."
            raise BadImage(bad.name, bad.reason, remedy)
        part = slice(len(predictions), len(predictions) + len(batch))
        predictions += _predict_batch(predictor, paths[part], batch, pictures[part] if pictures else None, top)
        if callback:
            callback.on_progress("predicting", len(predictions), len(paths))
    if all(p.skipped is not None for p in predictions):
        first = predictions[0]
        raise UserError(f"none of the {len(paths)} images can be used, the first: {first.path}: {first.skipped}.")
    return predictions


def _predict_batch(
    predictor: Predictor,
    paths: list[Path],
    images: list[np.ndarray | BadImage],
    pictures: list[Path] | None,
    top: int,
) -> list[Prediction]:
    good = {i: image for i, image in enumerate(images) if not isinstance(image, BadImage)}
    predictions = [
        Prediction(str(path), [], [], getattr(image, "reason", None)) for path, image in zip(paths, images, strict=True)
    ]
    if not good:
        return predictions
    pixels = torch.from_numpy(np.stack(list(good.values())))
    names = predictor.class_names
    shares, order = predictor.probabilities(pixels).topk(min(top, len(names)), dim=1)
    if pictures:
        _draw(predictor, pixels, [pictures[i] for i in good])
    for i, row, probabilities in zip(good, order.tolist(), shares.tolist(), strict=True):
        predictions[i] = replace(
            predictions[i],
            classes=[names[k] for k in row],
            probabilities=[round(p, 6) for p in probabilities],
            attention=str(pictures[i]) if pictures else None,
        )
    return predictions


def _fitted_batches(paths: list[Path], predictor: Predictor) -> Iterator[list[np.ndarray | BadImage]]:
    """Images in the model's size and in order, decoded by threads while the model is at work on the batch before."""
    seen = predictor.model.preprocessing
    files = FileImages(paths, np.zeros(len(paths), dtype=np.int64))
    files.alpha = seen.channels == 4
    fit_args = seen.fit_args()

    def load(i: int) -> np.ndarray | BadImage:
        try:
            return load_image(files, i, **fit_args)
        except BadImage as error:
            return error

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        ahead: deque[list[Future]] = deque()
        try:
            for start in range(0, len(files), BATCH):
                ahead.append([pool.submit(load, i) for i in range(start, min(start + BATCH, len(files)))])
                if len(ahead) > AHEAD:
                    yield [image.result() for image in ahead.popleft()]
            while ahead:
                yield [image.result() for image in ahead.popleft()]
        finally:
            pool.shutdown(cancel_futures=True)


# Pictures of attention


def _name_pictures(paths: list[Path], folder: str | Path, predictor: Predictor) -> list[Path]:
    """A file in the new folder for each image, by its name; equal names are numbered."""
    check_attention(predictor.model.module)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"attention={folder} exists already; name a new folder, so that nothing is overwritten.")
    taken: set[str] = set()
    pictures = []
    for path in paths:
        name, number = path.stem, 1
        while name in taken:
            number += 1
            name = f"{path.stem}-{number}"
        taken.add(name)
        pictures.append(folder / f"{name}.png")
    return pictures


def _draw(predictor: Predictor, pixels: Tensor, pictures: list[Path]) -> None:
    network, normalize = predictor.model.module, predictor.model.preprocessing.normalize
    device = next(network.parameters()).device
    for start in range(0, len(pixels), ATTENTION_BATCH):
        part = slice(start, start + ATTENTION_BATCH)
        masks = attention_map(network, normalize(pixels[part].to(device)))
        for image, mask, path in zip(pixels[part], masks, pictures[part], strict=True):
            with replacing(path, ours=new) as temporary:
                draw_overlay(image, mask).save(temporary)


# Which images


def find_images(given: list[str | Path]) -> list[Path]:
    """The given files, and the images below the given folders in the order of their names."""
    found = []
    for path in map(check_path, given):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
            if not inside:
                raise UserError(
                    f"no images in {path}; files ending in {', '.join(sorted(IMAGE_SUFFIXES)[:6])} ... are read."
                )
            found += inside
        elif path.exists():
            if other := what_else(path):
                raise UserError(f"{path} is {other}, not an image.")
            found.append(path)
        else:
            raise UserError(f"no image at {path}.")
    if not found:
        raise UserError("no images are given; name files or folders.")
    return found


def read_paths(stream: BinaryIO, *, null: bool = False) -> list[str]:
    """Paths from a stream, one per line, or with NUL between them as `find -print0` writes; any bytes a file name may have."""
    separator = b"\0" if null else b"\n"
    parts = [part if null else part.removesuffix(b"\r") for part in stream.read().split(separator)]
    paths = [os.fsdecode(part) for part in parts if part]
    if not paths:
        raise UserError(
            "standard input names no images; give one path per line, or with null=True what `find -print0` writes."
        )
    return paths
