"""Muon: momentum whose matrices are made orthogonal before each step, with AdamW for what is not a matrix.

Method: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; step sizes matched to AdamW's as in
Liu et al. 2025, "Muon is scalable for LLM training". timm and torch have it too, but orthogonalise in bfloat16, one matrix
after the other: on a CPU that takes several times as long as the rest of a small model's step. Here matrices of one shape
are orthogonalised together, in the gradients' own precision.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from vitling.models.shards import as_shard, local_part, split_like, whole

QUINTIC = (3.4445, -4.7750, 2.0315)  # the published polynomial: fast growth of small singular values, all end near 1
SMALLEST_SIDE = 4  # narrower matrices, depth-wise filters among them, are left to AdamW


def orthogonalise(x: Tensor, iterations: int = 5) -> Tensor:
    """Matrices (..., m, n) with all their singular values moved close to 1, by Newton-Schulz iterations."""
    a, b, c = QUINTIC
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def is_matrix(parameter: Tensor) -> bool:
    """Whether a parameter maps vectors to vectors: a linear layer, or a convolution as the matrix over its window."""
    return parameter.ndim >= 2 and min(parameter.shape[:2]) >= SMALLEST_SIDE


class Muon(torch.optim.Optimizer):
    """Groups with `use_fallback`, and parameters that are not matrices, are stepped by AdamW at the same learning rate."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ):
        defaults = dict(lr=lr, weight_decay=weight_decay, momentum=momentum, betas=betas, eps=eps, use_fallback=False)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            learning = [p for p in group["params"] if p.grad is not None]
            matrices = [p for p in learning if is_matrix(p) and not group["use_fallback"]]
            chosen = set(map(id, matrices))
            self._step_matrices(matrices, group)
            self._step_others([p for p in learning if id(p) not in chosen], group)

    def _step_matrices(self, matrices: list[Tensor], group: dict) -> None:
        by_shape = defaultdict(list)
        for p in matrices:
            by_shape[p.shape].append(p)
        for shape, same in by_shape.items():
            for p in same:
                self.state[p].setdefault("momentum", torch.zeros_like(p))
            momenta = [local_part(self.state[p]["momentum"]) for p in same]
            gradients = [local_part(p.grad) for p in same]
            # torch._foreach_*, here and below: no public name, but torch.optim's own steps are made of them.
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])  # Nesterov's
            # A part of a matrix cannot be made orthogonal by itself: of shards, every process computes the whole and keeps its part.
            ahead = [whole(as_shard(x, p)) for x, p in zip(ahead, same, strict=True)]
            updates = orthogonalise(torch.stack(ahead).flatten(2)).view(-1, *shape)
            steps = [local_part(split_like(x, p)) for x, p in zip(updates.unbind(), same, strict=True)]
            weights = [local_part(p) for p in same]
            # An orthogonal m x n matrix has entries of size 1 / sqrt(max(m, n)); AdamW's steps have about 0.2.
            scale = 0.2 * max(shape[0], shape[1:].numel()) ** 0.5
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, steps, alpha=-group["lr"] * scale)

    def _step_others(self, parameters: list[Tensor], group: dict) -> None:
        if not parameters:
            return
        for p in parameters:
            if not self.state[p]:
                self.state[p].update(
                    step=torch.zeros((), dtype=torch.float32, device=p.device),
                    exp_avg=torch.zeros_like(p),
                    exp_avg_sq=torch.zeros_like(p),
                )
        states = [self.state[p] for p in parameters]
        adamw(
            parameters,
            [p.grad for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
