"""What attention looks at: the paper's masks, rollout, relevance, head tokens.

Weights are (..., H, queries, keys) with rows that sum to one, as `capture_batch` gives them per layer; where a function takes several
layers, they are a list of those or a tensor with the layers first. Axes in `...` (images) are kept or averaged as said.
"""

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling._deprecated import keep_old_names
from vitling.errors import UserError, did_you_mean
from vitling.models.contract import square_grid

FUSIONS = {"mean": Tensor.mean, "max": Tensor.amax, "min": Tensor.amin}

# ---------------------------------------------------------------------------------------------------------------------
# Several layers


def residual_attention(maps: Sequence[Tensor] | Tensor, *, fusion: str = "mean") -> Tensor:
    """Heads fused, the shortcut added as an identity, rows brought back to a sum of one: (layers, ..., N, N)."""
    if fusion not in FUSIONS:
        raise UserError(f"unknown fusion={fusion!r}. {did_you_mean(fusion, FUSIONS)}")
    maps = _stack(maps)
    fused = FUSIONS[fusion](maps, dim=-3)
    fused = fused + torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
    return fused / fused.sum(dim=-1, keepdim=True)


def attention_rollout(maps: Sequence[Tensor] | Tensor, *, fusion: str = "mean") -> Tensor:
    """Attention from each layer's tokens down to the first layer's: the product of all layers up to it (Abnar and Zuidema).

    (layers, ..., H, N, N) -> (layers, ..., N, N). A product of many such matrices spreads whatever they hold: compare with
    the rollout of an untrained network before concluding that deep layers look everywhere.
    """
    layers = residual_attention(maps, fusion=fusion)
    joint = [layers[0]]
    for layer in layers[1:]:
        joint.append(layer @ joint[-1])
    return torch.stack(joint)


def gradient_relevance(maps: Sequence[Tensor] | Tensor, gradients: Sequence[Tensor] | Tensor) -> Tensor:
    """Relevance of every token to every other for one class score: rollout of attention times its gradient (Chefer et al.).

    `gradients` are those of the score with respect to `maps`. (layers, ..., H, N, N) -> (..., N, N).
    """
    maps, gradients = _stack(maps), _stack(gradients)
    weighted = (maps * gradients).relu().mean(dim=-3)
    relevance = torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device).expand_as(weighted[0])
    for layer in weighted:
        relevance = relevance + layer @ relevance
    return relevance


def attention_masks(
    maps: Sequence[Tensor] | Tensor,
    grid: tuple[int, int] | None = None,
    *,
    rollout: bool = True,
    scale: str = "own",
    prefix_tokens: int = 1,
) -> Tensor:
    """The paper's masks over the image, a layer each: (layers, ..., H, N, N) -> (layers, ..., height, width) up to 1.

    What was run: `rollout`, and each layer divided by its own maximum. What the text says: no rollout, and one common factor,
    the maximum over all layers (`rollout=False, scale="common"`). The query is the class token; without one, the mean of all.
    """
    if scale not in ("own", "common"):
        raise UserError(f"scale={scale!r} is unknown; use 'own' (per layer) or 'common' (over all layers).")
    rows = attention_rollout(maps) if rollout else residual_attention(maps)
    masks = on_grid(class_row(rows, prefix_tokens), grid, prefix_tokens)
    largest = masks.amax(dim=(-2, -1), keepdim=True)
    return masks / (largest if scale == "own" else largest.amax(dim=0, keepdim=True))


def class_row(rows: Tensor, prefix_tokens: int = 1) -> Tensor:
    """What the class token attends to; in a model without one, what all tokens attend to on average."""
    return rows[..., 0, :] if prefix_tokens else rows.mean(dim=-2)


def on_grid(row: Tensor, grid: tuple[int, int] | None = None, prefix_tokens: int = 1) -> Tensor:
    """The patches of (..., N) as (..., height, width). Without a grid the image is taken to be square."""
    tokens = row.shape[-1] - prefix_tokens
    grid = grid or square_grid(tokens)
    if grid is None:
        raise UserError(f"{tokens} patches are not a square; give grid=(rows, columns).")
    check_grid(row.shape[-1], grid, prefix_tokens)
    return row[..., prefix_tokens : prefix_tokens + prod(grid)].unflatten(-1, grid)


def resize_masks(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks in the size of the image, bilinear: (..., height, width) -> (..., *size)."""
    flat = masks.reshape(-1, 1, *masks.shape[-2:])
    return F.interpolate(flat, size, mode="bilinear", align_corners=False).view(*masks.shape[:-2], *size)


def _stack(maps: Sequence[Tensor] | Tensor) -> Tensor:
    if not isinstance(maps, Tensor):
        shapes = {tuple(layer.shape[:-3] + layer.shape[-2:]) for layer in maps}
        if len(shapes) != 1:
            raise UserError(
                f"layers of shapes {sorted(shapes)} cannot be multiplied; take those over one set of tokens."
            )
        if len({layer.shape[-3] for layer in maps}) > 1:
            raise UserError("layers have different numbers of heads; average each over its heads first.")
        maps = torch.stack(list(maps))
    if maps.ndim < 4 or maps.shape[-1] != maps.shape[-2]:
        raise UserError(f"attention of shape {tuple(maps.shape)}; expected (layers, ..., heads, N, N).")
    return maps


# ---------------------------------------------------------------------------------------------------------------------
# One layer


def head_token_maps(weights: Tensor, grid: tuple[int, int], *, head: str = "mean", prefix_tokens: int = 1) -> Tensor:
    """What each of DHVT's head tokens sees of the image (its figure 4): (..., H, N, N) -> (..., H, height, width).

    The paper does not say in which attention head a head token is shown: their mean, or its "own".
    """
    H, N = weights.shape[-3], weights.shape[-1]
    if prefix_tokens + prod(grid) + H != N:
        raise UserError(
            f"{N} tokens are not {prefix_tokens} + {grid[0]}x{grid[1]} patches + {H} head tokens; only DHVT's blocks have those."
        )
    if head not in ("mean", "own"):
        raise UserError(f"head={head!r} is unknown; use 'mean' or 'own'.")
    rows = weights[..., -H:, :]  # (..., attention head, head token, N)
    rows = rows.mean(dim=-3) if head == "mean" else rows.diagonal(dim1=-3, dim2=-2).mT
    return on_grid(rows, grid, prefix_tokens)


def fold_head_tokens(weights: Tensor) -> Tensor:
    """DHVT's attention as if among the tokens that live on, for rollout: (..., H, N + H, N + H) -> (..., H, N, N).

    As key, a head token stands for all tokens equally, of whose mean it is made (eq. 6); as query, for the class token, to which
    the mean of the head tokens is added.
    """
    H = weights.shape[-3]
    N = weights.shape[-1] - H
    weights = weights[..., :N] + weights[..., N:].sum(dim=-1, keepdim=True) / N
    heads = weights[..., N:, :].mean(dim=-2, keepdim=True)
    return torch.cat([(weights[..., :1, :] + heads) / 2, weights[..., 1:N, :]], dim=-2)


def check_grid(tokens: int, grid: tuple[int, int], prefix_tokens: int) -> None:
    """Refuse a grid that has more cells than there are tokens."""
    if tokens < prefix_tokens + prod(grid):
        raise UserError(
            f"{tokens} tokens do not hold {prefix_tokens} + a grid of {grid[0]}x{grid[1]}; check grid and prefix_tokens."
        )


keep_old_names(__name__)
