"""Dead and exploding channels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitling.diagnose.indicator import Indicator
from vitling.diagnose.measures.measure import BlockMeasure, blocks_of
from vitling.diagnose.result import Diagnosis
from vitling.models.inspect import Layout
from vitling.reports.page import Table, Text


@dataclass
class ChannelHealth:
    """Channels of a layer that carry nothing, or dominate the others."""

    dead: list[int]
    exploding: list[int]
    channels: int


def channel_health(tokens: Tensor, *, dead: float = 1e-3, exploding: float = 20.0) -> ChannelHealth:
    """Count the channels that T2T's figure 2 frames in red: "zero or too large values". (..., channels) in.

    Dead: never above `dead` times the largest value of the layer. Exploding: its largest value is above `exploding` times that
    of the median live channel.
    """
    return judge_channels(tokens.abs().flatten(0, -2).amax(dim=0), dead=dead, exploding=exploding)


def judge_channels(largest: Tensor, *, dead: float = 1e-3, exploding: float = 20.0) -> ChannelHealth:
    """The same from the largest absolute value of each channel."""
    is_dead = largest <= dead * largest.max()
    median = largest[~is_dead].median() if not is_dead.all() else largest.new_tensor(torch.inf)
    is_exploding = largest > exploding * median
    return ChannelHealth(is_dead.nonzero().flatten().tolist(), is_exploding.nonzero().flatten().tolist(), len(largest))


def dead_channels(d: Diagnosis) -> float | None:
    return max((len(b.channels.dead) / b.channels.channels for b in d.measurements.blocks), default=None)


def exploding_channels(d: Diagnosis) -> float | None:
    return max((len(b.channels.exploding) / b.channels.channels for b in d.measurements.blocks), default=None)


class Channels(BlockMeasure):
    """Channels of each block that carry nothing, or dominate the others."""

    indicators = (
        Indicator(
            "dead channels",
            dead_channels,
            "Up to {value:.1%} of the channels of a block are dead.",
            "high",
        ),
        Indicator(
            "exploding channels",
            exploding_channels,
            "Up to {value:.1%} of the channels of a block dominate the others.",
            "high",
        ),
    )

    def __init__(self):
        self.largest: Tensor | None = None

    def see_tokens(self, tokens: Tensor, layout: Layout) -> None:
        x = tokens.flatten(0, 1).float()
        largest = torch.maximum(x.amax(dim=0), -x.amin(dim=0))
        self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)

    def result(self) -> dict[str, object]:
        return {"channels": judge_channels(self.largest)}

    @staticmethod
    def as_dict(fields: dict[str, object]) -> dict[str, object]:
        return vars(fields["channels"])

    @staticmethod
    def parts(results: list[Diagnosis]) -> list:
        unhealthy = [
            (name, b.name, len(b.channels.dead), len(b.channels.exploding), b.channels.channels)
            for name, blocks in blocks_of(results).items()
            for b in blocks
            if b.channels.dead or b.channels.exploding
        ]
        if not unhealthy:
            return [Text("No block has a dead or an exploding channel.")]
        return [
            Table(
                ("network", "block", "dead", "exploding", "of channels"),
                unhealthy,
                "Blocks with dead or exploding channels",
            )
        ]
