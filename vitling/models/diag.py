"""The two networks of the diagnosis paper: a ViT for 32-pixel images and the CIFAR form of ResNet-18.

Paper: Zhu, Chen and Yang 2023, "Understanding Why ViT Trains Badly on Small Datasets: An Intuitive Perspective".
Equal to the authors' release in tests/golden/test_diag_models.py. Deviates: any image size (the ResNet's 4x4 pooling became
a global one), any number of channels and classes; patches are cut by a convolution. No activation works in place, so that
what a hook sees stays what it was.
"""

import math
from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from timm.layers import (
    Attention,
    DropPath,
    LayerNorm,
    Mlp,
    calculate_drop_path_rates,
    to_2tuple,
)
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from vitling.models.contract import MapContract, TimmViT, rename_keys


class WideBlock(Block):
    """timm's pre-norm block with widths of attention and MLP that do not follow from the width of the tokens."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int,
        mlp_dim: int,
        attn_drop: float,
        proj_drop: float,
        **kwargs: Any,
    ):
        super().__init__(dim, num_heads=1, **kwargs)
        where = {key: kwargs[key] for key in ("device", "dtype") if key in kwargs}
        self.attn = Attention(
            dim,
            num_heads,
            attn_head_dim=head_dim,
            qkv_bias=kwargs["qkv_bias"],
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            **where,
        )
        self.mlp = Mlp(dim, mlp_dim, drop=proj_drop, **where)


class DiagViT(TimmViT):
    """timm's ViT with the release's sizes, N(0, 1) embeddings, and a norm on the pooled token alone.

    Heads of `head_dim` and an MLP of `mlp_dim` whatever `embed_dim` is; `global_pool="avg"` averages all tokens, the class
    token included, as the release does. Further arguments are those of timm's ViT.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 32,
        patch_size: int = 4,
        num_classes: int = 10,
        embed_dim: int = 512,
        depth: int = 6,
        num_heads: int = 8,
        head_dim: int = 64,
        mlp_dim: int = 512,
        qkv_bias: bool = False,
        pos_drop_rate: float = 0.1,
        proj_drop_rate: float = 0.1,
        **kwargs: Any,
    ):
        super().__init__(
            img_size=img_size,
            patch_size=patch_size,
            num_classes=num_classes,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            qkv_bias=qkv_bias,
            pos_drop_rate=pos_drop_rate,
            proj_drop_rate=proj_drop_rate,
            fc_norm=True,
            pool_include_prefix=True,
            norm_layer=partial(LayerNorm, eps=1e-5),
            block_fn=partial(WideBlock, head_dim=head_dim, mlp_dim=mlp_dim),
            weight_init="skip",
            **kwargs,
        )
        self.init_weights(needs_reset=False)

    @torch.no_grad()
    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Embeddings N(0, 1), not 0.02; every layer as torch makes it."""
        for module in self.modules() if needs_reset else ():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        for table in (self.cls_token, self.reg_token, self.pos_embed):
            if table is not None:
                nn.init.normal_(table)

    def from_authors(self, state: dict) -> dict:
        """Keys and layouts of the release -> ours; its patch vectors run over row, column, channel."""
        ours = rename_keys(state, AUTHORS_NAMES)
        weight = ours.get("patch_embed.proj.weight")
        if weight is not None and weight.ndim == 2:
            rows, columns = self.patch_embed.patch_size
            ours["patch_embed.proj.weight"] = weight.unflatten(1, (rows, columns, -1)).permute(0, 3, 1, 2)
        return ours

    def to_authors(self, state: dict) -> dict:
        """Our keys and layouts -> those of the release."""
        theirs = rename_keys(state, [(ours, theirs) for theirs, ours in AUTHORS_NAMES])
        theirs["to_patch_embedding.1.weight"] = state["patch_embed.proj.weight"].permute(0, 2, 3, 1).flatten(1)
        return theirs

    @classmethod
    def default_cfg(cls, **variant: Any) -> dict:
        return dict(first_conv="patch_embed.proj", classifier="head", fixed_input_size=True)


AUTHORS_NAMES = [
    ("pos_embedding", "pos_embed"),
    ("to_patch_embedding.1.", "patch_embed.proj."),
    ("transformer.layers.", "blocks."),
    (".0.norm.", ".norm1."),
    (".0.fn.to_qkv.", ".attn.qkv."),
    (".0.fn.to_out.0.", ".attn.proj."),
    (".1.norm.", ".norm2."),
    (".1.fn.net.0.", ".mlp.fc1."),
    (".1.fn.net.3.", ".mlp.fc2."),
    ("mlp_head.0.", "fc_norm."),
    ("mlp_head.1.", "head."),
]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, in_chans: int, width: int, stride: int, drop_path: float = 0.0):
        super().__init__()
        self.conv1 = nn.Conv2d(in_chans, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU()  # modules, so that activations are compared too (the paper's figure 7)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_chans != width:
            self.shortcut = nn.Sequential(nn.Conv2d(in_chans, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.act2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.bn1(self.conv1(x)))
        return self.act2(self.drop_path(self.bn2(self.conv2(y))) + self.shortcut(x))


def last_grid(img_size: int | tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the last map: three halvings, each rounded up."""
    height, width = to_2tuple(img_size)
    return math.ceil(height / 8), math.ceil(width / 8)


