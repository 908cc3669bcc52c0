"""Entropy of attention: how evenly heads look."""

import torch
from torch import Tensor

from vitling.diagnose.measures.measure import AttentionMeasure, Mean
from vitling.diagnose.result import Diagnosis
from vitling.models.inspect import AttentionLayout
from vitling.reports import plots
from vitling.reports.page import Chart


def attention_entropy(maps: Tensor) -> Tensor:
    """Mean entropy of the weights in nats, over all queries and keys: (..., H, N, N) -> (H,). Uniform attention: log N."""
    entropy = torch.special.entr(maps).sum(dim=-1).mean(dim=-1)
    return entropy.flatten(0, -2).mean(dim=0) if entropy.ndim > 1 else entropy


class Entropy(AttentionMeasure):
    """Entropy of each head, (H,) in nats."""

    def __init__(self):
        self.mean = Mean()

    def see_weights(self, weights: Tensor, layout: AttentionLayout | None) -> None:
        self.mean.add(attention_entropy(weights), len(weights))

    def result(self) -> dict[str, object]:
        return {"entropy": self.mean.value}

    @staticmethod
    def parts(results: list[Diagnosis]) -> list:
        layers = {d.name: d.measurements.attention for d in results if len(d.measurements.attention) > 1}
        if not layers:
            return []
        entropy = {name: [a.entropy.tolist() for a in found] for name, found in layers.items()}
        svg = plots.head_values(entropy, y="entropy / nats")
        return [Chart(svg, "Entropy: low is focused attention, high is uniform attention.")]
