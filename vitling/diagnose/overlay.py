"""Where a model looks in one image: the rollout of its attention, drawn over the picture."""

import torch
from PIL import Image
from torch import Tensor, nn

from vitling.diagnose.attention import attention_masks, fold_head_tokens, resize_masks
from vitling.errors import UserError
from vitling.models.inspect import (
    capture_batch,
    find_attention,
    find_attention_layout,
    rollout_chain,
    what_works,
    why_no_attention,
)

HEAT = (255, 80, 0)  # seen on dark pictures as on bright ones
STRONGEST = 0.6  # the picture shines through where the model looks most
SHORT_SIDE = 224  # smaller images are enlarged to about this


def check_attention(model: nn.Module) -> None:
    """Refuse a model without attention weights to show, before any image is read."""
    if not find_attention(model):
        raise UserError(f"there is no attention to show of {type(model).__name__}: {why_no_attention(model)}.")


def attention_map(model: nn.Module, images: Tensor) -> Tensor:
    """What the last layer takes from each patch of the image, (B, rows, columns), least 0 and most 1.

    The query is the class token; in a model without one, the mean of all tokens. `images` are normalised.
    """
    if reason := what_works(model, images[:1])["rollout"]:
        raise UserError(f"the attention of {type(model).__name__} cannot be rolled out: {reason}.")
    seen = capture_batch(model, images)
    layouts = {name: find_attention_layout(model, name, x, images) for name, x in seen.attention.items()}
    chain = rollout_chain({name: x for name, x in seen.attention.items() if layouts[name]}, len(images))
    over_images = layouts[next(iter(chain))]
    assert over_images is not None  # the chain is made of those that have one
    layout = over_images.queries
    maps = [fold_head_tokens(x) if layout.extra else x for x in chain.values()]
    maps = [x.mean(dim=1, keepdim=True) for x in maps]  # layers may differ in their number of heads
    masks = attention_masks(maps, layout.grid, prefix_tokens=layout.prefix_tokens)[-1]
    low, high = (bound(masks, dim=(-2, -1), keepdim=True) for bound in (torch.amin, torch.amax))
    return ((masks - low) / (high - low).clamp(min=1e-12)).cpu()


def draw_overlay(pixels: Tensor, mask: Tensor) -> Image.Image:
    """The picture, and beside it the picture tinted where the mask is high. Pixels are uint8 (C, H, W), as the model saw them."""
    shown = pixels[:3] if len(pixels) >= 3 else pixels[:1].expand(3, -1, -1)
    factor = max(1, SHORT_SIDE // min(shown.shape[1:]))
    shown = shown.repeat_interleave(factor, dim=1).repeat_interleave(factor, dim=2)
    share = STRONGEST * resize_masks(mask.float(), tuple(shown.shape[1:])).clamp(0, 1)
    tinted = shown * (1 - share) + torch.tensor(HEAT).view(3, 1, 1) * share
    pair = torch.cat([shown, tinted.round().to(torch.uint8)], dim=2)
    return Image.fromarray(pair.permute(1, 2, 0).contiguous().numpy())
