"""Attention distance: how far heads look."""

from math import prod

import torch
from torch import Tensor

from vitling.diagnose.attention import check_grid
from vitling.diagnose.indicator import Indicator, first_quarter, mean_of
from vitling.diagnose.measures.measure import AttentionMeasure, Mean
from vitling.diagnose.result import Diagnosis
from vitling.models.inspect import AttentionLayout
from vitling.reports import plots
from vitling.reports.page import Chart


def patch_distances(grid: tuple[int, int], key_grid: tuple[int, int] | None = None) -> Tensor:
    """Euclidean distance of every patch to every key, in patches; keys on a coarser grid lie at the centres of its cells."""
    key_grid = key_grid or grid
    queries = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in grid))
    keys = torch.cartesian_prod(
        *((torch.arange(k, dtype=torch.float64) + 0.5) * (n / k) - 0.5 for n, k in zip(grid, key_grid, strict=True))
    )
    return torch.cdist(queries, keys, compute_mode="donot_use_mm_for_euclid_dist")


def attention_distance(
    maps: Tensor,
    grid: tuple[int, int],
    *,
    prefix_tokens: int | None = None,
    key_grid: tuple[int, int] | None = None,
    patch_size: float = 1.0,
    renormalize: bool = True,
    per_image: bool = False,
) -> Tensor:
    """How far heads look on average, in patches or, given `patch_size`, in pixels: (..., H, N, N) -> (H,).

    Tokens that are not patches count neither as query nor as key, wherever they stand: `prefix_tokens` before the grid (by
    default all that is left over), the rest behind it. With `renormalize` a query's weights on patches are brought to a sum of
    one; without, a head that mostly looks at the class token seems to look near. `per_image` keeps the leading axes.
    """
    weights = patch_weights(maps, grid, key_grid, prefix_tokens, renormalize)
    return mean_cost(patch_size * weights, patch_distances(grid, key_grid), per_image)


def uniform_distance(grid: tuple[int, int]) -> float:
    """The distance of uniform attention: what to compare `attention_distance` with."""
    return patch_distances(grid).mean().item()


def patch_weights(maps: Tensor, grid, key_grid, prefix_tokens: int | None, renormalize: bool) -> Tensor:
    """The weights of patches on patches, without those from and to other tokens."""
    for tokens, cells in ((maps.shape[-2], grid), (maps.shape[-1], key_grid or grid)):
        check_grid(tokens, cells, prefix_tokens or 0)
    queries, keys = prod(grid), prod(key_grid or grid)
    first = maps.shape[-2] - queries if prefix_tokens is None else prefix_tokens
    weights = maps[..., first : first + queries, first : first + keys]
    return weights / weights.sum(dim=-1, keepdim=True) if renormalize else weights


def mean_cost(weights: Tensor, cost: Tensor, per_image: bool) -> Tensor:
    """The cost (queries, keys) that each head pays on average."""
    # A query with no weight on any patch (entmax has true zeros) has no distance, and does not count.
    result = (weights * cost.to(weights)).sum(dim=-1).nanmean(dim=-1)  # (..., H)
    return result if per_image or result.ndim == 1 else result.flatten(0, -2).nanmean(dim=0)


def early_distance(d: Diagnosis) -> float | None:
    """How far the first quarter of the layers looks, as a share of what uniform attention would give."""
    layers = [a for a in first_quarter(d.measurements.attention) if a.distance_of_image is not None]
    return mean_of([a.distance_of_image.mean().item() / a.uniform_distance_of_image for a in layers])


class Distance(AttentionMeasure):
    """Distance of each head; None where queries and keys are not positions of the image."""

    indicators = (
        Indicator(
            "early attention distance",
            early_distance,
            "The first quarter of its layers attends {value:.2f} times as far as uniform attention would.",
            "high",
            blocks=2,
        ),
    )

    def __init__(self):
        self.mean = Mean()
        self.layout: AttentionLayout | None = None

    def see_weights(self, weights: Tensor, layout: AttentionLayout | None) -> None:
        self.layout = layout
        if layout is not None:
            queries, keys = layout.queries, layout.keys
            distance = attention_distance(
                weights, queries.grid, key_grid=keys.grid, prefix_tokens=queries.prefix_tokens
            )
            self.mean.add(distance, len(weights))

    def result(self) -> dict[str, object]:
        grid = self.layout.queries.grid if self.layout else None
        side = prod(grid) ** 0.5 if grid else 1.0  # of the image, or of the window
        return {
            "distance": self.mean.value,  # (H,), patches
            "distance_of_image": self.mean.value / side if grid else None,
            "uniform_distance_of_image": uniform_distance(grid) / side if grid else None,
            "windows": self.layout.windows if self.layout else 1,  # distances in windows are within a window
        }

    @staticmethod
    def parts(results: list[Diagnosis]) -> list:
        placed = {d.name: [a for a in d.measurements.attention if a.distance_of_image is not None] for d in results}
        placed = {name: layers for name, layers in placed.items() if len(layers) > 1}
        if not placed:
            return []
        distances = {name: [a.distance_of_image.tolist() for a in layers] for name, layers in placed.items()}
        uniform = {layers[0].uniform_distance_of_image for layers in placed.values()}
        dashed = {"uniform attention": uniform.pop()} if len(uniform) == 1 else None
        svg = plots.head_values(distances, y="distance / side of the image", dashed=dashed)
        return [Chart(svg, "How far heads look. Networks that learned locality have local heads in early layers.")]
