"""LV-ViT: a ViT with a convolutional stem, scaled shortcuts, and a class score for every token.

Paper: Jiang et al. 2021, "All Tokens Matter: Token Labeling for Training Better Vision Transformers".
Equal to the authors' release in tests/golden/test_lvvit.py. Deviates: `model(x)` returns logits in training too, unless
`mix_token=True` asks for the release's (class logits, dense logits, box); patches other than 16 px; non-square images.
"""

from collections.abc import Callable, Collection, Sequence
from math import prod, sqrt
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from timm.layers import (
    Attention,
    DropPath,
    Mlp,
    calculate_drop_path_rates,
    resample_patch_embed,
    to_2tuple,
    trunc_normal_,
)
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.models.contract import TokenContract
from vitling.models.layers import init_linear

Box = tuple[int, int, int, int]  # top, left, bottom, right, in cells of the token grid
Mirror = Callable[[Tensor], Tensor]  # gives each row of a batch its partner's


def random_box(grid: tuple[int, int], rng: Any = np.random) -> Box:
    """A box as CutMix draws it: area uniform before clipping, centre uniform in the grid.

    `rng` is NumPy's global generator or a `RandomState`; the order of its three draws is the release's.
    """
    side = sqrt(1 - rng.beta(1.0, 1.0))
    halves = [int(cells * side) // 2 for cells in grid]
    row, column = (int(rng.randint(cells)) for cells in grid)
    return (
        max(row - halves[0], 0),
        max(column - halves[1], 0),
        min(row + halves[0], grid[0]),
        min(column + halves[1], grid[1]),
    )


@torch.compiler.disable  # a box is new at every step: its numbers must not be compiled into the graph
def box_mask(grid: tuple[int, int], box: Box, device: torch.device) -> Tensor:
    top, left, bottom, right = box
    mask = torch.zeros(*grid, 1, dtype=torch.bool, device=device)
    mask[top:bottom, left:right] = True
    return mask


def flip_batch(x: Tensor) -> Tensor:
    """For each row that at the mirrored place."""
    return x.flip(0)


def mix_tokens(x: Tensor, box: Box, mirror: Mirror = flip_batch) -> Tensor:
    """MixToken (eq. 8): inside the box, each (height, width, D) map of a batch takes the cells of its mirror in the batch.

    Doing it twice undoes it.
    """
    return torch.where(box_mask((x.shape[1], x.shape[2]), box, x.device), mirror(x), x)


class PatchStem(nn.Module):
    """Convolutions with BatchNorm and ReLU, then one that cuts the map into patches (Table 4); returns a map.

    The last convolution makes up whatever the strides before it leave of the patch: its stride is `patch_size` divided by
    theirs, and so is its kernel unless `proj_kernel` lets patches overlap. Without kernels it is a plain patch embedding.
    """

    img_size: tuple[int, int]

    def __init__(
        self,
        img_size: int | tuple[int, int],
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        *,
        width: int = 64,
        kernels: Sequence[int] = (7, 3, 3),
        strides: Sequence[int] = (2, 1, 1),
        proj_kernel: int | None = None,
    ):
        super().__init__()
        if len(kernels) != len(strides):
            raise UserError(f"stem_kernels={kernels} and stem_strides={strides} must be of one length.")
        self.num_convs = len(kernels)
        self.stem_stride = prod(strides)
        stride = self.proj_stride(patch_size)
        proj_kernel = proj_kernel or stride
        for i, (kernel, conv_stride) in enumerate(zip(kernels, strides, strict=True), start=1):
            conv = nn.Conv2d(in_chans, width, kernel, stride=conv_stride, padding=kernel // 2, bias=False)
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", nn.BatchNorm2d(width))
            in_chans = width
        self.proj = nn.Conv2d(in_chans, embed_dim, proj_kernel, stride=stride, padding=(proj_kernel - stride) // 2)
        self.patch_size = to_2tuple(patch_size)
        self.set_input_size(img_size)

    def proj_stride(self, patch_size: int) -> int:
        if patch_size % self.stem_stride:
            raise UserError(f"patch_size={patch_size} must be a multiple of the stem's stride, {self.stem_stride}.")
        return patch_size // self.stem_stride

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        if patch_size is not None:
            self.set_patch_size(to_2tuple(patch_size)[0])
        height, width = to_2tuple(img_size or self.img_size)
        patch = self.patch_size[0]
        if height % patch or width % patch:
            raise UserError(f"img_size={height}x{width} must be a multiple of patch_size={patch} on both sides.")
        self.img_size = (height, width)
        self.grid_size = (height // patch, width // patch)
        self.num_patches = prod(self.grid_size)

    @torch.no_grad()
    def set_patch_size(self, patch_size: int) -> None:
        """Resize the kernel of the last convolution; the ones before it stay."""
        old, stride = self.proj, self.proj_stride(patch_size)
        if old.kernel_size != old.stride:
            raise UserError(f"patch_size={patch_size}: the patches of this stem overlap; build a new model.")
        self.proj = nn.Conv2d(old.in_channels, old.out_channels, stride, stride=stride).to(old.weight)
        self.proj.weight.copy_(resample_patch_embed(old.weight, [stride, stride]))
        self.proj.bias.copy_(old.bias)
        self.patch_size = to_2tuple(patch_size)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(1, self.num_convs + 1):
            x = F.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)))
        return self.proj(x)


class TokenGroupNorm(nn.GroupNorm):
    """GroupNorm over the channels of each token (Table 9); with one group it is LayerNorm."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view_as(x)


class Block(nn.Module):
    """Attention and MLP whose outputs are divided by `skip_lam`, the 1 / alpha of eq. 5, before they join the stream.

    `kind` "mha" or "ffn" has one of the two only; as in the release, its norm then sees the stream times `skip_lam`.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        head_dim: int | None = None,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        skip_lam: float = 1.0,
        norm_groups: int | None = None,
        kind: Literal["tr", "mha", "ffn"] = "tr",
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        self.kind = kind
        self.skip_lam = skip_lam
        if kind != "ffn":
            self.norm1 = make_norm(dim, norm_groups)
            self.attn = Attention(dim, num_heads, head_dim, qkv_bias=qkv_bias, attn_drop=attn_drop, proj_drop=proj_drop)
            self.drop_path1 = DropPath(drop_path)
        if kind != "mha":
            self.norm2 = make_norm(dim, norm_groups)
            self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
            self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        alpha = 1 / self.skip_lam
        if self.kind != "ffn":
            x = torch.add(x, self.drop_path1(self.attn(self.norm1(self.scale_input(x)))), alpha=alpha)
        if self.kind != "mha":
            x = torch.add(x, self.drop_path2(self.mlp(self.norm2(self.scale_input(x)))), alpha=alpha)
        return x

    def scale_input(self, x: Tensor) -> Tensor:
        return x if self.kind == "tr" else x * self.skip_lam


class LVViT(TokenContract):
    """A ViT with two heads: `head` reads the class token, `aux_head` every patch token (`return_dense`).

    `model(x)` is the class logits plus `max_dense_weight` times the largest dense logit of each class, as the release
    predicts (0 leaves the class logits, as the paper does), so plain supervised training reaches both heads. Token
    labeling calls `forward_tokens`; with `mix_token`, so does `model(x)` in train mode.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 384,
        depth: int = 16,
        num_heads: int = 6,
        head_dim: int | None = None,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        skip_lam: float = 1.0,
        order: Sequence[Literal["tr", "mha", "ffn"]] | None = None,
        norm_groups: int | None = None,
        stem_width: int = 64,
        stem_kernels: Sequence[int] = (7, 3, 3),
        stem_strides: Sequence[int] = (2, 1, 1),
        proj_kernel: int | None = None,
        return_dense: bool = False,
        mix_token: bool = False,
        max_dense_weight: float = 0.5,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ):
        super().__init__()
        order = ["tr"] * depth if order is None else list(order)
        for kind in order:
            if kind not in ("tr", "mha", "ffn"):
                raise UserError(f"unknown block {kind!r} in order={order}; use 'tr', 'mha' or 'ffn'.")
        if mix_token and not return_dense:
            raise UserError("mix_token=True needs the dense head; add return_dense=True.")
        if head_dim is None and embed_dim % num_heads:
            raise UserError(f"embed_dim={embed_dim} must be a multiple of num_heads={num_heads}, or give head_dim.")
        if norm_groups and embed_dim % norm_groups:
            raise UserError(f"embed_dim={embed_dim} must be a multiple of norm_groups={norm_groups}.")
        self.in_chans = in_chans
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.return_dense = return_dense
        self.mix_token = mix_token
        self.max_dense_weight = max_dense_weight

        self.patch_embed = PatchStem(
            img_size,
            patch_size,
            in_chans,
            embed_dim,
            width=stem_width,
            kernels=stem_kernels,
            strides=stem_strides,
            proj_kernel=proj_kernel,
        )
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + self.patch_embed.num_patches, embed_dim))
        self.pos_drop = nn.Dropout(pos_drop_rate)
        drop_path_rates = calculate_drop_path_rates(drop_path_rate, len(order))
        self.blocks = nn.Sequential(
            *(
                Block(
                    embed_dim,
                    num_heads=num_heads,
                    head_dim=head_dim,
                    mlp_ratio=mlp_ratio,
                    qkv_bias=qkv_bias,
                    skip_lam=skip_lam,
                    norm_groups=norm_groups,
                    kind=kind,
                    attn_drop=attn_drop_rate,
                    proj_drop=proj_drop_rate,
                    drop_path=drop_path,
                )
                for kind, drop_path in zip(order, drop_path_rates, strict=True)
            )
        )
        self.norm = make_norm(embed_dim, norm_groups)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.feature_info = [
            dict(module=f"blocks.{i}", num_chs=embed_dim, reduction=patch_size) for i in range(len(order))
        ]

        trunc_normal_(self.cls_token, std=0.02)
        trunc_normal_(self.pos_embed, std=0.02)
        self.apply(init_linear)

    @classmethod
    def default_cfg(
        cls,
        *,
        img_size: int | tuple[int, int] = 224,
        embed_dim: int = 384,
        stem_kernels: Sequence[int] = (7, 3, 3),
        return_dense: bool = False,
        **variant: Any,
    ) -> dict:
        return dict(
            first_conv="patch_embed.conv1" if stem_kernels else "patch_embed.proj",
            classifier=("head", "aux_head") if return_dense else "head",
            crop_pct=0.9 if img_size == 224 and embed_dim < 512 else 1.0,
            fixed_input_size=True,
        )

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """New heads, both of them (the release forgets `aux_head`)."""
        super().reset_classifier(num_classes, global_pool)
        self.aux_head = self.new_head() if num_classes > 0 and self.return_dense else None

    def embed(self, x: Tensor, box: Box | None = None, mirror: Mirror = flip_batch) -> Tensor:
        """Images to tokens, class token first; a box is mixed before the positions are added, which stay in place."""
        x = self.patch_embed(x)
        grid = self.patch_embed.grid_size
        self.check_size(x, grid, "a grid of patches")
        x = x.flatten(2).transpose(1, 2)  # (B, N, D)
        if box is not None:
            x = mix_tokens(x.unflatten(1, grid), box, mirror).flatten(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        return self.pos_drop(x + self.pos_embed)

    def forward_blocks(
        self,
        x: Tensor,
        take: Collection[int] = (),
        stop: int | None = None,
        box: Box | None = None,
        mirror: Mirror = flip_batch,
    ) -> tuple[Tensor, list[Tensor]]:
        return self.run_blocks(self.embed(x, box, mirror), take=take, stop=stop)

    def forward_features(self, x: Tensor, box: Box | None = None, mirror: Mirror = flip_batch) -> Tensor:
        return self.norm(self.forward_blocks(x, box=box, mirror=mirror)[0])

    def forward_tokens(
        self, x: Tensor, box: Box | Literal["random"] | None = None, mirror: Mirror = flip_batch
    ) -> tuple[Tensor, Tensor, Box | None]:
        """Class logits (B, classes), dense logits (B, N, classes) and the box whose tokens were mixed on the way.

        The class logits see the mixed image; the dense logits are put back, each to the image its token came from.
        """
        if self.aux_head is None:
            raise UserError("this LV-ViT has no dense head; build it with return_dense=True and num_classes > 0.")
        if box == "random":
            box = random_box(self.patch_embed.grid_size)
        x = self.forward_features(x, box, mirror)
        dense = self.dense_logits(x)
        if box is not None:
            dense = mix_tokens(dense.unflatten(1, self.patch_embed.grid_size), box, mirror).flatten(1, 2)
        return self.head(self.pool(x)), dense, box

    def dense_logits(self, x: Tensor) -> Tensor:
        assert self.aux_head is not None
        return self.aux_head(self.head_drop(x[:, 1:]))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = self.pool(x)
        if pre_logits:
            return pooled
        logits = self.head(pooled)
        if self.aux_head is None or self.max_dense_weight == 0 or self.global_pool == "":
            return logits
        return logits + self.max_dense_weight * self.dense_logits(x).amax(dim=1)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor, Box | None]:
        if self.mix_token and self.training:
            return self.forward_tokens(x, "random")
        return self.forward_head(self.forward_features(x))


def make_norm(dim: int, groups: int | None) -> nn.Module:
    return nn.LayerNorm(dim) if groups is None else TokenGroupNorm(groups, dim)


# fmt: off
VARIANTS = {
    "lvvit_test":  dict(img_size=16, patch_size=4, embed_dim=48,  depth=2,  num_heads=4,  stem_width=16,  skip_lam=2.0, return_dense=True, num_classes=10),
    "lvvit_nano":  dict(img_size=32, patch_size=4, embed_dim=96,  depth=9,  num_heads=3,  stem_width=64,  skip_lam=2.0, return_dense=True, num_classes=10),
    "lvvit_t":     dict(embed_dim=240, depth=12, num_heads=4,  stem_width=64,  skip_lam=1.0, return_dense=True),
    "lvvit_s":     dict(embed_dim=384, depth=16, num_heads=6,  stem_width=64,  skip_lam=2.0, return_dense=True),
    "lvvit_m":     dict(embed_dim=512, depth=20, num_heads=8,  stem_width=64,  skip_lam=2.0, return_dense=True),
    "lvvit_l":     dict(embed_dim=768, depth=24, num_heads=12, stem_width=128, skip_lam=3.0, return_dense=True),
    "lvvit":       dict(embed_dim=384, depth=16, num_heads=6,  stem_width=64,  skip_lam=2.0),
    "lvvit_plain": dict(embed_dim=384, depth=16, num_heads=6,  stem_kernels=(), stem_strides=()),
}
# fmt: on

TABLES = [(LVViT, VARIANTS)]
