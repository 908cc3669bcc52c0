"""Sharpness-aware minimisation.

`torch._foreach_*` have no public name, but torch.optim is built on them and nothing else changes many tensors in one call.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from vitling.models.shards import local_part, total_norm


class SAM:
    """Sharpness-aware minimisation (Foret et al. 2021): climb to w + ρ g/||g||, take the gradient there, come back."""

    def __init__(self, parameters: Iterable[Tensor], rho: float):
        self.parameters, self.rho = [p for p in parameters if p.requires_grad], rho

    @torch.no_grad()
    def climb(self) -> bool:
        """Go there; False where the gradients have overflowed and point nowhere, and nothing was moved."""
        learning = [p for p in self.parameters if p.grad is not None]
        norm = total_norm(p.grad for p in learning)
        if not norm.isfinite():
            return False
        self.moved = [local_part(p) for p in learning]
        gradients = [local_part(p.grad) for p in learning]
        self.before = [p.clone() for p in self.moved]
        torch._foreach_add_(self.moved, torch._foreach_mul(gradients, self.rho / (norm + 1e-12)))
        return True

    @torch.no_grad()
    def descend(self) -> None:
        torch._foreach_copy_(self.moved, self.before)
        del self.moved, self.before
