"""T2T-ViT: overlapping patches are merged into tokens step by step, then a deep and narrow ViT.

Paper: Yuan et al. 2021, "Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet".
Equal to the authors' release in tests/golden/test_t2t.py. Deviates: any grid shape and channel count, kernels, strides
and paddings of the soft splits are arguments, the convolution kind runs, and the performer stays in float32 under
autocast (in half precision its 1e-8 is zero, and 0/0 is the NaN that users of the release report).
"""

import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import (
    DropPath,
    Mlp,
    PatchEmbed,
    calculate_drop_path_rates,
    to_2tuple,
    trunc_normal_,
    use_fused_attn,
)
from torch import Tensor, nn

from vitling.errors import UserError, did_you_mean
from vitling.models.contract import TokenContract, resize_positions
from vitling.models.layers import init_linear


def sinusoid_table(num_positions: int, dim: int) -> Tensor:
    """Sines in the even columns and cosines in the odd ones, over the flattened sequence: (1, N, D)."""
    column = torch.arange(dim)
    # float64, because the fast columns of late rows lose digits in float32
    angle = torch.arange(num_positions).double()[:, None] / 10000 ** (2 * (column // 2).double() / dim)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()[None]


# ---------------------------------------------------------------------------------------------------------------------
# Tokens-to-token: soft split, token layer, re-structurisation


class TokenAttention(nn.Module):
    """One-head self-attention from wide overlapping patches to narrow tokens; its residual is v, not its input."""

    def __init__(self, dim_in: int, dim: int, *, drop: float = 0.0):
        super().__init__()
        self.scale = dim_in**-0.5  # of the patch, not of the head: the released weights were trained so
        self.fused_attn = use_fused_attn()
        self.qkv = nn.Linear(dim_in, 3 * dim, bias=False)
        self.attn_drop = nn.Dropout(0.0)  # the weights pass here to be seen
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)  # (B, 1, N, K)
        if self.fused_attn:
            y = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        else:
            y = self.attn_drop((q * self.scale @ k.mT).softmax(dim=-1)) @ v
        return (v + self.proj_drop(self.proj(y))).squeeze(1)


class TokenTransformer(nn.Module):
    """Token layer of the T2T-ViT_t models: attention over all patches, then an MLP of ratio 1."""

    def __init__(self, dim_in: int, dim: int, *, drop: float = 0.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim_in)
        self.attn = TokenAttention(dim_in, dim, drop=drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, dim, drop=drop)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


@torch.fx.wrap  # one node of a traced graph, which would forget the context
def linear_attention(k: Tensor, q: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Attention through random features, which span so many decades that it is done in float32 whatever autocast says."""
    device = v.device.type
    known = torch.amp.is_autocast_available(device)  # meta tensors do not know autocast
    with torch.autocast(device, enabled=False) if known else nullcontext():
        k, q, v = random_features(k.float(), w.float()), random_features(q.float(), w.float()), v.float()
        normaliser = q @ k.sum(dim=1)[..., None]  # (B, N, 1)
        return q @ (k.mT @ v) / (normaliser + 1e-8)


def random_features(z: Tensor, w: Tensor) -> Tensor:
    """Features whose inner product estimates exp(z . z'): (..., K) -> (..., K/2)."""
    exponent = z @ w.T - z.square().sum(dim=-1, keepdim=True) / 2
    return exponent.exp() / math.sqrt(len(w))


class TokenPerformer(nn.Module):
    """Token layer with linear attention: positive random features stand in for the softmax (Performer)."""

    def __init__(self, dim_in: int, dim: int, *, drop: float = 0.1):
        super().__init__()
        num_features = dim // 2
        self.norm1 = nn.LayerNorm(dim_in)
        self.kqv = nn.Linear(dim_in, 3 * dim)
        # Never trained and never redrawn, but a checkpoint is worthless without it.
        self.register_buffer("w", torch.empty(num_features, dim))
        nn.init.orthogonal_(self.w, gain=math.sqrt(num_features))
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.Dropout(drop))

    def attend(self, k: Tensor, q: Tensor, v: Tensor) -> Tensor:
        return linear_attention(k, q, v, self.w)

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = self.kqv(self.norm1(x)).chunk(3, dim=-1)  # in this order
        x = v + self.proj_drop(self.proj(self.attend(k, q, v).to(v.dtype)))
        return x + self.mlp(self.norm2(x))


class FrontEnd(nn.Module):
    """Three overlapping splits in a row: their sizes, and the grid of tokens after each."""

    img_size: tuple[int, int]

    def __init__(
        self,
        img_size: int | tuple[int, int],
        *,
        kernels: Sequence[int] = (7, 3, 3),
        strides: Sequence[int] = (4, 2, 2),
        paddings: Sequence[int] = (2, 1, 1),
    ):
        super().__init__()
        if not len(kernels) == len(strides) == len(paddings) == 3:
            given = f"kernels={tuple(kernels)}, strides={tuple(strides)}, paddings={tuple(paddings)}"
            raise UserError(f"{given}: the front end splits three times; give three numbers of each.")
        self.splits = [
            dict(kernel_size=k, stride=s, padding=p) for k, s, p in zip(kernels, strides, paddings, strict=True)
        ]
        self.set_input_size(img_size)

    def feat_ratio(self) -> int:
        return math.prod(split["stride"] for split in self.splits)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        if patch_size is not None and to_2tuple(patch_size) != to_2tuple(self.feat_ratio()):
            raise UserError(
                f"patch_size={patch_size}: this front end makes one token of {self.feat_ratio()} px, the product of its "
                "strides; change strides instead."
            )
        size = img_size = self.img_size if img_size is None else to_2tuple(img_size)
        grids = []
        for split in self.splits:
            kernel, stride, padding = split.values()
            if min(size) + 2 * padding < kernel:
                raise UserError(
                    f"img_size={img_size} is too small: a split of kernel {kernel} and padding {padding} meets "
                    f"{size[0]}x{size[1]}; use larger images, or smaller kernels and strides."
                )
            size = tuple((side + 2 * padding - kernel) // stride + 1 for side in size)
            grids.append(size)
        self.img_size, self.grids, self.grid_size, self.num_patches = img_size, grids, size, math.prod(size)


class TokensToToken(FrontEnd):
    """Soft split, token layer and back to an image, twice; then a last soft split: (B, C, H, W) -> (B, N, D)."""

    def __init__(
        self,
        img_size: int | tuple[int, int],
        in_chans: int,
        embed_dim: int,
        *,
        token_layer: type,
        token_dim: int = 64,
        drop: float | None = None,
        **splits: Any,
    ):
        super().__init__(img_size, **splits)
        areas = [split["kernel_size"] ** 2 for split in self.splits]
        dropout = (
            {} if drop is None else dict(drop=drop)
        )  # the release drops in one kind of token layer and not the other
        self.attention1 = token_layer(in_chans * areas[0], token_dim, **dropout)
        self.attention2 = token_layer(token_dim * areas[1], token_dim, **dropout)
        # Split and projection are one convolution with this weight; it was measured and is no faster.
        self.project = nn.Linear(token_dim * areas[2], embed_dim)

    def soft_split(self, x: Tensor, step: int) -> Tensor:
        """Overlapping patches, channel-major within a patch: (B, C, H, W) -> (B, N, C * kernel * kernel)."""
        return F.unfold(x, **self.splits[step]).mT

    def restructurise(self, x: Tensor, step: int) -> Tensor:
        """Tokens back on their grid: (B, N, C) -> (B, C, H, W)."""
        # Flat and back changes nothing but the layout of the gradient, of which torch.compile is mistaken behind dropout.
        return x.flatten(0, 1).view_as(x).mT.unflatten(2, self.grids[step])

    def forward(self, x: Tensor) -> Tensor:
        x = self.restructurise(self.attention1(self.soft_split(x, 0)), 0)
        x = self.restructurise(self.attention2(self.soft_split(x, 1)), 1)
        return self.project(self.soft_split(x, 2))


class ConvTokens(FrontEnd):
    """T2T-ViT_c of the paper: three convolutions in place of the soft splits, with nothing between them."""

    def __init__(
        self, img_size: int | tuple[int, int], in_chans: int, embed_dim: int, *, token_dim: int = 64, **splits: Any
    ):
        super().__init__(img_size, **splits)
        self.soft_split0 = nn.Conv2d(in_chans, token_dim, **self.splits[0])
        self.soft_split1 = nn.Conv2d(token_dim, token_dim, **self.splits[1])
        self.project = nn.Conv2d(token_dim, embed_dim, **self.splits[2])

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.soft_split1(self.soft_split0(x))).flatten(2).mT


TOKEN_LAYERS = {"transformer": TokenTransformer, "performer": TokenPerformer}
# Where pixels enter. A linear layer over unfolded pixels is a first convolution in all but name.
FIRST_LAYERS = {
    "transformer": "tokens_to_token.attention1.attn.qkv",
    "performer": "tokens_to_token.attention1.kqv",
    "convolution": "tokens_to_token.soft_split0",
    "patch": "patch_embed.proj",
}


def create_front_end(
    tokens_type: str,
    img_size: int | tuple[int, int],
    in_chans: int,
    embed_dim: int,
    patch_size: int | None,
    t2t: dict[str, Any],
) -> nn.Module:
    """What turns images into tokens; `t2t` holds those arguments of the soft splits that were given."""
    if tokens_type == "patch":
        if t2t:
            raise UserError(f"{', '.join(t2t)}: tokens_type='patch' has no soft splits; it takes patch_size alone.")
        return PatchEmbed(img_size, patch_size or 16, in_chans, embed_dim)
    if tokens_type == "convolution":
        if "drop" in t2t:
            raise UserError("token_drop_rate: tokens_type='convolution' has no dropout; try 'performer'.")
        front_end = ConvTokens(img_size, in_chans, embed_dim, **t2t)
    elif tokens_type in TOKEN_LAYERS:
        front_end = TokensToToken(img_size, in_chans, embed_dim, token_layer=TOKEN_LAYERS[tokens_type], **t2t)
    else:
        raise UserError(f"unknown tokens_type {tokens_type!r}. {did_you_mean(str(tokens_type), FIRST_LAYERS)}")
    front_end.set_input_size(patch_size=patch_size)
    return front_end


# ---------------------------------------------------------------------------------------------------------------------
# Backbone


class ChannelGate(nn.Module):
    """Squeeze-and-excitation over tokens: each channel is scaled by what all tokens say about it on average."""

    def __init__(self, dim: int, reduction: int = 16):
        super().__init__()
        hidden = max(dim // reduction, 1)
        self.fc = nn.Sequential(
            nn.Linear(dim, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, dim, bias=False), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.fc(x.mean(dim=1, keepdim=True))


class CheapOperation(nn.Module):
    """GhostNet's depthwise convolution of size 1: a factor per channel."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, 1, 1).uniform_(-1, 1))  # shape and start of the Conv1d it is

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.flatten()


class Attention(nn.Module):
    """Multi-head self-attention, with a channel gate behind it if `se`."""

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        qkv_bias: bool = False,
        se: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ):
        super().__init__()
        if dim % num_heads:
            raise UserError(f"width {dim} does not divide into num_heads={num_heads}; change embed_dim or num_heads.")
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.fused_attn = use_fused_attn()
        self.create_qkv(dim, qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.se_layer = ChannelGate(dim) if se else nn.Identity()
        self.proj_drop = nn.Dropout(proj_drop)

    def create_qkv(self, dim: int, bias: bool) -> None:
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)

    def project_qkv(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).chunk(3, dim=-1)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # (B, H, N, K)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project_qkv(x)
        q, k, v = self.split_heads(q), self.split_heads(k), self.split_heads(v)
        if self.fused_attn:
            drop = self.attn_drop.p if self.training else 0.0
            x = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, scale=self.scale)
        else:
            x = self.attn_drop((q * self.scale @ k.mT).softmax(dim=-1)) @ v
        x = self.proj(x.transpose(1, 2).flatten(2))
        return self.proj_drop(self.se_layer(x))


class GhostAttention(Attention):
    """Attention whose first half of the heads is computed, and the second half a cheap copy of the first."""

    def create_qkv(self, dim: int, bias: bool) -> None:
        if dim % 2:
            raise UserError(f"ghost attention halves its width; embed_dim={dim} is odd, use an even one.")
        self.q, self.k, self.v = (nn.Linear(dim, dim // 2, bias=bias) for _ in range(3))
        self.cheap_operation_q, self.cheap_operation_k, self.cheap_operation_v = (
            CheapOperation(dim // 2) for _ in range(3)
        )

    def project_qkv(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = self.q(x), self.k(x), self.v(x)
        return (
            torch.cat([q, self.cheap_operation_q(q)], dim=-1),
            torch.cat([k, self.cheap_operation_k(k)], dim=-1),
            torch.cat([v, self.cheap_operation_v(v)], dim=-1),
        )


class GhostMlp(nn.Module):
    """MLP of ratio 3, of whose hidden units one third is computed and the rest are cheap copies of it."""

    def __init__(self, dim: int, *, drop: float = 0.0):
        super().__init__()
        self.fc1 = nn.Linear(dim, dim)
        self.cheap_operation2 = CheapOperation(dim)
        self.cheap_operation3 = CheapOperation(dim)
        self.act = nn.GELU()
        self.drop1 = nn.Dropout(drop)
        self.fc2 = nn.Linear(3 * dim, dim)
        self.drop2 = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.fc1(x))
        x = torch.cat([x, self.act(self.cheap_operation2(x)), self.act(self.cheap_operation3(x))], dim=-1)
        return self.drop2(self.fc2(self.drop1(x)))


class Block(nn.Module):
    """Pre-norm transformer block; `ghost` replaces both of its parts, `se` gates its attention."""

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        mlp_ratio: float,
        qkv_bias: bool = False,
        se: bool = False,
        ghost: bool = False,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        if ghost and mlp_ratio != 3:
            raise UserError(f"mlp_ratio={mlp_ratio}: the ghost MLP joins three parts; its mlp_ratio is 3.")
        attention = GhostAttention if ghost else Attention
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attention(
            dim, num_heads=num_heads, qkv_bias=qkv_bias, se=se, attn_drop=attn_drop, proj_drop=proj_drop
        )
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = GhostMlp(dim, drop=proj_drop) if ghost else Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class DenseBlock(Block):
    """A block that adds `growth_rate` channels to its input and leaves the input as it was."""

    def __init__(self, dim: int, growth_rate: int, **block: Any):
        super().__init__(dim, **block)
        self.dense_linear = nn.Linear(dim, growth_rate)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.dense_linear(super().forward(x))], dim=-1)


class Transition(nn.Module):
    """Halves the width between two stages of dense blocks."""

    def __init__(self, dim: int):
        super().__init__()
        self.linear = nn.Linear(dim, dim // 2)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x))


# ---------------------------------------------------------------------------------------------------------------------
# Models


class TokenModel(TokenContract):
    """Front end, class token, positions, a row of blocks, norm and classifier.

    `tokens_type` is the kind of front end. `kernels`, `strides`, `paddings` and `token_dim` describe its soft splits,
    `token_drop_rate` is the dropout of its token layers; left out, they are the release's.
    """

    stem_group = r"^cls_token|pos_embed|tokens_to_token|patch_embed"
    coarse_groups = r"^blocks\.(\d+)"
    pos_embed: Tensor  # a parameter where it is learned, else a buffer

    def __init__(
        self,
        blocks: list[nn.Module],
        widths: list[int],
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | None = None,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int,
        tokens_type: str = "performer",
        kernels: tuple[int, int, int] | None = None,
        strides: tuple[int, int, int] | None = None,
        paddings: tuple[int, int, int] | None = None,
        token_dim: int | None = None,
        token_drop_rate: float | None = None,
        pos_embed: str = "sinusoid",
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
    ):
        super().__init__()
        if pos_embed not in ("sinusoid", "learn"):
            raise UserError(f"pos_embed={pos_embed!r} is neither 'sinusoid', which stays as it is, nor 'learn'.")
        self.in_chans = in_chans
        self.embed_dim = embed_dim
        self.num_features = self.head_hidden_size = widths[-1]

        t2t = dict(kernels=kernels, strides=strides, paddings=paddings, token_dim=token_dim, drop=token_drop_rate)
        t2t = {name: value for name, value in t2t.items() if value is not None}
        front_end = create_front_end(tokens_type, img_size, in_chans, embed_dim, patch_size, t2t)
        # One role under two names, because checkpoints have them: the authors' T2T, and every ViT's.
        self.front_end_name = "patch_embed" if tokens_type == "patch" else "tokens_to_token"
        self.add_module(self.front_end_name, front_end)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        # Both kinds start as the sinusoid; the learned one is drawn below, with the other weights.
        if pos_embed == "learn":
            self.pos_embed = nn.Parameter(self.sinusoid())
        else:
            self.register_buffer("pos_embed", self.sinusoid())
        self.pos_drop = nn.Dropout(pos_drop_rate)
        self.blocks = nn.Sequential(*blocks)
        self.feature_info = [
            dict(module=f"blocks.{i}", num_chs=width, reduction=front_end.feat_ratio())
            for i, width in enumerate(widths)
        ]
        self.norm = nn.LayerNorm(self.num_features)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.apply(init_linear)
        trunc_normal_(self.cls_token, std=0.02)
        if pos_embed == "learn":
            trunc_normal_(self.pos_embed, std=0.02)

    @classmethod
    def default_cfg(cls, **variant: Any) -> dict:
        return dict(
            first_conv=FIRST_LAYERS[variant.get("tokens_type", "performer")],
            classifier="head",
            crop_pct=0.9 if variant.get("img_size", 224) >= 224 else 1.0,
            fixed_input_size=True,
        )

    @property
    def front_end(self) -> nn.Module:
        return getattr(self, self.front_end_name)

    @property
    def grid_size(self) -> tuple[int, int]:
        return self.front_end.grid_size

    def sinusoid(self) -> Tensor:
        """The table for the present grid, which must not be empty."""
        if not self.front_end.num_patches:
            raise UserError(f"img_size={self.front_end.img_size} is smaller than one patch; use larger images.")
        return sinusoid_table(self.front_end.num_patches + self.num_prefix_tokens, self.embed_dim)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        """Take images of another size: a sinusoid is made anew, as a new model has it; any other table is resized."""
        old_grid = self.grid_size
        is_sinusoid = torch.equal(self.pos_embed.cpu(), self.sinusoid().to(self.pos_embed.dtype))
        self.front_end.set_input_size(img_size=img_size, patch_size=patch_size)
        table = self.sinusoid()
        if not is_sinusoid:
            table = resize_positions(self.pos_embed, old_grid, self.grid_size, self.num_prefix_tokens)
        table = table.detach().to(self.pos_embed)
        if isinstance(self.pos_embed, nn.Parameter):
            table = nn.Parameter(table, requires_grad=self.pos_embed.requires_grad)
        self.pos_embed = table

    def embed(self, x: Tensor) -> Tensor:
        """Images to tokens, class token first, with their positions: (B, C, H, W) -> (B, 1 + N, D)."""
        self.check_size(x, self.front_end.img_size)
        x = self.run(self.front_end, x)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        return self.pos_drop(x + self.pos_embed)

    def forward_blocks(
        self, x: Tensor, take: Collection[int] = (), stop: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        return self.run_blocks(self.embed(x), take=take, stop=stop)


class T2TViT(TokenModel):
    """T2T-ViT, and the plain ViTs it is compared with (`tokens_type="patch"`, `pos_embed="learn"`)."""

    def __init__(
        self,
        *,
        embed_dim: int = 384,
        depth: int = 14,
        num_heads: int = 6,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        se: bool = False,
        ghost: bool = False,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        **model: Any,
    ):
        blocks = [
            Block(
                embed_dim,
                num_heads=num_heads,
                mlp_ratio=mlp_ratio,
                qkv_bias=qkv_bias,
                se=se,
                ghost=ghost,
                proj_drop=proj_drop_rate,
                attn_drop=attn_drop_rate,
                drop_path=drop_path,
            )
            for drop_path in calculate_drop_path_rates(drop_path_rate, depth)
        ]
        super().__init__(blocks, [embed_dim] * depth, embed_dim=embed_dim, **model)


class T2TViTDense(TokenModel):
    """T2T-ViT with DenseNet's connections: stages of blocks that append channels, and transitions that halve them."""

    def __init__(
        self,
        *,
        embed_dim: int = 128,
        growth_rate: int = 64,
        block_config: tuple[int, ...] = (3, 6, 6, 4),
        num_heads: int = 8,
        mlp_ratio: float = 2.0,
        qkv_bias: bool = False,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        **model: Any,
    ):
        # The release takes one rate per stage, and the first few of twelve: the full rate is never reached.
        drop_paths = calculate_drop_path_rates(drop_path_rate, max(12, len(block_config)))
        blocks, widths = [], []
        width = embed_dim
        for stage, depth in enumerate(block_config):
            if stage:
                blocks.append(Transition(width))
                width //= 2
                widths.append(width)
            for _ in range(depth):
                blocks.append(
                    DenseBlock(
                        width,
                        growth_rate,
                        num_heads=num_heads,
                        mlp_ratio=mlp_ratio,
                        qkv_bias=qkv_bias,
                        proj_drop=proj_drop_rate,
                        attn_drop=attn_drop_rate,
                        drop_path=drop_paths[stage],
                    )
                )
                width += growth_rate
                widths.append(width)
        super().__init__(blocks, widths, embed_dim=embed_dim, **model)


# fmt: off
SMALL = dict(kernels=(5, 3, 3), strides=(2, 2, 1), paddings=(2, 1, 1))  # an 8x8 grid of tokens from 32 px
VIT = dict(tokens_type="patch", pos_embed="learn")

VARIANTS = {
    "t2t_vit_test":        dict(embed_dim=24, depth=3, num_heads=2, mlp_ratio=2, img_size=16, token_dim=8, num_classes=10, **SMALL),
    "t2t_vit_nano":        dict(embed_dim=96, depth=10, num_heads=3, mlp_ratio=2, img_size=32, num_classes=10, **SMALL),
    "t2t_vit_7":           dict(embed_dim=256, depth=7, num_heads=4, mlp_ratio=2),
    "t2t_vit_10":          dict(embed_dim=256, depth=10, num_heads=4, mlp_ratio=2),
    "t2t_vit_12":          dict(embed_dim=256, depth=12, num_heads=4, mlp_ratio=2),
    "t2t_vit_14":          dict(embed_dim=384, depth=14, num_heads=6, mlp_ratio=3),
    "t2t_vit_19":          dict(embed_dim=448, depth=19, num_heads=7, mlp_ratio=3),
    "t2t_vit_24":          dict(embed_dim=512, depth=24, num_heads=8, mlp_ratio=3),
    "t2t_vit_t_14":        dict(embed_dim=384, depth=14, num_heads=6, mlp_ratio=3, tokens_type="transformer"),
    "t2t_vit_t_19":        dict(embed_dim=448, depth=19, num_heads=7, mlp_ratio=3, tokens_type="transformer"),
    "t2t_vit_t_24":        dict(embed_dim=512, depth=24, num_heads=8, mlp_ratio=3, tokens_type="transformer"),
    "t2t_vit_c_14":        dict(embed_dim=384, depth=14, num_heads=6, mlp_ratio=3, tokens_type="convolution"),
    "t2t_vit_14_wo_t2t":   dict(embed_dim=384, depth=14, num_heads=6, mlp_ratio=3, tokens_type="patch"),
    "t2t_vit_14_resnext":  dict(embed_dim=384, depth=14, num_heads=32, mlp_ratio=3),
    "t2t_vit_14_wide":     dict(embed_dim=768, depth=4, num_heads=12, mlp_ratio=3),
    "t2t_vit_14_se":       dict(embed_dim=384, depth=14, num_heads=6, mlp_ratio=3, se=True),
    "t2t_vit_16_ghost":    dict(embed_dim=384, depth=16, num_heads=6, mlp_ratio=3, ghost=True),
    "vit_s16":             dict(embed_dim=768, depth=8, num_heads=8, mlp_ratio=3, **VIT),
    "vit_s16_deep_narrow": dict(embed_dim=384, depth=16, num_heads=6, mlp_ratio=3, **VIT),
    "vit_s16_se":          dict(embed_dim=768, depth=8, num_heads=8, mlp_ratio=3, se=True, **VIT),
    "vit_s16_resnext":     dict(embed_dim=768, depth=8, num_heads=32, mlp_ratio=3, **VIT),
    "vit_s16_ghost":       dict(embed_dim=768, depth=8, num_heads=8, mlp_ratio=3, ghost=True, **VIT),
}

DENSE_VARIANTS = {
    "t2t_vit_dense_test":  dict(embed_dim=16, growth_rate=8, block_config=(2, 1), num_heads=2, mlp_ratio=2, img_size=16, token_dim=8, num_classes=10, **SMALL),
    "t2t_vit_dense":       dict(embed_dim=128, growth_rate=64, block_config=(3, 6, 6, 4), num_heads=8, mlp_ratio=2),
}
# fmt: on

TABLES = [(T2TViT, VARIANTS), (T2TViTDense, DENSE_VARIANTS)]
