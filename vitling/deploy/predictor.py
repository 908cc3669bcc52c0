"""A model to predict with: whatever `open_model` opens, with class names and a temperature."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.errors import UserError
from vitling.evaluation.temperature import calibrate
from vitling.runs.opening import OpenedModel, open_model
from vitling.runs.run import Run


@dataclass
class Predictor:
    """Pixels in, class probabilities out."""

    model: OpenedModel
    temperature: float | None  # None: the probabilities are the model's own, not calibrated

    @property
    def class_names(self) -> list[str]:
        assert self.model.class_names is not None  # `open_predictor` refuses a model without
        return self.model.class_names

    @property
    def calibrated(self) -> bool:
        return self.temperature is not None

    @torch.inference_mode()
    def probabilities(self, pixels: Tensor) -> Tensor:
        """(B, classes), on the CPU, of uint8 images in the model's size."""
        return (self.model.logits(pixels) / (self.temperature or 1.0)).softmax(dim=1)


def open_predictor(
    source: Run | str | Path,
    *,
    which: str = "best",
    calibrated: bool = True,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Predictor:
    """Open a model that names its classes: a run, or what was exported from one.

    With `calibrated`, logits are divided by the model's temperature. Where there is none, the callback's log gets the reason, or a
    warning is given, and the probabilities are the model's own.
    """
    model = open_model(source, which=which, callback=callback)
    if model.class_names is None:
        raise UserError(f"{model.name} does not name its classes; give a run, or what was exported from one.")
    if not calibrated:
        return Predictor(model, None)
    try:
        return Predictor(model, _temperature(model, which, reading, callback))
    except UserError as error:
        (callback.log if callback else warnings.warn)(str(error))
        return Predictor(model, None)


def _temperature(model: OpenedModel, which: str, reading: Reading | None, callback: Callback | None) -> float:
    """As the file says; of a run, as fitted on its validation images. An error says why there is none."""
    if model.run is not None:
        try:
            return calibrate(model.run, which, reading=reading, callback=callback).temperature
        except UserError as error:
            raise UserError(
                f"probabilities are not calibrated, because the run's validation images cannot be read: {error}"
            ) from None
    if model.metadata is None or model.metadata.temperature is None:
        raise UserError(f"{model.name} was exported without a temperature: its probabilities are not calibrated")
    return model.metadata.temperature
