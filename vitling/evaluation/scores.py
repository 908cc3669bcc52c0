"""Scores of validations that are no sum over images: what they need is all outputs at once."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.data.targets import Target
from vitling.evaluation.average_precision import mean_average_precision, standard_error


def validation_scores(target: Target, outputs: Tensor, truth: Tensor, *, with_error: bool = False) -> dict[str, float]:
    """The target's score and the loss of `outputs`, (images, outputs), and what is recorded beside it; with the score's standard error."""
    if target.kind == "numbers":
        return _number_scores(target, outputs, truth, with_error)
    assert target.kind == "several", f"there is no score for labels={target.kind}"
    loss = F.binary_cross_entropy_with_logits(outputs.double(), truth.double()).item()
    # A whole split has some label; its first batches, of which only the time is measured, may have none.
    score = mean_average_precision(outputs.numpy(), truth.numpy()) or 0.0
    error = {"error": standard_error(outputs.numpy(), truth.numpy())} if with_error else {}
    return {target.score.key: score, "loss": loss, "images": float(len(outputs)), **error}


def _number_scores(target: Target, outputs: Tensor, truth: Tensor, with_error: bool) -> dict[str, float]:
    """Mean absolute error, and how much less that is than by always saying the training median."""
    bins, true = target.numbers, truth.double().numpy()
    loss = F.cross_entropy(outputs.double(), torch.from_numpy(bins.distribute(true)).double()).item()
    errors = np.abs(bins.mean(outputs.double().softmax(dim=1).numpy()) - true)
    baseline = bins.baseline(true)
    found = {"skill": 1 - float(errors.mean()) / baseline, "mae": float(errors.mean())}
    error = {"error": float(errors.std() / len(errors) ** 0.5) / baseline} if with_error else {}
    return {**found, "loss": loss, "images": float(len(outputs)), **error}
