"""Thresholds of several labels: from which probability on an image has a label.

Each is fitted once on the validation images, for the best F1 of its label, in the calibrated probabilities that predictions have, and kept in the
run's thresholds.json. A label without a positive validation image gets one half, and that is said.
"""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.splits import name_some
from vitling.errors import UserError
from vitling.evaluation.predictions import Predictions, predict_validation
from vitling.evaluation.temperature import calibrate
from vitling.files import json_with, write_text
from vitling.runs.run import WEIGHTS, Run, check_weights
from vitling.validation.documents import damaged, read_json
from vitling.validation.values import Count, Share

FILE = "thresholds.json"
UNFITTED = 0.5


class ThresholdsRecord(TypedDict):
    """An entry of thresholds.json."""

    values: list[Share]
    unfitted: list[str]
    images: Count
    weights: str


@dataclass(frozen=True)
class Thresholds:
    """The threshold of each label, in the order of the labels, and those labels whose threshold is only one half."""

    values: list[float]
    unfitted: list[str]
    images: int  # validation images that they were fitted on; 0: on none, whatever the label
    weights: str  # SHA-256 of the weights they belong to

    @property
    def reason(self) -> str:
        """What is to be said of labels without a threshold of their own; empty where there is none."""
        if not self.unfitted:
            return ""
        return f"no validation image has {name_some(self.unfitted, 'the label', 'the labels')}: the threshold is {UNFITTED:g} there, not fitted"


def find_thresholds(
    run: Run,
    which: str = "best",
    *,
    predictions: Predictions | None = None,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Thresholds:
    """The thresholds of a run's weights: as kept in the run, or fitted now and kept; `predictions` as for `calibrate`."""
    check_weights(which)
    digest, kept = run.weights_digest(which), _read(run)
    if digest and which in kept and kept[which]["weights"] == digest:
        known = Thresholds(**{name: kept[which][name] for name in ThresholdsRecord.__required_keys__})
        if len(known.values) != len(run.class_names):
            raise damaged(str(run.path / FILE), "it has not one threshold for each label")
        return known
    if predictions is None:
        predictions = predict_validation(run, run.load_model(which), reading=reading, callback=callback)
    temperature = calibrate(run, which, predictions=predictions).temperature
    scores = (predictions.logits.double() / temperature).sigmoid().numpy()
    result = fit_thresholds(scores, predictions.targets.numpy(), run.class_names, digest)
    with contextlib.suppress(UserError):  # a run on a disk that is read-only or full: they are fitted again next time
        text = json.dumps({**kept, which: asdict(result)}, indent=1, ensure_ascii=False)
        write_text(run.path / FILE, text, ours=_is_thresholds)
        run.publish()
    return result


def no_thresholds(names: list[str]) -> Thresholds:
    """One half for every label, where nothing can be fitted."""
    return Thresholds([UNFITTED] * len(names), [], 0, "")


def fit_thresholds(scores: np.ndarray, truth: np.ndarray, names: list[str], weights: str = "") -> Thresholds:
    """Of each label, from (images, labels): the one with the best F1."""
    values, unfitted = [], []
    for k, name in enumerate(names):
        if truth[:, k].any():
            values.append(best_f1_threshold(scores[:, k], truth[:, k] > 0))
        else:
            values.append(UNFITTED)
            unfitted.append(name)
    return Thresholds(values, unfitted, len(scores), weights)


def best_f1_threshold(scores: np.ndarray, positive: np.ndarray) -> float:
    """The threshold with the best F1; of equal ones the highest. It lies half-way between two scores, where rounding moves no image across."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(positive[order])
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # no threshold divides equal scores
    f1 = 2 * hits[last] / (last + 1 + hits[-1])
    end = last[f1.argmax()]
    below = ranked[end + 1] if end + 1 < len(ranked) else 0.0
    return float((ranked[end] + below) / 2)


def _is_thresholds(path: Path) -> bool:
    return any(json_with(which)(path) for which in WEIGHTS)


def _read(run: Run) -> dict:
    """What was fitted before; as with calibration.json, what is corrupted is fitted and written again."""
    try:
        return read_json(run.path / FILE, dict[str, ThresholdsRecord])
    except UserError:
        return {}
