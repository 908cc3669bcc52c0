"""Hybrid ViT: our own small model, a pooled convolutional stem before a few transformer blocks with convolution in the MLP.

Made of what the five papers found to matter on small data: a stem that leaves few tokens (T2T-ViT, LV-ViT and DHVT all replace
the patch projection), a depth-wise convolution in the MLP (DHVT's DAFF without its norms), fixed sine positions and global
average pooling. Which of them earn their place in a few minutes on a CPU is measured in docs/results.md. timm's
VisionTransformer does the rest, so its whole contract holds.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from timm.layers import LayerNorm, Mlp, PatchEmbed, build_sincos2d_pos_embed, to_2tuple
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitling.errors import UserError


class ConvStem(nn.Module):
    """3x3 convolutions, each with BatchNorm and ReLU, that halve the map once per factor 2 of the patch.

    The first one halves by its stride, since a full-size map costs as much as all the rest; the others by max-pooling.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int],
        patch_size: int = 8,
        in_chans: int = 3,
        embed_dim: int = 128,
        bias: bool = True,  # timm's ViT asks for it; BatchNorm brings one either way
        dynamic_img_pad: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if dynamic_img_pad:
            raise UserError("dynamic_img_pad=True: the stem rounds sizes up by itself; leave it out.")
        where = dict(device=device, dtype=dtype)
        patch_size = max(to_2tuple(patch_size))
        halvings = patch_size.bit_length() - 1
        if patch_size < 2 or patch_size != 2**halvings or embed_dim % 2 ** (halvings - 1):
            raise UserError(
                f"patch_size={patch_size}, embed_dim={embed_dim}: the stem halves the map and doubles its width at each "
                "step, so use a patch of 2, 4, 8 or 16 and a width that is a multiple of half of it."
            )
        widths = [in_chans, *(embed_dim >> (halvings - 1 - i) for i in range(halvings))]
        layers = []
        for i, (before, after) in enumerate(pairwise(widths)):
            conv = nn.Conv2d(before, after, kernel_size=3, stride=1 if i else 2, padding=1, bias=False, **where)
            layers += [conv, nn.BatchNorm2d(after, **where), nn.ReLU(inplace=True)]
            if i:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.proj = nn.Sequential(*layers)
        self.patch_size = to_2tuple(patch_size)
        self.set_input_size(img_size)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        if patch_size is not None and to_2tuple(patch_size) != self.patch_size:
            raise UserError(f"patch_size={patch_size}: the stem is made for {self.patch_size[0]}; build a new model.")
        if img_size is not None:
            self.img_size = to_2tuple(img_size)
            # Each halving rounds up, and so does their sequence.
            self.grid_size = tuple(-(-side // p) for side, p in zip(self.img_size, self.patch_size, strict=True))
            self.num_patches = self.grid_size[0] * self.grid_size[1]

    def feat_ratio(self, as_scalar: bool = True) -> int | tuple[int, int]:
        return max(self.patch_size) if as_scalar else self.patch_size

    def dynamic_feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        return tuple(-(-side // p) for side, p in zip(img_size, self.patch_size, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x.contiguous(memory_format=torch.channels_last))  # a quarter faster on a CPU
        return x.flatten(2).transpose(1, 2)  # (B, N, D), no copy


class ConvMlp(nn.Module):
    """An MLP whose hidden tokens also see their eight neighbours, through a depth-wise convolution beside a shortcut."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        act_layer: type[nn.Module] = nn.GELU,
        norm_layer: type[nn.Module] | None = None,
        bias: bool = True,
        drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if norm_layer is not None:
            raise UserError("scale_mlp_norm=True: this MLP has no norm inside; leave it out, or set conv_mlp=False.")
        where = dict(device=device, dtype=dtype)
        self.fc1 = nn.Linear(in_features, hidden_features, bias=bias, **where)
        self.act = act_layer()
        self.conv = nn.Conv2d(
            hidden_features, hidden_features, kernel_size=3, padding=1, groups=hidden_features, **where
        )
        self.fc2 = nn.Linear(hidden_features, in_features, bias=bias, **where)
        self.drop = nn.Dropout(drop)
        self.grid_size: tuple[int, int] = (0, 0)  # set by the model, which knows the image

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.fc1(x))
        grid = x.transpose(1, 2).unflatten(2, self.grid_size)  # (B, hidden, height, width), channels last
        x = x + self.conv(grid).flatten(2).transpose(1, 2)
        return self.drop(self.fc2(self.drop(x)))


class HybridViT(VisionTransformer):
    """timm's ViT with a convolutional stem, convolution in the MLP, fixed positions and no class token.

    `conv_stem` and `conv_mlp` can be switched off, to see what each brings.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 32,
        patch_size: int = 8,
        global_pool: str = "avg",
        conv_stem: bool = True,
        conv_mlp: bool = True,
        **kwargs: Any,
    ):
        if kwargs.get("dynamic_img_size"):
            raise UserError(
                "dynamic_img_size=True: positions are made for one size; use model.set_input_size(img_size)."
            )
        super().__init__(
            img_size=img_size,
            patch_size=patch_size,
            global_pool=global_pool,
            class_token=False,
            pos_embed="none",
            fc_norm=False,
            embed_layer=ConvStem if conv_stem else PatchEmbed,
            mlp_layer=ConvMlp if conv_mlp else Mlp,
            norm_layer=partial(LayerNorm, eps=1e-5),
            **kwargs,
        )
        self._place_tokens()

    def _place_tokens(self) -> None:
        """Sine positions of the grid, small beside the tokens; nothing is learnt, so any size can be set later."""
        grid = self.patch_embed.grid_size
        for module in self.modules():
            if isinstance(module, ConvMlp):
                module.grid_size = grid
        embed = build_sincos2d_pos_embed(grid, dim=self.embed_dim)[None] * 0.1
        weight = next(self.parameters())
        self.register_buffer("positions", embed.to(weight.device, weight.dtype), persistent=False)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        super().set_input_size(img_size, patch_size)
        self._place_tokens()

    def _pos_embed(self, x: Tensor) -> Tensor:
        # timm's name for the step between patches and blocks, which its own families replace like this.
        return self.pos_drop(x + self.positions)

    @classmethod
    def default_cfg(cls, *, conv_stem: bool = True, **variant: Any) -> dict:
        first_conv = "patch_embed.proj.0" if conv_stem else "patch_embed.proj"
        return dict(first_conv=first_conv, classifier="head", fixed_input_size=True)


# fmt: off
VARIANTS = {
    "hybrid_vit_test": dict(img_size=16, patch_size=4, embed_dim=32,  depth=2, num_heads=2, mlp_ratio=2, num_classes=10),
    "hybrid_vit_nano": dict(img_size=32, patch_size=8, embed_dim=128, depth=2, num_heads=4, mlp_ratio=2, num_classes=10),
}
# fmt: on

TABLES = [(HybridViT, VARIANTS)]
