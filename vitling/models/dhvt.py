"""DHVT: a ViT with convolution in its patches and in its MLP, and one token per head in its attention.

Paper: Lu et al. 2022, "Bridging the Gap Between Vision Transformers and Convolutional Neural Networks on Small Datasets".
Equal to the authors' release in tests/golden/test_dhvt.py. Deviates: any grid shape, channel count and power-of-two patch;
`sope`, `daff`, `head_tokens` and `abs_pos_embed` switch independently, so that every row of Tables 5 and 6 can be built.
"""

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import (
    Attention,
    DropPath,
    Mlp,
    PatchEmbed,
    calculate_drop_path_rates,
    to_2tuple,
    trunc_normal_,
    use_fused_attn,
)
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.models.contract import TokenContract
from vitling.models.layers import init_linear


class Affine(nn.Module):
    """A scale and a shift per channel of a map."""

    def __init__(self, channels: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.beta, self.alpha, x)


class SOPE(nn.Module):
    """Sequential overlapping patch embedding: 3x3 convolutions that halve the map, one per factor 2 of the patch."""

    def __init__(
        self,
        img_size: int | tuple[int, int],
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        *,
        final_act: bool | str = "official",
    ):
        super().__init__()
        stages = patch_size.bit_length() - 1
        if patch_size < 2 or patch_size != 2**stages:
            raise UserError(f"patch_size={patch_size}: SOPE halves the map, so use 2, 4, 8, 16 ... or sope=False.")
        if embed_dim % 2 ** (stages - 1):
            raise UserError(
                f"embed_dim={embed_dim} must be a multiple of {2 ** (stages - 1)} for patch_size={patch_size}."
            )
        if final_act == "official":
            # Eq. 2 and 3 have a GELU in every stage; the release drops the last one except for 2x2 patches.
            final_act = patch_size == 2
        elif not isinstance(final_act, bool):
            raise UserError(f"final_act={final_act!r} is unknown; use 'official', True or False.")
        widths = [in_chans] + [embed_dim >> (stages - 1 - stage) for stage in range(stages)]
        layers = []
        for width_in, width_out in pairwise(widths):
            conv = nn.Conv2d(width_in, width_out, kernel_size=3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(conv, nn.BatchNorm2d(width_out)), nn.GELU()]
        self.proj = nn.Sequential(*(layers if final_act else layers[:-1]))
        self.pre_affine = Affine(in_chans)
        self.post_affine = Affine(embed_dim)
        self.patch_size = to_2tuple(patch_size)
        self.set_input_size(img_size)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        if patch_size is not None and to_2tuple(patch_size) != self.patch_size:
            raise UserError(
                f"patch_size={patch_size}: SOPE's convolutions are made for {self.patch_size[0]}; build a new model."
            )
        if img_size is not None:
            self.img_size = to_2tuple(img_size)
            self.grid_size = self.dynamic_feat_size(self.img_size)
            self.num_patches = self.grid_size[0] * self.grid_size[1]

    def dynamic_feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        # Each stage rounds up, and so does their sequence.
        return tuple(-(-side // patch) for side, patch in zip(img_size, self.patch_size, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        # Channels last: the convolutions take a quarter less time on a CPU, and flattening to tokens copies nothing.
        x = x.contiguous(memory_format=torch.channels_last)
        return self.post_affine(self.proj(self.pre_affine(x)))


class PointwiseConv(nn.Conv2d):
    """A 1x1 convolution that takes tokens: the same weight as on a map, without the way there and back."""

    def __init__(self, dim_in: int, dim_out: int):
        super().__init__(dim_in, dim_out, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.flatten(1), self.bias)


class DAFF(nn.Module):
    """Dynamic aggregation feed-forward: an MLP with a depth-wise convolution, whose summary re-weights the class token.

    Works on flattened tokens, which BatchNorm and the two matrix products take faster than a map (a quarter of the
    training time on a CPU); only the depth-wise convolution sees the map, as a channels-last view.
    """

    def __init__(self, dim: int, hidden_dim: int, *, reduction: int = 4):
        super().__init__()
        self.conv1 = PointwiseConv(dim, hidden_dim)
        self.conv2 = nn.Conv2d(hidden_dim, hidden_dim, kernel_size=3, padding=1, groups=hidden_dim)
        self.conv3 = PointwiseConv(hidden_dim, dim)
        self.act = nn.GELU()
        self.bn1 = nn.BatchNorm1d(hidden_dim)
        self.bn2 = nn.BatchNorm1d(hidden_dim)
        self.bn3 = nn.BatchNorm1d(dim)
        self.compress = nn.Linear(dim, dim // reduction)
        self.excitation = nn.Linear(dim // reduction, dim)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        cls, patches = x[:, :1], x[:, 1:]
        B, N, D = patches.shape
        x = self.act(self.bn1(self.conv1(patches).flatten(0, 1)))  # (B * N, hidden)
        x = x + self.act(self.bn2(self.aggregate(x.view(B, *grid, -1)).flatten(0, 2)))
        patches = self.bn3(self.conv3(x)).view(B, N, D)
        weight = self.excitation(self.act(self.compress(patches.mean(dim=1, keepdim=True))))
        return torch.cat([cls * weight, patches], dim=1)

    def aggregate(self, x: Tensor) -> Tensor:
        """The depth-wise convolution on a (B, height, width, D) map."""
        return self.conv2(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class HeadInteractedAttention(nn.Module):
    """Self-attention over patches plus one token per head, so that heads can talk to each other (eq. 6, 7)."""

    def __init__(
        self, dim: int, *, num_heads: int, qkv_bias: bool = True, attn_drop: float = 0.0, proj_drop: float = 0.0
    ):
        super().__init__()
        head_dim = dim // num_heads
        self.num_heads = num_heads
        self.scale = head_dim**-0.5
        self.fused_attn = use_fused_attn()
        self.pos_embed = nn.Parameter(torch.empty(1, num_heads, dim))  # which head a head token stands for
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.ht_proj = nn.Linear(head_dim, dim)
        self.ht_norm = nn.LayerNorm(head_dim)  # not in eq. 6, but in the release
        self.act = nn.GELU()
        trunc_normal_(self.pos_embed, std=0.02)

    def head_tokens(self, x: Tensor) -> Tensor:
        """What each head sees of the image on average, as a token of full width (eq. 6)."""
        B, _, D = x.shape
        x = self.ht_proj(x.mean(dim=1).view(B, self.num_heads, -1))  # (B, H, D)
        x = self.act(self.ht_norm(x.view(B, self.num_heads, self.num_heads, -1)))
        return x.view(B, self.num_heads, D) + self.pos_embed

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.fused_attn:
            x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop.p if self.training else 0.0)
        else:
            x = self.attn_drop((q * self.scale @ k.mT).softmax(dim=-1)) @ v
        return x.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        x = torch.cat([x, self.head_tokens(x)], dim=1)  # (B, N + H, D)
        q, k, v = self.qkv(x).view(B, N + self.num_heads, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        x = self.proj(self.attend(q, k, v))
        # Head tokens live for one layer: their mean returns to the class token.
        cls, patches, heads = x.split([1, N - 1, self.num_heads], dim=1)
        return self.proj_drop(torch.cat([cls + heads.mean(dim=1, keepdim=True), patches], dim=1))


class Block(nn.Module):
    """Attention and feed-forward, each after a LayerNorm and beside a shortcut; either can be the plain one of DeiT."""

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        head_tokens: bool = True,
        daff: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        attention = HeadInteractedAttention if head_tokens else Attention
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = attention(dim, num_heads=num_heads, qkv_bias=qkv_bias, attn_drop=attn_drop, proj_drop=proj_drop)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        hidden_dim = int(dim * mlp_ratio)
        self.daff = daff
        self.mlp = DAFF(dim, hidden_dim) if daff else Mlp(dim, hidden_dim, drop=proj_drop)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x)))
        y = self.norm2(x)
        return x + self.drop_path2(self.mlp(y, grid) if self.daff else self.mlp(y))


class DHVT(TokenContract):
    """Dynamic Hybrid Vision Transformer; with all four switches turned the other way, the DeiT it is measured against.

    Without `abs_pos_embed` nothing depends on the image size: any size can be given to the forward pass.
    As released, the embeddings of head tokens, `blocks.*.attn.pos_embed`, do decay.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 4,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        sope: bool = True,
        daff: bool = True,
        head_tokens: bool = True,
        abs_pos_embed: bool = False,
        final_act: bool | str = "official",
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ):
        super().__init__()
        if embed_dim % num_heads:
            raise UserError(f"embed_dim={embed_dim} must be a multiple of num_heads={num_heads}.")
        if final_act != "official" and not sope:
            raise UserError(f"final_act={final_act} belongs to SOPE; leave it out or set sope=True.")
        self.in_chans = in_chans
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim

        if sope:
            self.patch_embed = SOPE(img_size, patch_size, in_chans, embed_dim, final_act=final_act)
        else:
            self.patch_embed = PatchEmbed(
                img_size, patch_size, in_chans, embed_dim, flatten=False, strict_img_size=False
            )
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.pos_embed = None
        if abs_pos_embed:
            self.pos_embed = nn.Parameter(torch.empty(1, 1 + self.patch_embed.num_patches, embed_dim))
        self.pos_drop = nn.Dropout(pos_drop_rate)
        self.blocks = nn.ModuleList(
            Block(
                embed_dim,
                num_heads=num_heads,
                mlp_ratio=mlp_ratio,
                qkv_bias=qkv_bias,
                head_tokens=head_tokens,
                daff=daff,
                attn_drop=attn_drop_rate,
                proj_drop=proj_drop_rate,
                drop_path=drop_path,
            )
            for drop_path in calculate_drop_path_rates(drop_path_rate, depth)
        )
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.feature_info = [
            dict(module=f"blocks.{i}", num_chs=embed_dim, reduction=max(self.patch_embed.patch_size))
            for i in range(depth)
        ]

        trunc_normal_(self.cls_token, std=0.02)
        if abs_pos_embed:
            trunc_normal_(self.pos_embed, std=0.02)
        self.apply(init_linear)

    @classmethod
    def default_cfg(
        cls,
        *,
        img_size: int | tuple[int, int] = 224,
        sope: bool = True,
        abs_pos_embed: bool = False,
        **variant: Any,
    ) -> dict:
        return dict(
            first_conv="patch_embed.proj.0.0" if sope else "patch_embed.proj",
            classifier="head",
            crop_pct=0.875 if img_size == 224 else 1.0,
            fixed_input_size=abs_pos_embed,
        )

    def embed(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Images to tokens, class token first, and the shape of the grid they came from."""
        x = self.patch_embed(x)
        grid = (x.shape[2], x.shape[3])
        if self.pos_embed is not None:
            self.check_size(x, self.patch_embed.grid_size, "a grid of patches")
        x = x.flatten(2).transpose(1, 2)  # (B, N, D)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        if self.pos_embed is not None:
            x = x + self.pos_embed
        return self.pos_drop(x), grid

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        return self.patch_embed.dynamic_feat_size(images.shape[-2:])

    def forward_blocks(
        self, x: Tensor, take: Collection[int] = (), stop: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        x, grid = self.embed(x)
        return self.run_blocks(x, grid, take=take, stop=stop)


# fmt: off
VARIANTS = {
    "dhvt_test":                   dict(img_size=16,  patch_size=4,  embed_dim=48,  depth=2,  num_heads=4, num_classes=10),
    "dhvt_nano":                   dict(img_size=32,  patch_size=4,  embed_dim=96,  depth=7,  num_heads=3, num_classes=10),
    "dhvt_tiny_cifar_patch4":      dict(img_size=32,  patch_size=4,  embed_dim=192, depth=12, num_heads=4, num_classes=100),
    "dhvt_small_cifar_patch4":     dict(img_size=32,  patch_size=4,  embed_dim=384, depth=12, num_heads=8, num_classes=100),
    "dhvt_tiny_cifar_patch2":      dict(img_size=32,  patch_size=2,  embed_dim=192, depth=12, num_heads=4, num_classes=100),
    "dhvt_small_cifar_patch2":     dict(img_size=32,  patch_size=2,  embed_dim=384, depth=12, num_heads=8, num_classes=100),
    "dhvt_tiny_domain_patch16":    dict(img_size=224, patch_size=16, embed_dim=192, depth=12, num_heads=4, num_classes=345),
    "dhvt_small_domain_patch16":   dict(img_size=224, patch_size=16, embed_dim=384, depth=12, num_heads=6, num_classes=345),
    "dhvt_tiny_imagenet_patch16":  dict(img_size=224, patch_size=16, embed_dim=192, depth=12, num_heads=3),
    "dhvt_small_imagenet_patch16": dict(img_size=224, patch_size=16, embed_dim=384, depth=12, num_heads=6),
}
# fmt: on

TABLES = [(DHVT, VARIANTS)]
