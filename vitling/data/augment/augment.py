"""Random augmentation of a whole batch, with an independent draw for each image.

timm's training pipeline (crop, flip, RandAugment, colour jitter, normalisation, random erasing) on uint8 images
(B, C, H, W) of any size, any channel count, on any device. torchvision's v2 transforms would give every image of a
batch the same crop.

It works in two phases. `draw` makes all random decisions for n images; `apply` is deterministic and treats each image
by itself. Processes that share a global batch draw for all of it and apply their own rows,
`{k: v[a:b] for k, v in draws.items()}`: together they see exactly the images that one process would.
"""

from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from vitling.data.augment.boxes import ATTEMPTS, box_sizes, cut_box, resize_boxes
from vitling.data.augment.pillow_ops import affines, apply_ops, change_groups, op_index
from vitling.data.augment.randaugment import RandAugment
from vitling.errors import UserError, did_you_mean
from vitling.inputs.values import Ascending, AspectRatio, PartOf, Range, Share, check_fields

ERASE_AREA = (0.02, 1 / 3)
ERASE_RATIO = (0.3, 1 / 0.3)
NOISE_POOL = 2**20  # places in the noise pool where an erased image may start reading
CHUNK = 2**21  # values worked on at once: small enough for the cache, large enough to hide the calls


class Geometry(NamedTuple):
    """Where the pixels of an augmented batch came from, on the CPU, so that a label map can follow them.

    `affine` (B, 2, 3) is what `F.affine_grid(..., align_corners=False)` takes: from output to input, both in -1 to 1.
    `frames` (B, S, 2, 3) are the maps to the picture before each step, last step first; the last of them is `affine`.
    `erased` (B, 4) is the erased box in output pixels (top, left, bottom, right), empty where nothing was erased.
    """

    affine: Tensor
    frames: Tensor
    erased: Tensor

    def inside(self, height: int, width: int) -> Tensor:
        """Which cells of a height x width grid show the image, (B, height, width); the others show a fill colour.

        The map alone is not enough: what a shift brings in from beyond the crop is filled, even where the image goes on.
        """
        B, S = self.frames.shape[:2]
        grid = F.affine_grid(self.frames.flatten(0, 1), [B * S, 1, height, width], align_corners=False)
        return (grid.abs() <= 1).all(dim=-1).view(B, S, height, width).all(dim=1)


