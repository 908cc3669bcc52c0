"""MACs: the multiply-adds of one image's forward pass."""

from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@torch.no_grad()
def count_macs(model: nn.Module, input_size: tuple[int, int, int]) -> int:
    """Multiply-adds of all matrix products and convolutions, the two products inside attention included.

    On a model of torch's meta device nothing is computed.
    """
    images = torch.empty(1, *input_size, device=next(model.parameters()).device)
    with _explicit_attention(model), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(images)
    return counter.get_total_flops() // 2


@contextmanager
def _explicit_attention(model: nn.Module):
    """Attention as two products that the counter sees, in place of a fused kernel."""
    fused = {module: module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")}
    training = model.training
    try:
        model.eval()
        for module in fused:
            module.fused_attn = False
        yield
    finally:
        model.train(training)
        for module, before in fused.items():
            module.fused_attn = before
