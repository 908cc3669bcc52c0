"""Predict: class names and probabilities for image files and folders."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from vitling.callbacks import Callback
from vitling.data.pipeline.cache import Loading, open_cache
from vitling.data.sources.images import BadImage, FileImages
from vitling.deploy.inputs import list_inputs
from vitling.deploy.predictor import BATCH, GradePrediction, LabelPrediction, NumberPrediction, Prediction, Predictor
from vitling.errors import UserError
from vitling.files import new, replacing
from vitling.reports.frame import make_frame

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

    from vitling.data.pipeline.reading import Reading
    from vitling.runs.run import Run

AHEAD = 4  # batches that the threads may be ahead of the model: it never waits, and memory stays bounded
ATTENTION_BATCH = 8  # attention weights of all layers are kept at once


class PredictionList(list[Prediction]):
    """Predictions in the order of the images."""

    def to_frame(self) -> "DataFrame":
        """A row per image: its path, the likeliest class and its probability, then the next ones, numbered from 2."""
        if any(isinstance(prediction, LabelPrediction) for prediction in self):
            return self._label_frame()
        if any(isinstance(prediction, NumberPrediction) for prediction in self):
            return self._number_frame()
        most = max((len(prediction.classes) for prediction in self), default=1)
        numbers = ["", *(f"_{place}" for place in range(2, most + 1))]
        rows = []
        for found in self:
            ranked = dict(zip(numbers, zip(found.classes, found.probabilities, strict=True), strict=False))
            row: dict[str, Any] = {"path": found.path}
            for number in numbers:
                row[f"class{number}"], row[f"probability{number}"] = ranked.get(number, (None, None))
            if isinstance(found, GradePrediction):
                row["expected"] = found.expected
            rows.append({**row, "skipped": found.skipped, "attention": found.attention})
        ranks = [name for number in numbers for name in (f"class{number}", f"probability{number}")]
        ranks += ["expected"] if any(isinstance(found, GradePrediction) for found in self) else []
        return make_frame(rows, ["path", *ranks, "skipped", "attention"])

    def _number_frame(self) -> "DataFrame":
        """Of numbers: a row per image, its value and the ends of the prediction interval."""
        rows = []
        for found in self:
            value = found.value if isinstance(found, NumberPrediction) else None
            low, high = (isinstance(found, NumberPrediction) and found.interval) or (None, None)
            known = {"path": found.path, "value": value, "low": low, "high": high}
            rows.append({**known, "skipped": found.skipped, "attention": found.attention})
        return make_frame(rows, ["path", "value", "low", "high", "skipped", "attention"])

    def _label_frame(self) -> "DataFrame":
        """Of several labels: a row per image, the labels that it has, and a column for the probability of each."""
        names = list(dict.fromkeys(name for found in self for name in sorted(found.classes)))
        rows = []
        for found in self:
            shares = dict(zip(found.classes, found.probabilities, strict=True))
            has = ";".join(found.labels) if isinstance(found, LabelPrediction) and found.skipped is None else None
            known = {"path": found.path, "labels": has, **{f"probability {name}": shares.get(name) for name in names}}
            rows.append({**known, "skipped": found.skipped, "attention": found.attention})
        return make_frame(rows, ["path", "labels", *(f"probability {name}" for name in names), "skipped", "attention"])


def predict(
    model: "Run | str | Path",
    images: Any,
    *,
    top: int | None = None,
    which: str = "best",
    tta: bool = False,
    calibrated: bool = True,
    attention: str | Path | None = None,
    skip_bad_images: bool = False,
    reading: "Reading | None" = None,
    callback: Callback | None = None,
) -> PredictionList:
    """The classes that a model sees in files, in all images of folders, or in images in memory, in the order given.

    `images` are whatever a `Predictor` takes: paths, one or a list or a column of them; bytes of files; Pillow images; arrays of uint8 or
    uint16. What has no path is called images[0] and so on.

    Three classes are given unless `top` says how many; of a model of several labels per image, every label, and those that the image has.
    The model is whatever `open_model` opens and names its classes: a run, or what was exported from one. With `tta`, the
    model is asked about every view of an image that its training fits as well: its mirror image where that mirrored, its corners where that
    cut resized crops, and the image moved where that moved padded crops; of a model whose training is not known, mirror images and corners.
    Probabilities are calibrated by the temperature that fits the run's validation images (`reading` says where those lie). `attention` is a
    new folder for pictures of where the model looked. An image that cannot be read is an error; with `skip_bad_images` its prediction says why there is none.
    """
    predictor = Predictor(model, which=which, tta=tta, calibrated=calibrated, reading=reading, callback=callback)
    predictor.check_top(top)
    given = list_inputs(images, predictor.preprocessing.channels)
    items, paths = given.images, [Path(name) for name in given.names]
    if not items:
        raise UserError("no images are given; name files or folders.")
    pictures = _name_pictures(paths, attention, predictor) if attention else None
    predictions = PredictionList()
    for batch in _fitted_batches(items, paths, predictor, reading, callback):
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
    top: int | None,
) -> list[Prediction]:
    good = {i: image for i, image in enumerate(images) if not isinstance(image, BadImage)}
    predictions = [
        predictor.nothing(str(path), getattr(image, "reason", None)) for path, image in zip(paths, images, strict=True)
    ]
    if not good:
        return predictions
    pixels = np.stack(list(good.values()))
    if pictures:
        _draw(predictor, pixels, [pictures[i] for i in good])
    for i, shares in zip(good, predictor.pixel_probabilities(pixels), strict=True):
        found = predictor.best(predictions[i].path, shares, top)
        predictions[i] = replace(found, attention=str(pictures[i]) if pictures else None)
    return predictions


def _fitted_batches(
    items: Sequence[Any], paths: list[Path], predictor: Predictor, reading: "Reading | None", callback: Callback | None
) -> Iterator[list[np.ndarray | BadImage]]:
    """Images in the model's size and in order, decoded by threads while the model is at work on the batch before."""
    seen = predictor.preprocessing
    files = FileImages(paths, np.zeros(len(paths), dtype=np.int64))
    files.alpha = seen.channels == 4
    cache = reading.open_cache() if reading else open_cache()
    loading = Loading(
        lambda i: predictor.fit(items[i], str(paths[i])),
        cache.shelf(files, **seen.fit_args()) if cache and all(isinstance(item, Path) for item in items) else None,
        bytes_each=seen.channels * seen.size[0] * seen.size[1],
        callback=callback,
    )

    def load(i: int) -> np.ndarray | BadImage:
        try:
            return loading(i)
        except BadImage as error:
            return error

    with loading, ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        ahead: deque[list[Future]] = deque()
        try:
            for start in range(0, len(paths), BATCH):
                ahead.append([pool.submit(load, i) for i in range(start, min(start + BATCH, len(paths)))])
                if len(ahead) > AHEAD:
                    yield [image.result() for image in ahead.popleft()]
            while ahead:
                yield [image.result() for image in ahead.popleft()]
        finally:
            pool.shutdown(cancel_futures=True)


