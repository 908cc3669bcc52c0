"""Scores of validations that are no sum over images: what they need is all outputs at once."""

import torch.nn.functional as F
from torch import Tensor

from vitling.data.targets import Target
from vitling.evaluation.average_precision import mean_average_precision, standard_error


def validation_scores(target: Target, outputs: Tensor, truth: Tensor, *, with_error: bool = False) -> dict[str, float]:
    """The target's score and the loss of `outputs`, (images, outputs), where `truth` is of that shape; with the score's standard error."""
    assert target.kind == "several", f"there is no score for labels={target.kind}"
    loss = F.binary_cross_entropy_with_logits(outputs.double(), truth.double()).item()
    # A whole split has some label; its first batches, of which only the time is measured, may have none.
    score = mean_average_precision(outputs.numpy(), truth.numpy()) or 0.0
    error = {"error": standard_error(outputs.numpy(), truth.numpy())} if with_error else {}
    return {target.score.key: score, "loss": loss, "images": float(len(outputs)), **error}
