"""Sharpness of the loss: how much it rises close by, and how curved it is.

A loss is a function without arguments that recomputes it from the parameters as they are.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from vitling.errors import UserError

Loss = Callable[[], Tensor]


def _trainable(parameters: Iterable[Tensor]) -> list[Tensor]:
    parameters = [p for p in parameters if p.requires_grad]
    if not parameters:
        raise UserError("no parameter requires a gradient, so the loss has no slope to follow.")
    return parameters


def loss_sharpness(loss: Loss, parameters: Iterable[Tensor], *, rho: float = 0.05) -> float:
    """Rise of the loss one step of length `rho` uphill, as SAM looks at it. The parameters are put back."""
    parameters = _trainable(parameters)
    here = loss()
    gradients = torch.autograd.grad(here, parameters, allow_unused=True)
    norm = torch.stack([g.norm() for g in gradients if g is not None]).norm()
    before = [p.detach().clone() for p in parameters]
    try:
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                if g is not None and norm > 0:
                    p.add_(g, alpha=(rho / norm).item())
            return (loss() - here).item()
    finally:
        with torch.no_grad():
            for p, value in zip(parameters, before, strict=True):
                p.copy_(value)


class Hessian:
    """Second derivatives of a loss, as products with a vector: nothing of the size of the matrix is ever made."""

    def __init__(self, loss: Loss, parameters: Iterable[Tensor]):
        self.parameters = _trainable(parameters)
        self.size = sum(p.numel() for p in self.parameters)
        gradients = torch.autograd.grad(loss(), self.parameters, create_graph=True, materialize_grads=True)
        self.gradient = torch.cat([g.flatten() for g in gradients])

    def __matmul__(self, vector: Tensor) -> Tensor:
        product = torch.autograd.grad(self.gradient, self.parameters, vector, retain_graph=True, materialize_grads=True)
        return parameters_to_vector([g.contiguous() for g in product])

    def largest_eigenvalues(self, count: int = 1) -> list[float]:
        """The largest eigenvalues, by Lanczos; the first says how large a learning rate can be (2 / it)."""
        if count >= self.size:
            raise UserError(f"{count} eigenvalues of {self.size} parameters; ask for fewer than there are parameters.")

        def product(vector: np.ndarray) -> np.ndarray:
            return (self @ torch.as_tensor(vector).to(self.gradient).flatten()).cpu().double().numpy()

        operator = LinearOperator((self.size, self.size), matvec=product, dtype=np.float64)
        start = np.ones(self.size)  # not random: the same answer twice
        return sorted(eigsh(operator, k=count, which="LA", v0=start, return_eigenvectors=False).tolist(), reverse=True)

    def trace(self, *, probes: int = 32, seed: int = 0) -> float:
        """Sum of the eigenvalues by Hutchinson's random signs; exact where there are no more parameters than probes."""
        if self.size <= probes:
            vectors = torch.eye(self.size).to(self.gradient)
            return sum((v @ (self @ v)).item() for v in vectors)
        generator = torch.Generator().manual_seed(seed)
        total = 0.0
        for _ in range(probes):
            signs = (torch.randint(0, 2, (self.size,), generator=generator) * 2 - 1).to(self.gradient)
            total += (signs @ (self @ signs)).item()
        return total / probes
