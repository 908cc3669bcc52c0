"""Half precision on a CPU: what has to be computed otherwise than on a GPU, and whether it pays here."""

import time
import warnings
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.training.random_state import callers_state_kept

WORTH = 0.8  # of the time in float32, that bf16 may take to be chosen
ROUNDS = 5  # of each, in turns; the fastest counts


@cache
def keep_attention_whole() -> torch.library.Library:
    """From now on autocast on a CPU computes attention in float32: torch's gradients of it in bf16 take five times as long there."""
    library = torch.library.Library("aten", "IMPL")  # what it declares lasts as long as it does, and the cache holds it
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*[Oo]verrid")  # of what autocast does by itself: meant
        library.impl("scaled_dot_product_attention", _attention_in_float32, "AutocastCPU")
    return library


def _attention_in_float32(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.float()
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(
            *(query.float(), key.float(), value.float(), attn_mask, dropout_p, is_causal),
            scale=scale,
            enable_gqa=enable_gqa,
        )


@cache
def bf16_pays() -> bool:
    """Whether this processor computes convolutions and their gradients clearly faster in bf16: only some have instructions for it.

    Measured on one thread in its own time, not the wall's: other programs are no reason to choose otherwise.
    """
    with callers_state_kept():
        torch.set_num_threads(1)
        return _relative_time() < WORTH


def _relative_time() -> float:
    """Of bf16, float32 taking 1."""
    images, weight = torch.randn(32, 64, 16, 16), torch.randn(64, 64, 3, 3, requires_grad=True)
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    fastest = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for _ in range(1 + ROUNDS):  # the first one warms up, and is hardly ever the fastest
        for dtype in fastest:
            began = time.process_time()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
                F.conv2d(images, weight, padding=1).float().sum().backward()
            fastest[dtype] = min(fastest[dtype], time.process_time() - began)
    return fastest[torch.bfloat16] / fastest[torch.float32]
