"""Hybrid ViT: our own family, transformer blocks between a convolutional stem and, in some sizes, a convolutional tail.

Made of what the five papers found to matter on small data: a stem that leaves few tokens (T2T-ViT, LV-ViT and DHVT all replace
the patch projection), fixed sine positions, no class token. nano has a short stem and average pooling, for a minute on a CPU; larger
sizes have residual units in the stem, and tiny, mini and small end in a tail that pools their tokens by convolutions. What earns its place at
which length is measured in docs/results.md. timm's VisionTransformer does the rest, so its whole contract holds.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm, Mlp, PatchEmbed, build_sincos2d_pos_embed, to_2tuple
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.models.contract import TimmViT

WHITENED_IMAGES = 256  # that the filters of a whitened stem are taken from
WHITENING_FLOOR = 0.03  # of a component's deviation: what varies less is noise


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
        patch_size = max(to_2tuple(patch_size))
        halvings = patch_size.bit_length() - 1
        if patch_size < 2 or patch_size != 2**halvings or embed_dim % 2 ** (halvings - 1):
            raise UserError(
                f"patch_size={patch_size}, embed_dim={embed_dim}: the stem halves the map and doubles its width at each "
                "step, so use a patch of 2, 4, 8 or 16 and a width that is a multiple of half of it."
            )
        widths = [in_chans, *(embed_dim >> (halvings - 1 - i) for i in range(halvings))]
        self.proj = nn.Sequential(*self.stages(widths, device=device, dtype=dtype))
        self.patch_size = to_2tuple(patch_size)
        self.set_input_size(img_size)

    def stages(self, widths: list[int], **where: Any) -> Iterator[nn.Module]:
        """The layers that lead from each width to the next, and halve the map."""
        for i, (before, after) in enumerate(pairwise(widths)):
            yield nn.Conv2d(before, after, kernel_size=3, stride=1 if i else 2, padding=1, bias=False, **where)
            yield nn.BatchNorm2d(after, **where)
            yield nn.ReLU(inplace=True)
            if i:
                yield nn.MaxPool2d(2, ceil_mode=True)

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


class ResidualUnit(nn.Module):
    """Two 3x3 convolutions, each with BatchNorm and ReLU, beside a shortcut."""

    def __init__(self, dim: int, **where: Any):
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, kernel_size=3, padding=1, bias=False, **where)
        self.norm1 = nn.BatchNorm2d(dim, **where)
        self.conv2 = nn.Conv2d(dim, dim, kernel_size=3, padding=1, bias=False, **where)
        self.norm2 = nn.BatchNorm2d(dim, **where)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.conv1(x)))
        return x + self.act(self.norm2(self.conv2(y)))


class WhiteningConv(nn.Module):
    """A first 3x3 convolution that is not learnt: its filters are the strongest principal components of the images' patches.

    Each is scaled to equal variance and comes with its negative, so that the ReLU behind it loses nothing. What follows need not
    first learn that neighbouring pixels and colours go together, which most of a short run is spent on otherwise. The filters are
    random until `fit` has seen images. (Coates et al. 2011 whiten patches; Page 2018 begins a fast ResNet like this.)
    """

    def __init__(self, in_chans: int, out_chans: int, *, stride: int = 1, **where: Any):
        super().__init__()
        self.stride = stride
        components = nn.init.orthogonal_(torch.empty(out_chans // 2, in_chans * 9)).view(-1, in_chans, 3, 3)
        self.register_buffer("weight", torch.cat([components, -components]).to(**where))
        self.bias = nn.Parameter(torch.zeros(2 * len(components), **where))

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Take the filters from images (B, C, height, width), normalised as the network gets them."""
        images = images.float().cpu()
        patches = F.unfold(images[:WHITENED_IMAGES], kernel_size=3).transpose(1, 2).flatten(0, 1)
        patches = patches - patches.mean(dim=0)
        variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        strongest = directions.T.flip(0) / (variances.flip(0).clamp(min=0).sqrt() + WHITENING_FLOOR)[:, None]
        wanted, there = len(self.weight) // 2, len(strongest)
        if wanted > there:  # of grey images: mixtures of the components fill up the rest
            mixtures = F.normalize(torch.randn(wanted - there, there), dim=1)
            strongest = torch.cat([strongest, mixtures @ strongest])
        components = strongest[:wanted].view(-1, *self.weight.shape[1:])
        self.weight.copy_(torch.cat([components, -components]))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, stride=self.stride, padding=1)