@dataclass(frozen=True)
class Augment:
    """Turns uint8 images into augmented, normalised float32 images of one size.

    `crop`: "none" wants images of that size; "pad" cuts a window out of the image with `crop_padding` zeros around it;
    "resized" cuts a box of random area (`crop_scale`) and aspect ratio (`crop_ratio`) and resizes it.
    `hflip` and `vflip` are probabilities, and so is `erase`. `mean` and `std` are of values from 0 to 1.
    `interpolation` is bilinear, bicubic or, for each use, random.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: str = "none"
    crop_padding: Annotated[int, Range(0, 16_384)] = 4
    crop_scale: Annotated[tuple[PartOf, PartOf], Ascending()] = (0.08, 1.0)
    crop_ratio: Annotated[tuple[AspectRatio, AspectRatio], Ascending()] = (3 / 4, 4 / 3)
    hflip: Share = 0.5
    vflip: Share = 0.0
    randaugment: str | None = None
    color_jitter: Share = 0.0
    erase: Share = 0.0
    erase_mode: str = "pixel"
    interpolation: str = "random"

    def __post_init__(self) -> None:
        allowed = {
            "crop": ("none", "pad", "resized"),
            "erase_mode": ("pixel", "const"),
            "interpolation": ("bilinear", "bicubic", "random"),
        }
        for key, values in allowed.items():
            if getattr(self, key) not in values:
                raise UserError(
                    f"unknown augment.{key}={getattr(self, key)!r}. {did_you_mean(str(getattr(self, key)), values)}"
                )
        check_fields(self, "augment.")
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise UserError(f"mean={self.mean} and std={self.std} must have one value per channel, std above 0.")
        if self.randaugment is not None:
            RandAugment.parse(self.randaugment)

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Tensor:
        return self.apply(images, self.draw(len(images), generator))

    def draw(self, n: int, generator: Generator | None = None) -> dict[str, Tensor]:
        """All random decisions for n images: CPU tensors whose first dimension is n.

        They know nothing of the images' size: boxes are uniform numbers that `apply` turns into pixels.
        """

        def uniform(*shape: int) -> Tensor:
            return torch.rand(n, *shape, generator=generator, dtype=torch.float64)

        draws = {"flip": uniform(2) < torch.tensor([self.vflip, self.hflip])}
        if self.crop != "none":
            draws |= {"crop_shape": uniform(ATTEMPTS, 2), "crop_place": uniform(2)}
        if self.erase > 0:
            draws |= {"erase": uniform() < self.erase, "erase_shape": uniform(ATTEMPTS, 2), "erase_place": uniform(2)}
            draws["erase_noise"] = torch.randint(0, NOISE_POOL, (n,), generator=generator)

        steps = []  # (operation, argument), each (n, number of steps)
        if self.randaugment is not None:
            steps.append(RandAugment.parse(self.randaugment).draw(n, generator))
        if self.color_jitter > 0:
            names = torch.tensor([op_index(name) for name in ("Brightness", "Contrast", "Color")])
            low, high = max(0.0, 1 - self.color_jitter), 1 + self.color_jitter
            steps.append((names[uniform(3).argsort(dim=1)], low + (high - low) * uniform(3)))
        if steps:
            draws["op"], draws["argument"] = (torch.cat(part, dim=1) for part in zip(*steps, strict=True))

        cubic_prob = {"bilinear": 0.0, "bicubic": 1.0, "random": 0.5}[self.interpolation]
        draws["cubic"] = uniform(1 + sum(op.shape[1] for op, _ in steps)) < cubic_prob  # the crop's, then each step's
        return draws

    def apply(
        self, images: Tensor, draws: dict[str, Tensor], return_geometry: bool = False
    ) -> Tensor | tuple[Tensor, Geometry]:
        """Augment each image as drawn; with `return_geometry` also say where the pixels came from."""
        self._check(images, draws)
        n, C, H, W = images.shape
        height, width = self._size
        crops = self._crop_boxes(draws, H, W)
        erased = self._erase_boxes(draws)

        result = torch.empty(n, C, height, width, device=images.device)
        rows_at_once = max(1, CHUNK // (C * max(H * W, height * width)))
        for start in range(0, n, rows_at_once):
            rows = slice(start, start + rows_at_once)
            drawn = {key: value[rows] for key, value in draws.items()}
            pixels = flip(self._cut(images[rows], crops[rows], drawn), drawn["flip"])
            for step in range(drawn["op"].shape[1] if "op" in drawn else 0):
                pixels = apply_ops(
                    pixels, drawn["op"][:, step], drawn["argument"][:, step], drawn["cubic"][:, 1 + step], self._fill
                )
            normalised = result[rows].copy_(pixels)  # converts to float on the way
            self._normalise_(normalised)
            if self.erase > 0:
                self._erase_(normalised, erased[rows], drawn["erase_noise"])

        if return_geometry:
            frames = self._frames(crops, draws, H, W)
            return result, Geometry(frames[:, -1], frames, erased)
        return result

    @property
    def _size(self) -> tuple[int, int]:
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return height, width

    @property
    def _fill(self) -> Tensor:
        """What moves in from outside the image: the mean grey level of each channel."""
        return (torch.tensor(self.mean) * 255).round().clamp(0, 255)

    def _check(self, images: Tensor, draws: dict[str, Tensor]) -> None:
        assert len(images) == len(draws["flip"]), f"{len(images)} images but draws for {len(draws['flip'])}"
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise UserError(
                f"augmentation got {images.dtype} of shape {tuple(images.shape)}; it takes uint8 (B, C, H, W)."
            )
        if images.shape[1] != len(self.mean):
            raise UserError(f"images have {images.shape[1]} channels but mean and std have {len(self.mean)} values.")
        (H, W), (height, width) = images.shape[-2:], self._size
        if self.crop == "none" and (height, width) != (H, W):
            raise UserError(
                f"images are {H} x {W} but the model wants {height} x {width}; resize them or use augment.crop=resized."
            )
        space = 2 * self.crop_padding
        if self.crop == "pad" and (H + space < height or W + space < width):
            raise UserError(
                f"images of {H} x {W} with {self.crop_padding} pixels around them are too small for a crop "
                f"of {height} x {width}; resize them, raise augment.crop_padding or use augment.crop=resized."
            )

    def _crop_boxes(self, draws: dict[str, Tensor], H: int, W: int) -> Tensor:
        """Each image's (top, left, bottom, right) in its own pixels; beyond its edge where it is padded."""
        if self.crop == "none":
            return torch.tensor([[0, 0, H, W]]).expand(len(draws["flip"]), 4)
        if self.crop == "pad":
            size = torch.tensor(self._size)
            space = torch.tensor([H, W]) + 2 * self.crop_padding - size
            corner = (draws["crop_place"] * (space + 1)).long() - self.crop_padding
            return torch.cat([corner, corner + size], dim=1)
        size, fits = box_sizes(draws["crop_shape"], self.crop_scale, self.crop_ratio, H, W)
        # No attempt fits into a very long image: the largest central box with an allowed ratio.
        low, high = self.crop_ratio
        central = torch.tensor([min(H, round(W / low)), min(W, round(H * high))])
        corner = (draws["crop_place"] * (torch.tensor([H, W]) - size + 1)).long()
        corner = torch.where(fits[:, None], corner, (torch.tensor([H, W]) - central) // 2)
        return torch.cat([corner, corner + torch.where(fits[:, None], size, central)], dim=1)

    def _erase_boxes(self, draws: dict[str, Tensor]) -> Tensor:
        """Each image's erased (top, left, bottom, right) in output pixels; empty where nothing is erased."""
        if self.erase == 0:
            return torch.zeros(len(draws["flip"]), 4, dtype=torch.long)
        height, width = self._size
        # An erased box is smaller than the image in both directions.
        size, fits = box_sizes(draws["erase_shape"], ERASE_AREA, ERASE_RATIO, height, width, margin=1)
        corner = (draws["erase_place"] * (torch.tensor(self._size) - size + 1)).long()
        return torch.cat([corner, corner + size], dim=1) * (draws["erase"] & fits)[:, None]

    def _cut(self, images: Tensor, boxes: Tensor, draws: dict[str, Tensor]) -> Tensor:
        if self.crop == "none":
            return images
        if self.crop == "pad":
            padding = [self.crop_padding] * 4
            boxes = boxes + self.crop_padding
            return torch.stack([cut_box(x, box) for x, box in zip(F.pad(images, padding), boxes.tolist(), strict=True)])
        return resize_boxes(images, boxes, self._size, draws["cubic"][:, 0])

    def _normalise_(self, images: Tensor) -> None:
        mean, std = (
            255 * torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (self.mean, self.std)
        )
        images.sub_(mean).div_(std)

    def _erase_(self, images: Tensor, boxes: Tensor, noise_start: Tensor) -> None:
        """Overwrite the boxes of normalised images, with zeros or with normal noise.

        The noise is read from one fixed pool, at a place drawn for each image: so rows of a batch can be augmented
        apart, without a generator for each image.
        """
        for image, box, start in zip(images, boxes.tolist(), noise_start.tolist(), strict=True):
            if box[0] < box[2]:
                erased = cut_box(image, box)
                if self.erase_mode == "pixel":
                    noise = noise_pool(image.numel(), image.device)
                    erased.copy_(noise[start : start + erased.numel()].view_as(erased))
                else:
                    erased.zero_()

    def _frames(self, crops: Tensor, draws: dict[str, Tensor], H: int, W: int) -> Tensor:
        """The maps from the output to the picture before each step, in coordinates from -1 to 1, last step first."""
        height, width = self._size
        to_pixels = torch.tensor(
            [[width / 2, 0, width / 2], [0, height / 2, height / 2], [0, 0, 1]], dtype=torch.float64
        )
        total = torch.eye(3, dtype=torch.float64).repeat(len(crops), 1, 1)
        frames = []
        for step in reversed(range(draws["op"].shape[1] if "op" in draws else 0)):
            moved = torch.eye(3, dtype=torch.float64).repeat(len(crops), 1, 1)
            moved[:, :2] = affines(draws["op"][:, step], draws["argument"][:, step], height, width)
            total = to_pixels.inverse() @ moved @ to_pixels @ total
            frames.append(total)

        cut = torch.eye(3, dtype=torch.float64).repeat(len(crops), 1, 1)
        whole = torch.tensor([H, W])
        corner, end = crops.double().view(-1, 2, 2).unbind(dim=1)
        scale = (end - corner) / whole * (1 - 2 * draws["flip"].double())
        cut[:, 1, 1], cut[:, 0, 0] = scale.T
        cut[:, 1, 2], cut[:, 0, 2] = ((corner + end) / whole - 1).T
        frames.append(cut @ total)
        return torch.stack(frames, dim=1)[:, :, :2].float()


def flip(images: Tensor, draws: Tensor) -> Tensor:
    """Mirror each image as drawn: (n, 2), vertically and horizontally."""

    def change(part: Tensor, dims: tuple[int, ...], _: Tensor) -> Tensor:
        return part.flip(dims)

    groups = [tuple(dim for dim, drawn in zip((2, 3), both, strict=True) if drawn) for both in draws.tolist()]
    return change_groups(images, groups, change)


@lru_cache(maxsize=4)
def noise_pool(window: int, device: torch.device) -> Tensor:
    """Normal noise with NOISE_POOL places to start reading `window` values, the same in every process."""
    return torch.randn(NOISE_POOL + window, generator=torch.Generator().manual_seed(0)).to(device)
