"""What features hold: maps to look at, dead and exploding channels, ranks, over-smoothing, frequencies.

Tokens are (images, tokens, channels) without class token, maps (images, channels, height, width).
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.models.inspect import Layout, evaluating, watch

SHORTCUTS = ("shortcut", "downsample")

# ---------------------------------------------------------------------------------------------------------------------
# To look at


def conv_maps(model: nn.Module, images: Tensor, *, bare_chain: bool = False) -> dict[str, Tensor]:
    """Output of each convolution of a CNN, averaged over channels (the paper's figure 5): name -> (B, height, width).

    Shortcut convolutions are left out; a ResNet-18 then has 17. `bare_chain` draws what the release draws: the convolutions
    applied to the image one after another, with no normalisation, activation or shortcut between them.
    """
    convs = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and not any(part in SHORTCUTS for part in name.split("."))
    }
    if not convs:
        raise UserError(f"{type(model).__name__} has no convolutions to show.")
    maps: dict[str, Tensor] = {}
    with evaluating(model):
        if bare_chain:
            _check_chain(convs)
            x = images
            for name, conv in convs.items():
                x = conv(x)
                maps[name] = x.mean(dim=1)
        else:
            with watch(model, convs, lambda name, x: maps.update({name: x.mean(dim=1)})):
                model(images)
    return maps


def _check_chain(convs: dict[str, nn.Conv2d]) -> None:
    for (first, one), (second, two) in pairwise(convs.items()):
        if one.out_channels != two.in_channels:
            raise UserError(
                f"bare_chain: {second} takes {two.in_channels} channels but {first} gives {one.out_channels}."
            )


def token_maps(tokens: Tensor, layout: Layout) -> Tensor:
    """Tokens as the channels of an image (T2T's figure 2): (B, N, D) -> (B, D, height, width)."""
    return tokens[:, layout.patches].mT.unflatten(2, layout.grid)


# ---------------------------------------------------------------------------------------------------------------------
# Channels


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


def channel_correlation(tokens: Tensor, *, dead: float = 1e-3) -> Tensor:
    """Mean absolute correlation over pairs of live channels: near 1, channels repeat each other."""
    x = tokens.flatten(0, -2)
    largest = x.abs().amax(dim=0)
    x = x[:, largest > dead * largest.max()]
    correlation = torch.corrcoef(x.T).abs()
    channels = len(correlation)
    return (correlation.sum() - correlation.diag().sum()) / (channels * (channels - 1))


# ---------------------------------------------------------------------------------------------------------------------
# Ranks and similarity


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


def token_similarity(tokens: Tensor) -> Tensor:
    """Mean cosine similarity of two different tokens of an image; near 1, a network has smoothed its tokens into one."""
    N = tokens.shape[-2]
    if N < 2:
        raise UserError(
            f"token similarity compares the tokens of an image, but tokens of shape {tuple(tokens.shape)} have one."
        )
    total = F.normalize(tokens, dim=-1).sum(dim=-2).square().sum(dim=-1)  # over all ordered pairs, equal ones included
    return ((total - N) / (N * (N - 1))).mean()


# ---------------------------------------------------------------------------------------------------------------------
# Frequencies


def fourier_profile(maps: Tensor) -> Tensor:
    """Log amplitude from the lowest to the highest frequency, relative to the lowest (Park and Kim 2022).

    Along the diagonal of the centred spectrum, so the maps must be square. Attention lowers the high frequencies, convolution
    raises them.
    """
    side = maps.shape[-1]
    if maps.shape[-2] != side:
        raise UserError(f"maps of {maps.shape[-2]}x{side} have no diagonal spectrum; crop them to a square.")
    amplitude = (torch.fft.fft2(maps).abs() + 1e-6).log().roll((side // 2, side // 2), dims=(-2, -1))
    diagonal = amplitude.flatten(0, -3).mean(dim=0).diag()[side // 2 :]
    return diagonal - diagonal[0]


def spatial_variance(maps: Tensor) -> Tensor:
    """Variance over the positions of a map, mean over images and channels (Park and Kim 2022)."""
    return maps.flatten(-2).var(dim=-1).mean()