class DiagResNet18(MapContract):
    """ResNet-18 for small images: a 3x3 stem of stride 1 without pooling, then four stages of two blocks."""

    blocks_name, norm_name, classifier_name = "stages", None, "linear"  # the stages end in BatchNorm and ReLU
    stem_group = r"^conv1|bn1"
    block_groups = r"^layer(\d+)\.(\d+)"
    coarse_groups = r"^layer(\d+)"

    def __init__(
        self,
        img_size: int | tuple[int, int] = 32,
        in_chans: int = 3,
        num_classes: int = 10,
        global_pool: str = "avg",
        width: int = 64,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ):
        super().__init__()
        self.in_chans = in_chans
        self.num_features = self.head_hidden_size = self.embed_dim = 8 * width

        self.conv1 = nn.Conv2d(in_chans, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU()
        paths = iter(calculate_drop_path_rates(drop_path_rate, 8))

        def stage(in_chans: int, width: int, stride: int) -> nn.Sequential:
            first = BasicBlock(in_chans, width, stride, next(paths))
            return nn.Sequential(first, BasicBlock(width, width, 1, next(paths)))

        self.layer1 = stage(width, width, 1)
        self.layer2 = stage(width, 2 * width, 2)
        self.layer3 = stage(2 * width, 4 * width, 2)
        self.layer4 = stage(4 * width, 8 * width, 2)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.feature_info = [
            dict(module=f"layer{i + 1}", num_chs=width * 2**i, reduction=2**i) for i in range(len(self.stages))
        ]
        self.set_input_size(img_size)

    @property
    def stages(self) -> list[nn.Module]:
        return [self.layer1, self.layer2, self.layer3, self.layer4]

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Note the size of the images and so of the last map; no weight depends on it."""
        self.grid_size = last_grid(img_size)

    def keep_blocks(self, count: int) -> None:
        for i in range(count, len(self.stages)):
            setattr(self, f"layer{i + 1}", nn.Sequential())

    def stem(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)  # a fifth less time on a CPU; the maps stay so to the end
        return self.act1(self.bn1(self.conv1(x)))

    def forward_blocks(
        self, x: Tensor, take: Collection[int] = (), stop: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        return self.run_blocks(self.stem(x), take=take, stop=stop)

    @classmethod
    def default_cfg(cls, *, img_size: int | tuple[int, int] = 32, **variant: Any) -> dict:
        return dict(first_conv="conv1", classifier="linear", pool_size=last_grid(img_size))


# fmt: off
VIT_VARIANTS = {
    "diag_vit_test":   dict(img_size=16, patch_size=4, embed_dim=24,  num_classes=10, depth=3, num_heads=3, head_dim=16, mlp_dim=32),
    "diag_vit_nano":   dict(img_size=32, patch_size=4, embed_dim=96,  num_classes=10, depth=6, num_heads=8, head_dim=24, mlp_dim=192),
    "diag_vit_patch4": dict(img_size=32, patch_size=4, embed_dim=512, num_classes=10),
    "diag_vit_patch8": dict(img_size=32, patch_size=8, embed_dim=512, num_classes=10),
}
RESNET_VARIANTS = {
    "diag_resnet18_test": dict(img_size=16, num_classes=10, width=8),
    "diag_resnet18_nano": dict(img_size=32, num_classes=10, width=16),
    "diag_resnet18":      dict(img_size=32, num_classes=10, width=64),
}
# fmt: on

TABLES = [(DiagViT, VIT_VARIANTS), (DiagResNet18, RESNET_VARIANTS)]
