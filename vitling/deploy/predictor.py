"""Predictor: a model to predict with, from whatever names one. An exported file is opened without torch, within a second."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

import vitling
from vitling.callbacks import Callback
from vitling.data.bins import Values
from vitling.data.targets import CLASSES, Kind, Target
from vitling.data.threads import map_threads
from vitling.deploy.inputs import Inputs, fit_input, list_inputs
from vitling.errors import UserError
from vitling.runs.exported import find_exported, open_exported
from vitling.validation.values import Range, check

if TYPE_CHECKING:
    from vitling.data.pipeline.reading import Reading
    from vitling.runs.metadata import ModelMetadata
    from vitling.runs.opening import OpenedModel
    from vitling.runs.run import Run

BATCH = 64
SHOWN = 3  # classes of an image, unless others are asked for
Top = Annotated[int, Range(1, 10_000_000)]


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one image, best first; none of an image that was skipped."""

    path: str  # of the file, or what messages call the image
    classes: list[str]
    probabilities: list[float]
    skipped: str | None = None  # why the image could not be used
    attention: str | None = None  # the picture of where the model looked


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """The same of a model of several labels per image: every label with its probability, and those that the image has."""

    labels: list[str] = field(default_factory=list)  # whose probability is at or above their threshold


@dataclass(frozen=True)
class GradePrediction(Prediction):
    """The same of a model of grades: the classes, and the mean of the distribution over them."""

    expected: float | None = None  # in the unit of the grades; of the distribution as trained


@dataclass(frozen=True)
class NumberPrediction(Prediction):
    """The number that a model of numbers predicts, and its 90 % prediction interval; it has no classes."""

    value: float | None = None
    interval: tuple[float, float] | None = None


