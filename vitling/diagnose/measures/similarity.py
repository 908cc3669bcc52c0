"""Token similarity: over-smoothing."""

import torch.nn.functional as F
from torch import Tensor

from vitling.diagnose.indicator import Indicator, mean_of
from vitling.diagnose.measures.measure import BlockMeasure, Mean, blocks_of, layer_chart
from vitling.diagnose.result import Diagnosis
from vitling.errors import UserError
from vitling.models.inspect import Layout


def token_similarity(tokens: Tensor) -> Tensor:
    """Mean cosine similarity of two different tokens of an image; near 1, a network has smoothed its tokens into one."""
    N = tokens.shape[-2]
    if N < 2:
        raise UserError(
            f"token similarity compares the tokens of an image, but tokens of shape {tuple(tokens.shape)} have one."
        )
    total = F.normalize(tokens, dim=-1).sum(dim=-2).square().sum(dim=-1)  # over all ordered pairs, equal ones included
    return ((total - N) / (N * (N - 1))).mean()


def late_similarity(d: Diagnosis) -> float | None:
    return mean_of([b.token_similarity for b in d.measurements.blocks[-1:]])


class Similarity(BlockMeasure):
    """Similarity of the tokens of an image after each block; None where there is one token."""

    indicators = (
        Indicator(
            "token similarity",
            late_similarity,
            "Two tokens of an image have a cosine similarity of {value:.2f} after the last block.",
            "high",
        ),
    )

    def __init__(self):
        self.mean = Mean()

    def see_tokens(self, tokens: Tensor, layout: Layout) -> None:
        if tokens.shape[1] > 1:
            self.mean.add(token_similarity(tokens), len(tokens))

    def result(self) -> dict[str, object]:
        return {"token_similarity": None if self.mean.value is None else self.mean.value.item()}

    @staticmethod
    def parts(results: list[Diagnosis]) -> list:
        caption = "Similarity of two tokens of an image. Near 1, the network has smoothed its tokens into one."
        return layer_chart(blocks_of(results), lambda b: b.token_similarity, "cosine similarity", caption)
