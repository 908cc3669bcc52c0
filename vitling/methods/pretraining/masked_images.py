"""Masked images: a part of each image is hidden, and the network learns to say what was there.

Papers: He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners"; Xie et al. 2022, "SimMIM: A Simple Framework for Masked Image
Modeling". Where a network is made of tokens alone, hidden patches are dropped before its blocks, which then take a quarter of the time,
and a small decoder paints them (MAE). Where convolutions come first, or lie between the blocks, nothing can be dropped: pixels are
covered by a learnt colour, and a linear layer paints them from the last feature map (SimMIM). The network's structure says which.
Deviates: the decoder is smaller, for small networks; SimMIM's mask token is a colour, since there may be no tokens to put it among.
"""

import math
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed, build_sincos2d_pos_embed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.methods.method import Batch, Omission
from vitling.methods.pretraining.pretraining import Pretraining
from vitling.models.contract import TokenContract
from vitling.models.inspect import as_tokens, evaluating, first_tensor
from vitling.validation.values import Count, Range

DROPPED, COVERED = 0.75, 0.6  # of an image: the papers' shares
CELLS = 8  # that a covered image is divided into along its shorter side
HEAD_DIM = 32  # of the decoder's attention
SPATIAL = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.AvgPool2d, nn.MaxPool2d)


def is_made_of_tokens(model: nn.Module) -> bool:
    """Whether each token comes from a patch of its own and meets the others in attention alone, so that some can be left out."""
    embed, blocks = getattr(model, "patch_embed", None), getattr(model, "blocks", None)
    if not isinstance(model, VisionTransformer | TokenContract) or not isinstance(embed, PatchEmbed) or not blocks:
        return False
    patches = isinstance(embed.proj, nn.Conv2d) and tuple(embed.proj.kernel_size) == tuple(embed.proj.stride)
    return patches and not any(isinstance(part, SPATIAL) for block in blocks for part in block.modules())


def draw_hidden(images: int, cells: int, share: float) -> Tensor:
    """Which cells are hidden, (images, cells): the same number in every image, at least one of each kind."""
    count = min(max(round(share * cells), 1), cells - 1)
    return torch.rand(images, cells).argsort(dim=1).argsort(dim=1) < count


