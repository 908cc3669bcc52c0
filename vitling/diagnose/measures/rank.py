"""Rank: how many directions features use."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitling.diagnose.indicator import Indicator, first_quarter, mean_of
from vitling.diagnose.measures.measure import BlockMeasure, blocks_of, layer_chart
from vitling.diagnose.result import Diagnosis
from vitling.models.inspect import Layout
from vitling.runs.device import to_float64


@dataclass
class Ranks:
    """How many directions features use. All are at most the number of channels."""

    effective: float  # exp of the entropy of the singular values as shares of their sum (Roy and Vetterli)
    participation: float  # (sum of s^2)^2 / sum of s^4
    stable: float  # sum of s^2 / largest s^2
    numerical: int


def feature_ranks(tokens: Tensor) -> Ranks:
    """Ranks of all tokens of all images stacked, less their mean: (..., channels) in."""
    x = tokens.flatten(0, -2)
    return ranks_of(torch.linalg.svdvals(x - x.mean(dim=0)), smallest=1e-12)


def ranks_of(singular_values: Tensor, *, smallest: float) -> Ranks:
    """Ranks from singular values; those up to `smallest` times the largest are rounding."""
    s = singular_values[singular_values > smallest * singular_values.max()] if len(singular_values) else singular_values
    if not len(s):
        return Ranks(0.0, 0.0, 0.0, 0)
    power = s.square()
    return Ranks(
        effective=torch.special.entr(s / s.sum()).sum().exp().item(),
        participation=(power.sum().square() / power.square().sum()).item(),
        stable=(power.sum() / power.max()).item(),
        numerical=len(s),
    )


def early_rank(d: Diagnosis) -> float | None:
    return mean_of([b.rank_share for b in first_quarter(d.measurements.blocks)])


def late_rank(d: Diagnosis) -> float | None:
    return mean_of([b.rank_share for b in d.measurements.blocks[-1:]])


class Rank(BlockMeasure):
    """Ranks of the tokens of each block, from sums of their products."""

    indicators = (
        Indicator(
            "early rank",
            early_rank,
            "The first quarter of its layers uses {value:.2f} of its channels (effective rank over channels).",
            "low",
            blocks=2,
        ),
        Indicator(
            "late rank",
            late_rank,
            "The last block uses {value:.2f} of its channels.",
            "low",
            blocks=2,
        ),
    )

    def __init__(self):
        self.count = 0

    def see_tokens(self, tokens: Tensor, layout: Layout) -> None:
        x = tokens.flatten(0, 1).float()
        if not self.count:
            # Any shift leaves a covariance as it is, and one close to the mean keeps its digits.
            self.shift = x.mean(dim=0)
            self.sum = torch.zeros_like(to_float64(self.shift))
            self.products = self.sum.new_zeros(len(self.sum), len(self.sum))
        x = to_float64(x - self.shift)  # in float32 the squares would hide all but the first few singular values
        self.sum += x.sum(dim=0)
        self.products += x.T @ x
        self.count += len(x)

    def is_finite(self) -> bool:
        return bool(self.sum.isfinite().all())

    def note(self) -> str | None:
        return None if self.is_finite() else "some values are NaN or infinite; no ranks, no probe."

    def result(self) -> dict[str, object]:
        covariance = self.products / self.count - torch.outer(self.sum, self.sum) / self.count**2
        # A network that diverged still has other numbers to show.
        singular = torch.linalg.eigvalsh(covariance).clamp(min=0).sqrt() if self.is_finite() else self.sum.new_empty(0)
        ranks = ranks_of(singular, smallest=1e-6)  # below lies the rounding of the features
        return {"ranks": ranks, "rank_share": ranks.effective / len(self.sum)}

    @staticmethod
    def parts(results: list[Diagnosis]) -> list:
        caption = "How many directions the features use. Near 0, channels repeat each other."
        return layer_chart(blocks_of(results), lambda b: b.rank_share, "effective rank / channels", caption)
