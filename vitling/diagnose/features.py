"""What features hold: maps to look at, correlation of channels, frequencies.

Tokens are (images, tokens, channels) without class token, maps (images, channels, height, width).
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from vitling._deprecated import keep_old_names
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


def channel_correlation(tokens: Tensor, *, dead: float = 1e-3) -> Tensor:
    """Mean absolute correlation over pairs of live channels: near 1, channels repeat each other."""
    x = tokens.flatten(0, -2)
    largest = x.abs().amax(dim=0)
    x = x[:, largest > dead * largest.max()]
    correlation = torch.corrcoef(x.T).abs()
    channels = len(correlation)
    return (correlation.sum() - correlation.diag().sum()) / (channels * (channels - 1))


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


keep_old_names(__name__)
