"""Clipping: gradients made shorter where they are too long, as one vector, whatever parts of them are here."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitling.models.shards import is_shard, local_part, total_norm


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale the gradients to a norm of at most `limit`; what their norm was."""
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    if not any(map(is_shard, parameters)):
        return nn.utils.clip_grad_norm_(parameters, limit)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = total_norm(gradients)
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)  # as torch does
    # torch._foreach_*: no public name, but torch's own clipping is made of them.
    torch._foreach_mul_([local_part(gradient) for gradient in gradients], scale)
    return norm