def split_patches(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """(B, C, H, W) as (B, N, patch height * patch width * C), row by row."""
    B, C, H, W = images.shape
    rows, columns = H // patch[0], W // patch[1]
    cut = images.view(B, C, rows, patch[0], columns, patch[1])
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(B, rows * columns, -1)


def join_patches(patches: Tensor, patch: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """What `split_patches` was given."""
    rows, columns = size[0] // patch[0], size[1] // patch[1]
    cut = patches.view(len(patches), rows, columns, *patch, -1)
    return cut.permute(0, 5, 1, 3, 2, 4).reshape(len(patches), -1, *size)


def patch_statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each patch."""
    return patches.mean(dim=-1, keepdim=True), (patches.var(dim=-1, keepdim=True, unbiased=False) + 1e-6).sqrt()


def masked_patch_loss(painted: Tensor, patches: Tensor, hidden: Tensor) -> Tensor:
    """Mean squared error of the hidden patches, each brought to mean 0 and deviation 1 before (MAE)."""
    mean, deviation = patch_statistics(patches)
    error = (painted.float() - (patches - mean) / deviation).square().mean(dim=-1)
    return error[hidden].mean()


def masked_pixel_loss(painted: Tensor, images: Tensor, hidden: Tensor) -> Tensor:
    """Mean absolute error of the hidden pixels; `hidden` is (B, H, W) (SimMIM)."""
    return (painted.float() - images).abs().mean(dim=1)[hidden].mean()


class Decoder(nn.Module):
    """Paints all patches from the tokens of those that were seen."""

    def __init__(self, token_dim: int, pixels: int, grid: tuple[int, int], *, dim: int, depth: int):
        super().__init__()
        if dim % HEAD_DIM:
            raise UserError(f"method_args.decoder_dim={dim} must be a multiple of {HEAD_DIM}.")
        self.embed = nn.Linear(token_dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        self.register_buffer("positions", build_sincos2d_pos_embed(list(grid), dim=dim)[None], persistent=False)
        self.blocks = nn.ModuleList(Block(dim, dim // HEAD_DIM, qkv_bias=True) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.paint = nn.Linear(dim, pixels)

    def no_weight_decay(self) -> set[str]:
        return {"mask_token"}

    def forward(self, tokens: Tensor, seen: Tensor) -> Tensor:
        """`tokens` are prefix tokens, then those of the patches numbered in `seen` (B, K)."""
        x = self.embed(tokens)
        prefix = x.shape[1] - seen.shape[1]
        B, _, D = x.shape
        patches = self.mask_token.to(x.dtype).expand(B, self.positions.shape[1], D)
        patches = patches.scatter(1, seen[..., None].expand(-1, -1, D), x[:, prefix:]) + self.positions.to(x.dtype)
        x = torch.cat([x[:, :prefix], patches], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.paint(self.norm(x[:, prefix:]))


class MapPainter(nn.Module):
    """Paints an image from a feature map: each cell the pixels that it stands for."""

    def __init__(self, dim: int, channels: int, grid: tuple[int, int], size: tuple[int, int]):
        super().__init__()
        self.size, self.scale = size, (math.ceil(size[0] / grid[0]), math.ceil(size[1] / grid[1]))
        self.paint = nn.Conv2d(dim, channels * math.prod(self.scale), 1)

    def forward(self, x: Tensor) -> Tensor:
        B, _, h, w = x.shape
        x = self.paint(x).view(B, -1, *self.scale, h, w).permute(0, 1, 4, 2, 5, 3)
        x = x.reshape(B, -1, h * self.scale[0], w * self.scale[1])
        return x if x.shape[-2:] == self.size else F.interpolate(x, self.size, mode="bilinear", align_corners=False)


class MaskedImages(Pretraining):
    """Hides `mask_ratio` of each image (0.75 of the patches where they are dropped, 0.6 of the pixels where they are covered).

    `mask_size` is the side of a covered square in pixels, an eighth of the image's by default; dropped patches are the network's own.
    `decoder_dim` and `decoder_depth` are of the decoder that paints dropped patches.
    """

    omission: ClassVar = Omission(
        "pre-training",
        "not proposed: in a quarter of an hour no way of it was ahead of the labels alone, with ten of them per class",
        "two seeds, CIFAR-100: 25.3 without, 25.1 with masked images; ten flowers: 83.6 and 81.8 (docs/pretraining.md)",
        key="unlabelled",
        how="unlabelled=IMAGES does it",
    )
    teaches = "hides a part of each image and learns to paint it; it goes with every network"
    defaults: ClassVar = {
        "augment": {"crop": "resized", "crop_scale": (0.4, 1.0)},
        "optim": {"lr": 1e-3, "weight_decay": 0.05, "betas": (0.9, 0.95), "min_lr": 1e-6},
    }

    def __init__(
        self,
        model: nn.Module,
        *,
        num_classes: int = 0,
        class_weights: Tensor | None = None,
        mask_ratio: Annotated[float, Range(above=0, below=1)] | None = None,
        mask_size: Count | None = None,
        decoder_dim: Count | None = None,
        decoder_depth: Count | None = None,
    ):
        super().__init__(model, num_classes=num_classes, class_weights=class_weights)
        self.drops = is_made_of_tokens(model)
        self.mask_ratio = mask_ratio or (DROPPED if self.drops else COVERED)
        foreign = (
            {"mask_size": mask_size} if self.drops else {"decoder_dim": decoder_dim, "decoder_depth": decoder_depth}
        )
        if given := [key for key, value in foreign.items() if value is not None]:
            how = "drops patches of its own size" if self.drops else "has its pixels covered, and no decoder"
            raise UserError(f"method_args.{given[0]} does not apply: {type(model).__name__} {how}; leave it out.")
        if self.drops:
            self._prepare_dropping(decoder_dim or 128, decoder_depth or 2)
        else:
            self._prepare_covering(mask_size)
        if math.prod(self.grid) < 2:
            raise UserError(
                f"an image of {self.size[0]} x {self.size[1]} is one cell to {type(model).__name__}, and half a cell cannot be hidden; "
                "set a larger img_size or a smaller patch."
            )
        self.leave_out_unused()

    def _prepare_dropping(self, dim: int, depth: int) -> None:
        embed: Any = self.model.patch_embed
        self.patch, self.grid = tuple(embed.patch_size), tuple(embed.grid_size)
        self.prefix = int(getattr(self.model, "num_prefix_tokens", 0))
        pixels = self.channels * math.prod(self.patch)
        self.painter: nn.Module = Decoder(int(self.model.num_features), pixels, self.grid, dim=dim, depth=depth)

    def _prepare_covering(self, side: int | None) -> None:
        side = side or max(1, round(min(self.size) / CELLS))
        self.patch = (side, side)
        self.grid = (math.ceil(self.size[0] / side), math.ceil(self.size[1] / side))
        self.colour = nn.Parameter(torch.zeros(1, self.channels, 1, 1))  # of what is hidden; 0 is the mean colour
        with evaluating(self.model):
            x = self._map(torch.zeros(1, self.channels, *self.size))
        self.painter = MapPainter(x.shape[1], self.channels, (x.shape[2], x.shape[3]), self.size)

    def added(self) -> list[nn.Module]:
        return [self.painter] if self.drops else [self.painter, nn.ParameterList([self.colour])]

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        images = batch["image"]
        hidden = draw_hidden(len(images), math.prod(self.grid), self.mask_ratio).to(images.device)
        if self.drops:
            return {"loss": masked_patch_loss(self._paint_dropped(images, hidden), self._patches(images), hidden)}
        pixels = self._in_pixels(hidden)
        return {"loss": masked_pixel_loss(self._paint_covered(images, pixels), images, pixels)}

    def pictures(self, batch: Batch) -> dict[str, Tensor]:
        """Images as they are, as the network sees them, and with what it paints where they were hidden."""
        images = batch["image"]
        hidden = draw_hidden(len(images), math.prod(self.grid), self.mask_ratio).to(images.device)
        pixels = self._in_pixels(hidden)
        if self.drops:
            mean, deviation = patch_statistics(self._patches(images))
            painted = self._paint_dropped(images, hidden).float() * deviation + mean
            painted = join_patches(painted, self.patch, self.size)
        else:
            painted = self._paint_covered(images, pixels).float()
        covered = pixels[:, None]
        return {
            "original": images,
            "masked": images.masked_fill(covered, 0.0),
            "reconstructed": torch.where(covered, painted, images),
        }

    def _patches(self, images: Tensor) -> Tensor:
        return split_patches(images, self.patch)

    def _in_pixels(self, hidden: Tensor) -> Tensor:
        """Hidden cells as hidden pixels, (B, H, W)."""
        cells = hidden.view(-1, *self.grid)
        pixels = cells.repeat_interleave(self.patch[0], 1).repeat_interleave(self.patch[1], 2)
        return pixels[:, : self.size[0], : self.size[1]]

    def _paint_dropped(self, images: Tensor, hidden: Tensor) -> Tensor:
        seen = hidden.long().argsort(dim=1, stable=True)[:, : int((~hidden[0]).sum())]

        def drop(block: nn.Module, args: tuple) -> tuple:
            x, *others = args
            index = seen[..., None].expand(-1, -1, x.shape[-1])
            return torch.cat([x[:, : self.prefix], x[:, self.prefix :].gather(1, index)], dim=1), *others

        first: Any = self.model.blocks
        handle = first[0].register_forward_pre_hook(drop)
        try:
            tokens = self.model.forward_features(images)
        finally:
            handle.remove()
        return self.painter(first_tensor(tokens), seen)

    def _paint_covered(self, images: Tensor, hidden: Tensor) -> Tensor:
        return self.painter(self._map(torch.where(hidden[:, None], self.colour.to(images.dtype), images)))

    def _map(self, images: Tensor) -> Tensor:
        """The last feature map, (B, D, h, w)."""
        features = first_tensor(self.model.forward_features(images))
        if features is None or features.ndim < 3:
            raise UserError(
                f"{type(self.model).__name__} gives no feature map to paint an image from; choose another model, or method=dino."
            )
        tokens, layout = as_tokens(self.model, features, self.size)
        return tokens[:, layout.patches].mT.unflatten(2, layout.grid)