class ResidualStem(ConvStem):
    """The same with residual units behind each halving: depth where the map is small, as in a ResNet-9.

    `units` are those of the last stages, counted from the tokens. `full_size` adds a first convolution on the full-size map, for
    images that are small already; of photographs the first one takes every second pixel. `whitened`: that one is not learnt.
    """

    def __init__(self, *args: Any, units: Sequence[int], full_size: bool, whitened: bool, **kwargs: Any):
        self.units, self.full_size, self.whitened = tuple(units), full_size, whitened
        super().__init__(*args, **kwargs)

    def stages(self, widths: list[int], **where: Any) -> Iterator[nn.Module]:
        if self.full_size:
            widths = [widths[0], max(widths[1] // 2, 4), *widths[1:]]
        missing = len(widths) - 1 - len(self.units)
        units = [0] * missing + list(self.units[max(-missing, 0) :])
        for i, (before, after) in enumerate(pairwise(widths)):
            stride = 2 if i == 0 and not self.full_size else 1
            if i == 0 and self.whitened:
                yield WhiteningConv(before, after, stride=stride, **where)  # of equal variance without a norm
            else:
                yield nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False, **where)
                if i:
                    yield nn.MaxPool2d(2, ceil_mode=True)  # before the norm, which then has a quarter of the work
                yield nn.BatchNorm2d(after, **where)
            yield nn.ReLU(inplace=True)
            for _ in range(units[i]):
                yield ResidualUnit(after, **where)


class ConvTail(nn.Module):
    """Tokens as a map again: a convolution to twice the width, half the map, residual units. What global pooling then takes."""

    def __init__(self, dim: int, units: int, **where: Any):
        super().__init__()
        self.conv = nn.Conv2d(dim, 2 * dim, kernel_size=3, padding=1, bias=False, **where)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.norm = nn.BatchNorm2d(2 * dim, **where)
        self.act = nn.ReLU(inplace=True)
        self.units = nn.Sequential(*(ResidualUnit(2 * dim, **where) for _ in range(units)))
        self.grid_size: tuple[int, int] = (0, 0)  # set by the model, which knows the image

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2).unflatten(2, self.grid_size)  # (B, D, height, width), channels last
        x = self.units(self.act(self.norm(self.pool(self.conv(x)))))
        return x.flatten(2).transpose(1, 2)  # (B, N / 4, 2 D)


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


