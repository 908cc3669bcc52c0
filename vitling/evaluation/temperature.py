"""Temperature: one number that makes a model's probabilities mean what they say (Guo et al. 2017).

Logits are divided by it before the softmax, or before the sigmoid of each of several labels. It is fitted on the validation split, which the weights were not trained on, and kept
in the run's calibration.json; the order of the classes, and so the accuracy, stays as it is.
"""

import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.targets import Target
from vitling.errors import UserError
from vitling.evaluation.calibration import expected_calibration_error, label_calibration_error
from vitling.evaluation.predictions import Predictions, predict_validation
from vitling.files import json_with, write_text
from vitling.runs.run import WEIGHTS, Run, check_weights, load_run
from vitling.validation.documents import read_json
from vitling.validation.values import Count, Range, Share

LARGEST = 20.0  # beyond this, and below its inverse, a temperature only says that the model knows nothing or everything
Loss = Annotated[float, Range(0, 1e9)]


class CalibrationRecord(TypedDict):
    """An entry of calibration.json."""

    temperature: Annotated[float, Range(1 / LARGEST - 1e-6, LARGEST + 1e-6)]
    images: Count
    loss_before: Loss
    loss_after: Loss
    ece_before: Share
    ece_after: Share
    weights: str


@dataclass(frozen=True)
class Calibration:
    """A temperature and what it does on the validation images: mean cross-entropy and calibration error, before and after."""

    temperature: float
    images: int
    loss_before: float
    loss_after: float
    ece_before: float
    ece_after: float
    weights: str  # SHA-256 of the weights it belongs to


def calibrate(
    run: Run | str | Path,
    which: str = "best",
    *,
    predictions: Predictions | None = None,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Calibration:
    """The temperature of a run's weights: as kept in the run, or fitted now and kept.

    `predictions` are those of these weights on the validation images, where they are known already.
    """
    check_weights(which)
    run = run if isinstance(run, Run) else load_run(run)
    digest, kept = run.weights_digest(which), _read(run)
    if digest and which in kept and kept[which]["weights"] == digest:
        return Calibration(**{name: kept[which][name] for name in CalibrationRecord.__required_keys__})
    if predictions is None:  # load_model refuses a run that has no weights yet
        predictions = predict_validation(run, run.load_model(which), reading=reading, callback=callback)
    result = _fit(predictions, digest, run.target)
    with contextlib.suppress(UserError):  # a run on a disk that is read-only or full: it is fitted again next time
        text = json.dumps({**kept, which: asdict(result)}, indent=1)
        write_text(run.path / "calibration.json", text, ours=_is_calibration)
        run.publish()
    return result


def _fit(predictions: Predictions, digest: str, target: Target) -> Calibration:
    if target.kind == "several":
        return _fit_several(predictions.logits, predictions.targets, digest)
    labels = predictions.labels
    if target.kind == "numbers":  # as classes, they are their bins
        labels = torch.as_tensor(target.numbers.place(predictions.targets.numpy()))
    temperature = fit_temperature(predictions.logits, labels)
    before, after = predictions.logits, predictions.logits / temperature
    return Calibration(
        temperature=round(temperature, 6),
        images=len(labels),
        loss_before=F.cross_entropy(before, labels).item(),
        loss_after=F.cross_entropy(after, labels).item(),
        ece_before=expected_calibration_error(before.double().softmax(1), labels).item(),
        ece_after=expected_calibration_error(after.double().softmax(1), labels).item(),
        weights=digest,
    )


def _fit_several(logits: Tensor, targets: Tensor, digest: str) -> Calibration:
    temperature = fit_label_temperature(logits, targets)
    before, after, truth = logits.double(), logits.double() / temperature, targets.double()
    return Calibration(
        temperature=round(temperature, 6),
        images=len(targets),
        loss_before=F.binary_cross_entropy_with_logits(before, truth).item(),
        loss_after=F.binary_cross_entropy_with_logits(after, truth).item(),
        ece_before=label_calibration_error(before.sigmoid(), truth).item(),
        ece_after=label_calibration_error(after.sigmoid(), truth).item(),
        weights=digest,
    )


def fit_label_temperature(logits: Tensor, targets: Tensor) -> float:
    """The same of several labels per image: one temperature for all of them, with the least cross-entropy per label."""
    logits, unsure = logits.double(), 1 / (len(targets) + 2)
    smoothed = targets.double() * (1 - unsure) + unsure / 2

    def loss(log_temperature: float) -> float:
        return F.binary_cross_entropy_with_logits(logits / math.exp(log_temperature), smoothed).item()

    return _lowest(loss)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the least cross-entropy, between 1/20 and 20.

    A share of 1 / (N + 2) of every label goes to all classes equally, as in Platt's scaling: where all of N predictions are correct, the
    plain optimum would be a temperature of zero, which calls every future answer certain.
    """
    if logits.ndim != 2 or len(logits) != len(labels) or not len(logits):
        raise UserError(
            f"logits of shape {tuple(logits.shape)} and {len(labels)} labels; expected (images, classes) and (images,)."
        )
    logits, unsure = logits.double(), 1 / (len(labels) + 2)

    def loss(log_temperature: float) -> float:
        return F.cross_entropy(logits / math.exp(log_temperature), labels, label_smoothing=unsure).item()

    return _lowest(loss)


def _lowest(loss: Callable[[float], float]) -> float:
    """The temperature with the least loss, which is a function of its logarithm: convex in 1 / temperature, so there is one valley."""
    from scipy.optimize import minimize_scalar  # takes long to import

    edge = math.log(LARGEST)
    return math.exp(minimize_scalar(loss, bounds=(-edge, edge), method="bounded").x)


def _is_calibration(path: Path) -> bool:
    return any(json_with(which)(path) for which in WEIGHTS)


def _read(run: Run) -> dict:
    """What was fitted before. A file that is corrupted or missing is fitted and written again: it holds nothing that is not known."""
    try:
        return read_json(run.path / "calibration.json", dict[str, CalibrationRecord])
    except UserError:
        return {}