class Predictor:
    """Images in, classes and probabilities out. Several threads may share one."""

    name: str
    opened: "OpenedModel | None"  # None of an exported file
    class_names: list[str]
    temperature: float | None  # None: the probabilities are the model's own, not calibrated
    labels: Kind  # what it gives for an image
    target: Target  # the same with its bins or grades
    thresholds: np.ndarray | None  # of several labels: from which probability on an image has each

    def __init__(
        self,
        source: "Run | str | os.PathLike",
        *,
        which: str = "best",
        tta: bool = False,
        calibrated: bool = True,
        reading: "Reading | None" = None,
        callback: Callback | None = None,
    ):
        """Open a model that names its classes: a run (`which` of its weights, best or last), or what was exported from one.

        With `tta`, images are asked about as training showed them as well: mirrored, moved, or their corners. With `calibrated`, logits are divided by the model's temperature: as an exported file says it, or as fitted on the run's
        validation images (`reading` says where those lie). Where there is none, the callback's log gets the reason, or a
        warning is given, and the probabilities are the model's own.
        """
        metadata: ModelMetadata | None
        path = find_exported(source)
        if path is not None:
            if which != "best":
                raise UserError(f"which={which} is for runs; {path.name} has only one set of weights.")
            if tta:
                raise UserError(
                    f"tta is for runs; what {path.name} asks about was fixed when it was exported: train with test_mirror, test_crops or test_shifts."
                )
            model = open_exported(path)
            self.name, self.opened, metadata = path.name, None, model.metadata
            self.preprocessing, self.class_names = metadata.preprocessing, metadata.class_names
            self._logits: Callable[[np.ndarray], np.ndarray] = model
        else:
            self.opened = _open_with_torch(source, which, callback)
            if tta:
                shown = self.opened.run.recipe.augment if self.opened.run else None
                self.opened.preprocessing = self.opened.preprocessing.with_views(shown)
            self.name, metadata = self.opened.name, self.opened.metadata
            if self.opened.class_names is None:
                raise UserError(f"{self.name} does not name its classes; give a run, or what was exported from one.")
            self.preprocessing, self.class_names = self.opened.preprocessing, self.opened.class_names
            self._logits = _torch_logits(self.opened)
        self.temperature = None
        self.labels = metadata.labels if metadata else "classes"
        self.target = metadata.target if metadata else CLASSES
        run = self.opened.run if self.opened else None
        log = callback.log if callback else warnings.warn
        if calibrated:
            try:
                self.temperature = _temperature(self.name, run, metadata, which, reading, callback)
            except UserError as error:
                log(str(error))
        self.thresholds = None
        if self.labels == "several":
            found = _thresholds(self.name, run, metadata, which, reading, callback, log)
            self.thresholds = found if calibrated else _uncalibrated(found, run, metadata, which, reading)

    @property
    def calibrated(self) -> bool:
        return self.temperature is not None

    def __call__(self, images: Any, *, top: int | None = None) -> "Prediction | list[Prediction]":
        """The likeliest classes of an image, or of each of many: three, or every one of several labels, unless `top` says how many.

        An image is a path, the bytes of a file (or an open one), a Pillow image, or an array or tensor of uint8 or uint16:
        height x width, with the channels last or first. A list, an array of four axes or a folder are many.
        """
        self.check_top(top)
        inputs = list_inputs(images, self.preprocessing.channels)
        found = [self.best(name, row, top) for name, row in zip(inputs.names, self._predict(inputs), strict=True)]
        return found[0] if inputs.single else found

    def probabilities(self, images: Any) -> np.ndarray:
        """(images, classes), float32, in the order of `class_names`; of images as for calling it."""
        return self._predict(list_inputs(images, self.preprocessing.channels))

    def _predict(self, inputs: Inputs) -> np.ndarray:
        def fit(i: int) -> np.ndarray:
            return self.fit(inputs.images[i], inputs.names[i])

        parts = [np.zeros((0, len(self.class_names)), np.float32)]
        for start in range(0, len(inputs.images), BATCH):
            numbers = range(start, min(start + BATCH, len(inputs.images)))
            fitted = [fit(start)] if len(numbers) == 1 else list(map_threads(fit, numbers))
            parts.append(self.pixel_probabilities(np.stack(fitted)))
        return np.concatenate(parts)

    def fit(self, image: Any, name: str = "the image") -> np.ndarray:
        """One image as the model sees it: uint8 of (channels, height, width). What cannot be used is a `BadImage`."""
        return fit_input(image, self.preprocessing, name)

    def pixel_probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """(B, classes) of images that `fit` has brought to the model's size, (B, C, H, W)."""
        logits = self._logits(pixels).astype(np.float32, copy=False) / np.float32(self.temperature or 1.0)
        if self.labels == "several":
            return _sigmoid(logits)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def check_top(self, top: int | None) -> None:
        """Refuse a number of classes that cannot be given."""
        check(top, Top | None, "top")
        if top is not None and self.labels == "numbers":
            raise UserError(f"top={top} is a number of classes, and {self.name} predicts numbers; leave it out.")

    def values(self, probabilities: np.ndarray) -> Values:
        """The numbers that probabilities of bins, (images, bins), stand for, of a model that predicts numbers."""
        return Values.of(self._log(probabilities), self.target.numbers, self.temperature or 1.0)

    def _log(self, probabilities: np.ndarray) -> np.ndarray:
        """Logits as trained, which the temperature divided; what was rounded to 0 stays next to that."""
        return np.log(np.maximum(probabilities.astype(np.float64), 1e-300)) * (self.temperature or 1.0)

    def _number(self, name: str, probabilities: np.ndarray) -> NumberPrediction:
        values = self.values(probabilities[None])
        ends = (_rounded(values.low[0]), _rounded(values.high[0]))
        return NumberPrediction(name, [], [], value=_rounded(values.number[0]), interval=ends)

    def _expected(self, probabilities: np.ndarray) -> float:
        logits = self._log(probabilities)
        shares = np.exp(logits - logits.max())
        return _rounded((shares / shares.sum()) @ self.target.grades)

    def best(self, name: str, probabilities: np.ndarray, top: int | None = None) -> Prediction:
        """The likeliest classes out of all probabilities of one image; with several labels, those that it has as well."""
        if self.labels == "numbers":
            return self._number(name, probabilities)
        several = self.thresholds is not None
        order = np.argsort(-probabilities, kind="stable")[: top or (None if several else SHOWN)]
        classes, shares = [self.class_names[k] for k in order], [round(float(probabilities[k]), 6) for k in order]
        if self.labels == "grades":
            return GradePrediction(name, classes, shares, expected=self._expected(probabilities))
        if self.thresholds is None:
            return Prediction(name, classes, shares)
        has = [name for name, here in zip(self.class_names, probabilities >= self.thresholds, strict=True) if here]
        return LabelPrediction(name, classes, shares, labels=has)

    def nothing(self, name: str, reason: str | None = None) -> Prediction:
        """What stands for an image that was skipped."""
        return PREDICTIONS[self.labels](name, [], [], reason)