class HybridViT(TimmViT):
    """timm's ViT with a convolutional stem, fixed positions and no class token.

    `stem_units`, residual units of each stage, make the stem a deep one; None is the short one. `tail_units` add a convolutional
    tail with so many of them; None is none. `conv_stem` and `conv_mlp` can be switched off, to see what each brings.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 32,
        patch_size: int = 8,
        global_pool: str = "avg",
        conv_stem: bool = True,
        stem_units: Sequence[int] | None = None,
        stem_full_size: bool = False,
        stem_whitened: bool = False,
        tail_units: int | None = None,
        conv_mlp: bool = True,
        **kwargs: Any,
    ):
        stem = ConvStem if conv_stem else PatchEmbed
        if conv_stem and stem_units is not None:
            stem = partial(ResidualStem, units=stem_units, full_size=stem_full_size, whitened=stem_whitened)
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
            embed_layer=stem,
            mlp_layer=ConvMlp if conv_mlp else Mlp,
            norm_layer=partial(LayerNorm, eps=1e-5),
            final_norm=tail_units is None,  # the tail has norms of its own
            **kwargs,
        )
        self.tail: ConvTail | None = None
        if tail_units is not None:
            where = {key: kwargs[key] for key in ("device", "dtype") if key in kwargs}
            self.tail = ConvTail(self.embed_dim, tail_units, **where)
            for block in self.blocks:  # which begin as the identity: the convolutions learn first
                nn.init.zeros_(block.attn.proj.weight)
                nn.init.zeros_(block.mlp.fc2.weight)
            self.head_hidden_size = 2 * self.embed_dim
            self.reset_classifier(self.num_classes)
        self._place_tokens()

    def init_from_images(self, images: Tensor) -> None:
        """What is taken from images rather than learnt; training calls it once, with a first batch."""
        for module in self.modules():
            if isinstance(module, WhiteningConv):
                module.fit(images)

    def _place_tokens(self) -> None:
        """Sine positions of the grid, small beside the tokens; nothing is learnt, so any size can be set later."""
        grid = self.patch_embed.grid_size
        for module in self.modules():
            if isinstance(module, (ConvMlp, ConvTail)):
                module.grid_size = grid
        weight = next(self.parameters())
        table = torch.empty(1, grid[0] * grid[1], self.embed_dim, device=weight.device, dtype=weight.dtype)
        self.register_buffer("positions", table, persistent=False)
        self.init_non_persistent_buffers()

    def init_non_persistent_buffers(self) -> None:
        """What no checkpoint holds, computed again: timm calls it where a model was built without memory."""
        self.positions.copy_(build_sincos2d_pos_embed(self.patch_embed.grid_size, dim=self.embed_dim)[None] * 0.1)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        super().set_input_size(img_size, patch_size)
        self._place_tokens()

    def _pos_embed(self, x: Tensor) -> Tensor:
        # timm's name for the step between patches and blocks, which its own families replace like this.
        return self.pos_drop(x + self.positions)

    def pool(self, x: Tensor, pool_type: str | None = None) -> Tensor:
        return super().pool(x if self.tail is None else self.tail(x), pool_type)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        super().reset_classifier(num_classes, global_pool)
        if self.tail is not None and num_classes > 0:
            weight = next(self.parameters())
            self.head = nn.Linear(self.head_hidden_size, num_classes, device=weight.device, dtype=weight.dtype)
            nn.init.trunc_normal_(self.head.weight, std=0.02)  # as timm begins a ViT's
            nn.init.zeros_(self.head.bias)
            self.head.train(self.training)

    @classmethod
    def default_cfg(cls, *, conv_stem: bool = True, **variant: Any) -> dict:
        first_conv = "patch_embed.proj.0" if conv_stem else "patch_embed.proj"
        return dict(first_conv=first_conv, classifier="head", fixed_input_size=True)


SHORT = dict(mlp_ratio=2, num_classes=10)
TAILED = dict(
    stem_units=(1, 0),
    stem_full_size=True,
    stem_whitened=True,
    tail_units=1,
    global_pool="max",
    conv_mlp=False,
    num_classes=10,
)
DEEP = dict(stem_units=(1, 1, 1, 1), conv_mlp=False, num_classes=1000)

# fmt: off
VARIANTS = {
    "hybrid_vit_test":   dict(img_size=16,  patch_size=4,  embed_dim=32,  depth=2,  num_heads=2, **SHORT),
    "hybrid_vit_nano":   dict(img_size=32,  patch_size=8,  embed_dim=128, depth=2,  num_heads=4, **SHORT),
    "hybrid_vit_tiny":   dict(img_size=32,  patch_size=4,  embed_dim=64,  depth=1,  num_heads=2, mlp_ratio=2, **TAILED),
    "hybrid_vit_mini":   dict(img_size=32,  patch_size=4,  embed_dim=96,  depth=1,  num_heads=3, mlp_ratio=2, **TAILED),
    "hybrid_vit_small":  dict(img_size=32,  patch_size=4,  embed_dim=128, depth=3,  num_heads=4, mlp_ratio=3, **TAILED),
    "hybrid_vit_medium": dict(img_size=160, patch_size=16, embed_dim=288, depth=8,  num_heads=6, mlp_ratio=3, **DEEP),
    "hybrid_vit_base":   dict(img_size=192, patch_size=16, embed_dim=384, depth=12, num_heads=8, mlp_ratio=4, **DEEP),
}
# fmt: on

TABLES = [(HybridViT, VARIANTS)]
