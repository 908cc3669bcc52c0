"""Diversity of heads: whether they divide the work."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.diagnose.indicator import Indicator, mean_of
from vitling.diagnose.measures.measure import AttentionMeasure, Mean, layer_chart
from vitling.diagnose.result import Diagnosis
from vitling.models.inspect import AttentionLayout


def head_diversity(maps: Tensor) -> Tensor:
    """1 - mean cosine similarity of the maps of two heads, over pairs and images: 0 if all heads do the same."""
    H = maps.shape[-3]
    if H < 2:
        return maps.new_tensor(torch.nan)
    flat = F.normalize(maps.flatten(-2), dim=-1)  # (..., H, N * N)
    total = flat.sum(dim=-2).square().sum(dim=-1)  # sum over all ordered pairs, each head with itself included
    return 1 - ((total - H) / (H * (H - 1))).mean()


def mean_diversity(d: Diagnosis) -> float | None:
    return mean_of([a.diversity for a in d.measurements.attention if a.diversity == a.diversity])


class Diversity(AttentionMeasure):
    """How much the heads of a module differ; NaN for a single head."""

    indicators = (
        Indicator(
            "head diversity",
            mean_diversity,
            "The heads of a layer differ by {value:.2f} on average (0: all do the same).",
            "low",
        ),
    )

    def __init__(self):
        self.mean = Mean()

    def see_weights(self, weights: Tensor, layout: AttentionLayout | None) -> None:
        self.mean.add(head_diversity(weights), len(weights))

    def result(self) -> dict[str, object]:
        return {"diversity": self.mean.value.item()}

    @staticmethod
    def parts(results: list[Diagnosis]) -> list:
        heads = {d.name: d.measurements.attention for d in results}
        caption = "How much the heads of a layer differ: 0 if all do the same."
        return layer_chart(heads, lambda a: a.diversity, "diversity", caption)
