"""What one image costs a network: the multiply-adds of its forward pass, and the memory that waits for the backward pass."""

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


def count_saved_bytes(model: nn.Module, input_size: tuple[int, int, int]) -> int:
    """Bytes that a training step keeps of one image in float32, for its backward pass; weights are not among them."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    images = torch.zeros(2, *input_size, device=next(model.parameters()).device)  # one would have no variance
    state, training = {name: value.clone() for name, value in model.named_buffers()}, model.training
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        saved = model.train()(images)  # alive, so that no storage is used twice
    model.train(training)
    for name, value in model.named_buffers():
        value.copy_(state[name])
    del saved
    return sum(kept.values()) // len(images)


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
