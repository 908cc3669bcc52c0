"""Parts that three families share and timm.layers lacks."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from timm.layers import trunc_normal_
from timm.models import checkpoint
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # private, but what all of torch's are, the synchronised ones too


def checkpoint_block(block: nn.Module, *args: Any) -> Tensor:
    """Gradient checkpointing of a block with BatchNorm: it runs twice per step, but its batch is counted once."""
    if torch.compiler.is_compiling():  # recomputes values only, and cannot take a context
        return checkpoint(block, *args)
    return checkpoint(block, *args, context_fn=lambda: (nullcontext(), frozen_statistics(block)))


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Run BatchNorm without counting the batch."""
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, num_batches) in zip(norms, before, strict=True):
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(num_batches)


@contextmanager
def statistics_kept_finite(module: nn.Module) -> Iterator[None]:
    """Afterwards the statistics of BatchNorm are as before, where the batches in between have overflowed.

    In half precision that is an ordinary event: the step is not taken, but the running averages would keep its NaN for ever.
    """
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    before = [buffer.clone() for buffer in module.buffers()]
    yield
    if not all(buffer.isfinite().all() for buffer in buffers):
        for buffer, value in zip(module.buffers(), before, strict=True):
            buffer.copy_(value)


def init_linear(module: nn.Module) -> None:
    """Linear layers start as in the releases; convolutions, norms and single factors keep what they were made with."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
