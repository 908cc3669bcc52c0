"""ResNet-9: a convolutional network built for speed on small images, the baseline that a small ViT has to reach.

In the manner of the fast CIFAR networks (Page 2018, "How to train your ResNet"): a 3x3 stem, three wide stages that end in
max-pooling, a residual pair in the first and the last, global max-pooling and a scaled linear classifier.
"""

from collections.abc import Collection
from typing import Any

import torch
from timm.layers import DropPath, to_2tuple
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.models.contract import MapContract, check_pool

LOGIT_SCALE = 0.125  # keeps the logits of a max-pooled map small at the start


class ConvBlock(nn.Sequential):
    """3x3 convolution, BatchNorm, ReLU."""

    def __init__(self, chans_in: int, chans_out: int):
        conv = nn.Conv2d(chans_in, chans_out, kernel_size=3, padding=1, bias=False)
        super().__init__(conv, nn.BatchNorm2d(chans_out), nn.ReLU(inplace=True))


class Residual(nn.Sequential):
    """Two blocks beside a shortcut."""

    def __init__(self, chans: int, drop_path: float = 0.0):
        drop = [DropPath(drop_path)] if drop_path > 0 else []
        super().__init__(ConvBlock(chans, chans), ConvBlock(chans, chans), *drop)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def last_grid(img_size: int | tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the last map: three poolings, each rounded down."""
    height, width = to_2tuple(img_size)
    return height // 8, width // 8


class ResNet9(MapContract):
    """Stem, three stages, classifier; widths double from stage to stage."""

    blocks_name, norm_name = "stages", None  # the stages end in BatchNorm and ReLU
    stem_group = r"^stem"
    block_groups = r"^stages\.(\d+)\.(\d+)"
    coarse_groups = r"^stages\.(\d+)"

    def __init__(
        self,
        img_size: int | tuple[int, int] = 32,
        in_chans: int = 3,
        num_classes: int = 10,
        global_pool: str = "max",
        width: int = 16,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ):
        super().__init__()
        self.in_chans = in_chans
        self.num_features = self.head_hidden_size = self.embed_dim = 8 * width
        self.stem = ConvBlock(in_chans, width)
        self.stages = nn.Sequential(
            nn.Sequential(ConvBlock(width, 2 * width), nn.MaxPool2d(2), Residual(2 * width, drop_path_rate)),
            nn.Sequential(ConvBlock(2 * width, 4 * width), nn.MaxPool2d(2)),
            nn.Sequential(ConvBlock(4 * width, 8 * width), nn.MaxPool2d(2), Residual(8 * width, drop_path_rate)),
        )
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.feature_info = [
            dict(module=f"stages.{i}", num_chs=width * 2 ** (i + 1), reduction=2 ** (i + 1)) for i in range(3)
        ]
        self.set_input_size(img_size)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Note the size of the images and so of the last map; no weight depends on it."""
        if min(to_2tuple(img_size)) < 8:
            raise UserError(f"img_size={img_size} is too small: the network halves it three times; use at least 8.")
        self.grid_size = last_grid(img_size)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool is not None:
            self.global_pool = check_pool(global_pool, ("max", "avg", ""))
        self.num_classes = num_classes
        head = nn.Linear(self.num_features, num_classes, bias=False) if num_classes > 0 else nn.Identity()
        self.head = self.place(head)

    def forward_blocks(
        self, x: Tensor, take: Collection[int] = (), stop: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        x = self.stem(x.contiguous(memory_format=torch.channels_last))  # a quarter faster on a CPU
        return self.run_blocks(x, take=take, stop=stop)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        if self.global_pool:
            x = x.amax(dim=(2, 3)) if self.global_pool == "max" else x.mean(dim=(2, 3))
        x = self.head_drop(x)
        return x if pre_logits or self.num_classes == 0 else self.head(x) * LOGIT_SCALE

    @classmethod
    def default_cfg(cls, *, img_size: int | tuple[int, int] = 32, **variant: Any) -> dict:
        return dict(first_conv="stem.0", classifier="head", pool_size=last_grid(img_size))


VARIANTS = {
    "resnet9_test": dict(img_size=16, num_classes=10, width=4),
    "resnet9_nano": dict(img_size=32, num_classes=10, width=16),
    "resnet9": dict(img_size=32, num_classes=10, width=64),
}

TABLES = [(ResNet9, VARIANTS)]