PREDICTIONS: dict[Kind, type[Prediction]] = {
    "classes": Prediction,
    "several": LabelPrediction,
    "grades": GradePrediction,
    "numbers": NumberPrediction,
}


def _rounded(number: float) -> float:
    """To as many digits as float32 has, which is what networks compute in."""
    return float(f"{float(number):.7g}")


def _open_with_torch(source: "Run | str | os.PathLike", which: str, callback: Callback | None) -> "OpenedModel":
    vitling.register_models()  # first: it cures a torchvision that does not match torch
    from vitling.runs.opening import open_model  # which imports torch

    return open_model(Path(source) if isinstance(source, os.PathLike) else source, which=which, callback=callback)


def _torch_logits(opened: "OpenedModel") -> Callable[[np.ndarray], np.ndarray]:
    import torch  # an exported file needs none

    # Copied, because torch warns of arrays that cannot be written to, as those of pictures are.
    return lambda pixels: opened.logits(torch.tensor(pixels)).numpy()


def _thresholds(
    name: str,
    run: "Run | None",
    metadata: "ModelMetadata | None",
    which: str,
    reading: "Reading | None",
    callback: Callback | None,
    log: Callable[[str], object],
) -> np.ndarray:
    """As the file says; of a run, as fitted on its validation images. One half, and the reason, where there are none."""
    assert metadata is not None, "what knows several labels was saved by vitling"
    values = metadata.thresholds
    if run is not None:
        from vitling.evaluation.thresholds import find_thresholds  # which imports torch

        try:
            found = find_thresholds(run, which, reading=reading, callback=callback)
            values = found.values
            if found.reason:
                log(found.reason)
        except UserError as error:
            log(f"every threshold is one half, because the run's validation images cannot be read: {error}")
    elif values is None:
        log(f"{name} was exported without thresholds: every one is one half")
    return np.array(values or [0.5] * len(metadata.class_names), np.float32)


def _uncalibrated(
    thresholds: np.ndarray,
    run: "Run | None",
    metadata: "ModelMetadata | None",
    which: str,
    reading: "Reading | None",
) -> np.ndarray:
    """The same thresholds in the model's own probabilities, so that an image has the same labels."""
    temperature = metadata.temperature if metadata else None
    if run is not None:
        from vitling.evaluation.temperature import calibrate  # which imports torch

        try:
            temperature = calibrate(run, which, reading=reading).temperature
        except UserError:  # then the thresholds are one half, which no temperature moves
            return thresholds
    share = np.clip(thresholds.astype(np.float64), 1e-12, 1 - 1e-12)
    return _sigmoid(np.log(share / (1 - share)) * (temperature or 1.0)).astype(np.float32)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 0.5 * (np.tanh(0.5 * logits) + 1)


def _temperature(
    name: str,
    run: "Run | None",
    metadata: "ModelMetadata | None",
    which: str,
    reading: "Reading | None",
    callback: Callback | None,
) -> float:
    """As the file says; of a run, as fitted on its validation images. An error says why there is none."""
    if run is not None:
        from vitling.evaluation.temperature import calibrate  # which imports torch

        try:
            return calibrate(run, which, reading=reading, callback=callback).temperature
        except UserError as error:
            raise UserError(
                f"probabilities are not calibrated, because the run's validation images cannot be read: {error}"
            ) from None
    if metadata is None or metadata.temperature is None:
        raise UserError(f"{name} was exported without a temperature: its probabilities are not calibrated")
    return metadata.temperature