# Pictures of attention


def _name_pictures(paths: list[Path], folder: str | Path, predictor: Predictor) -> list[Path]:
    """A file in the new folder for each image, by its name; equal names are numbered."""
    from vitling.diagnose.overlay import check_attention  # which imports torch

    check_attention(_network(predictor))
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


def _network(predictor: Predictor) -> "nn.Module":
    """The network, to look inside it."""
    from vitling.runs.opening import only_outputs  # which imports torch

    if predictor.opened is None:
        raise only_outputs(predictor.name, "an exported file")
    return predictor.opened.module


def _draw(predictor: Predictor, pixels: np.ndarray, pictures: list[Path]) -> None:
    # Only for pictures: an exported file predicts without torch.
    import torch

    from vitling.diagnose.overlay import attention_map, draw_overlay  # which imports torch

    network, normalize = _network(predictor), predictor.preprocessing.normalize
    device = next(network.parameters()).device
    for start in range(0, len(pixels), ATTENTION_BATCH):
        part = torch.from_numpy(pixels[start : start + ATTENTION_BATCH])
        masks = attention_map(network, normalize(part.to(device)))
        for image, mask, path in zip(part, masks, pictures[start : start + ATTENTION_BATCH], strict=True):
            with replacing(path, ours=new) as temporary:
                draw_overlay(image, mask).save(temporary)


# Which images


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
