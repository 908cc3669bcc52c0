"""Local mass: the share of the attention that stays close."""

from torch import Tensor

from vitling.diagnose.measures.distance import mean_cost, patch_distances, patch_weights
from vitling.diagnose.measures.measure import AttentionMeasure, Mean, layer_chart
from vitling.diagnose.result import Diagnosis
from vitling.models.inspect import AttentionLayout


def local_mass(maps: Tensor, grid: tuple[int, int], *, radius: float = 1.0, prefix_tokens: int | None = None) -> Tensor:
    """Share of the attention on patches that stays within `radius` patches: (..., H, N, N) -> (H,)."""
    weights = patch_weights(maps, grid, None, prefix_tokens, renormalize=True)
    return mean_cost(weights, (patch_distances(grid) <= radius).double(), per_image=False)


class Locality(AttentionMeasure):
    """Share of each head's attention within one patch, (H,); None where queries and keys are not on one grid."""

    def __init__(self):
        self.mean = Mean()

    def see_weights(self, weights: Tensor, layout: AttentionLayout | None) -> None:
        if layout is not None and layout.queries.grid == layout.keys.grid:
            mass = local_mass(weights, layout.queries.grid, prefix_tokens=layout.queries.prefix_tokens)
            self.mean.add(mass, len(weights))

    def result(self) -> dict[str, object]:
        return {"local_mass": self.mean.value}

    @staticmethod
    def parts(results: list[Diagnosis]) -> list:
        measured = {d.name: [a for a in d.measurements.attention if a.local_mass is not None] for d in results}
        caption = "Share of the attention that stays within one patch."
        return layer_chart(measured, lambda a: a.local_mass.mean().item(), "share within one patch", caption)
